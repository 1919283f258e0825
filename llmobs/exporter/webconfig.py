"""`--web.config.file`: TLS and basic auth in the format that the Prometheus exporters share."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llmobs.errors import ConfigError, nearest

_KEYS = ("tls_server_config", "basic_auth_users", "http_server_config")
_TLS_KEYS = (
    "cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version", "cipher_suites",
    "prefer_server_cipher_suites", "curve_preferences",
)  # fmt: skip
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_OPTIONAL,
    "RequireAnyClientCert": ssl.CERT_REQUIRED,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
#: bcrypt of an impossible password: unknown users cost as much time as known ones.
_NOBODY = "$2b$10$abcdefghijklmnopqrstuuAsJ5Z2ZBzBV8QHJDGvOJuS9O5mCBQ4i"


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says: a TLS context or None, user → bcrypt hash, and extra response headers."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> WebConfig:
    """Return the file's content. Raises ConfigError naming the key that cannot be used."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check web.config_file") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{path}: not valid YAML") from None
    document = document or {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected the keys {', '.join(_KEYS)}")
    _known(document, _KEYS, str(path))
    users = document.get("basic_auth_users") or {}
    if not isinstance(users, dict) or not all(isinstance(h, str) and h.startswith("$2") for h in users.values()):
        raise ConfigError(
            f"{path}: basic_auth_users maps user names to bcrypt hashes (htpasswd -nBC 10 USER makes one)"
        )
    server = document.get("http_server_config") or {}
    headers = server.get("headers") or {} if isinstance(server, dict) else None
    if not isinstance(headers, dict):
        raise ConfigError(f"{path}: http_server_config holds headers, and they map names to values")
    tls = document.get("tls_server_config")
    return WebConfig(
        tls=_context(tls, path) if tls else None,
        users={str(k): v for k, v in users.items()},
        headers={str(k): str(v) for k, v in headers.items()},
    )


def _context(tls: Any, path: Path) -> ssl.SSLContext:
    if not isinstance(tls, dict):
        raise ConfigError(f"{path}: tls_server_config must hold cert_file and key_file")
    _known(tls, _TLS_KEYS, f"{path}: tls_server_config")
    if not tls.get("cert_file") or not tls.get("key_file"):
        raise ConfigError(f"{path}: tls_server_config needs cert_file and key_file")
    for key in ("cert_file", "key_file", "client_ca_file"):
        if not isinstance(tls.get(key) or "", str):
            raise ConfigError(f"{path}: tls_server_config.{key}: expected a file name")
    suites = tls.get("cipher_suites") or []
    if not isinstance(suites, list) or not all(isinstance(suite, str) for suite in suites):
        raise ConfigError(f"{path}: tls_server_config.cipher_suites: expected a list of names")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for key, name in (("min_version", tls.get("min_version", "TLS12")), ("max_version", tls.get("max_version"))):
        if name is None:
            continue
        if name not in _VERSIONS:
            raise ConfigError(f"{path}: tls_server_config.{key}: {name!r} is not one of {', '.join(_VERSIONS)}")
        setattr(context, "minimum_version" if key == "min_version" else "maximum_version", _VERSIONS[name])
    kind = tls.get("client_auth_type") or "NoClientCert"
    if kind not in _CLIENT_AUTH:
        raise ConfigError(f"{path}: client_auth_type: {kind!r} is not one of {', '.join(_CLIENT_AUTH)}")
    folder = path.parent  # as the Prometheus exporters do: file names are relative to this file
    try:
        context.load_cert_chain(folder / tls["cert_file"], folder / tls["key_file"])
        if _CLIENT_AUTH[kind] is not ssl.CERT_NONE:
            if not tls.get("client_ca_file"):
                raise ConfigError(f"{path}: client_auth_type {kind} needs client_ca_file")
            context.load_verify_locations(folder / tls["client_ca_file"])
            context.verify_mode = _CLIENT_AUTH[kind]
        if suites:
            context.set_ciphers(":".join(suites))
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
        raise ConfigError(f"{path}: the certificate files cannot be used ({reason})") from None
    return context


def _known(document: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in document:
        if key not in keys:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(str(key), keys)}")


class BasicAuth:
    """Checks basic auth against bcrypt hashes, remembering good passwords for the life of the process.

    bcrypt is slow on purpose; without the memory each scrape would cost its tens of milliseconds. What is remembered
    is a keyed hash, whose key lives only in this process.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._salt = os.urandom(32)
        self._good: set[bytes] = set()

    async def allows(self, header: str | None) -> bool:
        """Return whether an Authorization header names a user and that user's password."""
        if not self._users:
            return True
        credentials = _decode(header)
        if credentials is None:
            return False
        user, password = credentials
        key = hmac.digest(self._salt, repr((user, password)).encode(), hashlib.sha256)
        if key in self._good:
            return True
        if not await asyncio.to_thread(_matches, password, self._users.get(user, _NOBODY)):
            return False
        if user not in self._users:
            return False
        if len(self._good) < 1024:
            self._good.add(key)
        return True


def _decode(header: str | None) -> tuple[str, bytes] | None:
    kind, _, encoded = (header or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _matches(password: bytes, expected: str) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password[:72], expected.encode())
    except ValueError:
        return False
