"""A bounded HTTP client for one target: deadlines, sizes, redirects and credentials, as if the peer were hostile."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from llmobs import __version__
from llmobs.config import TargetSettings
from llmobs.errors import ConfigError, TargetError

#: Largest answer that is read, after decompression.
MAX_BYTES = 16 * 1024 * 1024
_MAX_REDIRECTS = 3
_CHUNK = 64 * 1024
_MAX_KEY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, body decompressed."""

    status: int
    content_type: str
    body: bytes


class HttpClient:
    """Talks to one target over kept-alive connections. Every failure is a `TargetError` with a reason."""

    def __init__(self, target: TargetSettings, resolver: aiohttp.abc.AbstractResolver | None = None) -> None:
        self._target = target
        self._base = "http://localhost" if target.url.startswith("unix:") else target.url
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._key = _KeySource(target)

    async def get(self, path: str, *, timeout: float, accept: str = "*/*", max_bytes: int = MAX_BYTES) -> Answer:
        """Return the answer to ``GET path``, whatever its status, within `timeout` seconds in all.

        Raises TargetError (dns, refused, timeout, tls, auth, too_large, redirect, network).
        """
        try:
            # One deadline over connecting, headers and body: a peer that drips a byte a second cannot stretch it.
            async with deadline(timeout):
                return await self._get(path, accept, max_bytes)
        except (TimeoutError, asyncio.TimeoutError):
            raise TargetError("timeout", f"no complete answer to GET {path} within {timeout:g} s") from None
        except TargetError:
            raise
        except (aiohttp.ClientError, OSError, zlib.error, ValueError) as error:
            raise _classify(error, path) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _get(self, path: str, accept: str, max_bytes: int) -> Answer:
        url = self._base + path
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {"Accept": accept, "Accept-Encoding": "gzip", "User-Agent": f"llmobs/{__version__}"}
            if key := self._key.read():
                headers["Authorization"] = f"Bearer {key}"
            session = self._open()
            name = self._target.tls.server_name
            async with session.get(url, headers=headers, allow_redirects=False, server_hostname=name) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url = self._redirected(url, response.headers.get("Location", ""))
                    continue
                body = await _read(response, max_bytes)
                return Answer(response.status, response.headers.get("Content-Type", ""), body)
        raise TargetError("redirect", f"GET {path}: more than {_MAX_REDIRECTS} redirects")

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            here, there = urlsplit(url), urlsplit(target)
        except ValueError:
            raise TargetError("redirect", "the target redirects to something that is not a URL") from None
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            # Another host would receive our credentials, and is not what was configured.
            raise TargetError("redirect", "the target redirects to another host; configure that one if it is meant")
        return target

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            url = self._target.url
            connector: aiohttp.BaseConnector
            if url.startswith("unix:"):
                connector = aiohttp.UnixConnector(path=url.removeprefix("unix:"), limit=4)
            else:
                connector = aiohttp.TCPConnector(
                    limit=4,
                    ttl_dns_cache=30,
                    resolver=self._resolver,
                    ssl=_ssl_context(self._target) if url.startswith("https:") else True,
                )
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Proxies of the environment are for the internet, not for a server beside us.
                trust_env=False,
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", ""):
        raise TargetError("parse", f"the answer is encoded as {encoding!r}, which was not asked for")
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    parts: list[bytes] = []
    size = received = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        if inflate and inflate.eof:
            # zlib would keep all that follows.
            response.close()
            raise TargetError("parse", "the compressed answer goes on after its end")
        data = inflate.decompress(chunk, max_bytes + 1 - size) if inflate else chunk
        size += len(data)
        received += len(chunk)
        if max(size, received) > max_bytes or (inflate and inflate.unconsumed_tail):
            response.close()
            raise TargetError("too_large", f"the answer is larger than {max_bytes} bytes")
        parts.append(data)
    if inflate and not inflate.eof:
        raise TargetError("network", "the compressed answer ended early")
    return b"".join(parts)


def _classify(error: BaseException, path: str) -> TargetError:
    """Return the error as a TargetError. Its text never holds a URL's credentials or the peer's bytes."""
    cause = getattr(error, "os_error", None)
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror) or isinstance(cause, socket.gaierror):
        return TargetError("dns", "the host name cannot be resolved; check targets[].url")
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError | aiohttp.ServerFingerprintMismatch):
        detail = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
        return TargetError("tls", f"TLS failed ({_short(detail)}); check targets[].tls")
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            return TargetError("refused", "nothing listens there (connection refused)")
        return TargetError("network", f"cannot connect ({cause.strerror or type(cause).__name__})")
    if isinstance(error, aiohttp.ClientPayloadError):
        return TargetError("network", f"the answer to GET {path} ended early")
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return TargetError("network", f"the connection was closed without an answer to GET {path}")
    if isinstance(error, aiohttp.ClientResponseError):
        return TargetError("parse", f"the answer to GET {path} is not HTTP; check the port, and http or https")
    if isinstance(error, ConnectionRefusedError):
        return TargetError("refused", "nothing listens there (connection refused)")
    if isinstance(error, zlib.error):
        return TargetError("parse", "the compressed answer is broken")
    return TargetError("network", f"GET {path} failed ({type(error).__name__})")


def _short(error: object) -> str:
    return str(error).split("\n", maxsplit=1)[0][:200]


def _ssl_context(target: TargetSettings) -> ssl.SSLContext:
    tls = target.tls
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise TargetError("tls", f"{target.name}: certificate files cannot be used ({_short(error)})") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _KeySource:
    """The API key from a file (read again when it changes) or the environment."""

    def __init__(self, target: TargetSettings) -> None:
        self._file = Path(target.api_key_file) if target.api_key_file else None
        self._variable = target.api_key_env
        self._name = target.name
        self._seen: tuple[int, str] | None = None

    def read(self) -> str | None:
        if self._variable:
            return self._checked(os.environ.get(self._variable, ""), self._variable)
        if self._file is None:
            return None
        try:
            status = self._file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise TargetError("auth", f"{self._name}: api_key_file is not a file")  # a pipe would never end
            if self._seen is None or self._seen[0] != status.st_mtime_ns:
                with self._file.open("rb") as stream:
                    self._seen = (status.st_mtime_ns, stream.read(_MAX_KEY_BYTES + 1).decode().strip())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise TargetError("auth", f"{self._name}: api_key_file cannot be read ({reason})") from None
        return self._checked(self._seen[1], "api_key_file")

    def _checked(self, key: str, where: str) -> str | None:
        if len(key) > _MAX_KEY_BYTES or not (key.isascii() and (key.isprintable() or not key)):
            raise TargetError("auth", f"{self._name}: {where} does not hold one API key; check its content")
        return key or None


def deadline(seconds: float) -> Any:
    """Return an asynchronous context that raises TimeoutError when its body takes longer than `seconds`."""
    if sys.version_info >= (3, 11):
        return asyncio.timeout(seconds)
    return _Deadline(seconds)


class _Deadline:
    """asyncio.timeout for Python 3.10."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._fired = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        self._fired = True
        if self._task is not None:
            self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError


def check_files(target: TargetSettings) -> None:
    """Raise ConfigError when a certificate or key file of the target cannot be read; for `llmobs config check`."""
    for key, name in (
        ("api_key_file", target.api_key_file),
        ("tls.ca_file", target.tls.ca_file),
        ("tls.cert_file", target.tls.cert_file),
        ("tls.key_file", target.tls.key_file),
    ):
        if name and not os.access(name, os.R_OK):
            raise ConfigError(f"targets[{target.name}].{key}: {name} cannot be read; check the path and permissions")
