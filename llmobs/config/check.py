"""What settings must satisfy beyond their types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from llmobs.catalog import METRICS
from llmobs.config.tree import Settings, TargetSettings
from llmobs.errors import ConfigError

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

# A constant label with the name of a label of the contract would make two equal labels in one series. `version` and
# `name` are labels of info metrics only; there the contract's own value stands.
_TAKEN = ({label for m in METRICS.values() for label in m.labels} | {"le", "job", "instance"}) - {"version", "name"}


def mask_url(url: str) -> str:
    """Return the URL without what may be secret: user, password, and the values of its query."""
    # Up to the last @: a password may hold one, and a slash that should have been escaped.
    masked = re.sub(r"//.*@", "//***@", url)
    return re.sub(r"([?&][^=&#]*)=[^&#]*", r"\1=***", masked)


def target_name(url: str) -> str:
    """Return the default name of a target: host:port, or the socket's path."""
    if url.startswith("unix:"):
        return url.removeprefix("unix:")
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or default}"


def complete(target: TargetSettings, where: str) -> TargetSettings:
    """Return the target with its name filled in. Raises ConfigError when something about it cannot be."""
    url = target.url.rstrip("/")
    if not url.startswith("unix:"):
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{where}.url: {mask_url(url)!r} is not a URL; write http://host:port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{where}.url: {mask_url(url)!r} is not usable; write http://host:port, https://host:port, "
                "an IPv6 address as http://[::1]:8000, or unix:/path/to.sock"
            )
        if port == 0:
            raise ConfigError(f"{where}.url: port 0 cannot be connected to")
        if parts.username or parts.password:
            raise ConfigError(f"{where}.url: credentials do not belong into a URL; use api_key_file or api_key_env")
        if parts.query or parts.fragment:
            raise ConfigError(f"{where}.url: {mask_url(url)!r}: leave ? and # out; paths such as /metrics are added")
    if target.source not in ("auto", "stats", "metrics"):
        raise ConfigError(f"{where}.source: {target.source!r} is not one of auto, stats, metrics")
    if target.api_key_file and target.api_key_env:
        raise ConfigError(f"{where}: api_key_file and api_key_env exclude each other")
    interval = target.interval_seconds
    if interval is not None and interval < 0.1:
        raise ConfigError(f"{where}.interval_seconds: {interval} is below 0.1; reading that often slows vLLM down")
    if target.timeout_seconds <= 0 or target.health_timeout_seconds <= 0:
        raise ConfigError(f"{where}: timeouts must be above 0")
    _check_labels(target.labels, f"{where}.labels")
    return dataclasses.replace(target, url=url, name=target.name or target_name(url), labels=dict(target.labels))


def _check_labels(labels: Mapping[str, str], where: str) -> None:
    for name in labels:
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise ConfigError(f"{where}: {name!r} is not a label name (letters, digits, _; not starting with __)")
        if name in _TAKEN:
            raise ConfigError(f"{where}: {name!r} is a label of the contract; choose another name")


def validated(settings: Settings) -> Settings:
    """Return the settings with target names filled in. Raises ConfigError for what cannot be used."""
    targets = [complete(t, f"targets[{i}]") for i, t in enumerate(settings.targets)]
    seen: set[str] = set()
    for target in targets:
        if target.name in seen:
            raise ConfigError(f"targets: {target.name!r} is there twice; give each target a name of its own")
        seen.add(target.name)
    derive, gpu = settings.derive, settings.gpu
    for key, value in (
        ("derive.window_seconds", derive.window_seconds),
        ("derive.peak_seconds", derive.peak_seconds),
        ("derive.stall_seconds", derive.stall_seconds),
        ("gpu.interval_seconds", gpu.interval_seconds),
        ("gpu.timeout_seconds", gpu.timeout_seconds),
        ("otlp.interval_seconds", settings.otlp.interval_seconds),
        ("discovery.refresh_seconds", settings.discovery.refresh_seconds),
        ("derive.max_label_values", derive.max_label_values),
        ("web.max_requests", settings.web.max_requests),
    ):
        if value <= 0:
            raise ConfigError(f"{key}: {value} must be above 0")
    if not 0 <= gpu.reserve_ratio < 1:
        raise ConfigError(f"gpu.reserve_ratio: {gpu.reserve_ratio} must be at least 0 and below 1")
    if settings.log.level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log.level: {settings.log.level!r} is not one of debug, info, warning, error")
    if settings.log.format not in ("auto", "json", "console"):
        raise ConfigError(f"log.format: {settings.log.format!r} is not one of auto, json, console")
    for i, dns in enumerate(settings.discovery.dns):
        if not dns.name:
            raise ConfigError(f"discovery.dns[{i}].name: give the name to look up")
        if not 0 < dns.port < 65536:
            raise ConfigError(f"discovery.dns[{i}].port: {dns.port} is not a port")
        if dns.type not in ("SRV", "A", "AAAA"):
            raise ConfigError(f"discovery.dns[{i}].type: {dns.type!r} is not one of SRV, A, AAAA")
        _check_labels(dns.labels, f"discovery.dns[{i}].labels")
    return dataclasses.replace(settings, targets=tuple(targets))
