"""Targets found elsewhere: Prometheus file_sd files and DNS."""

from __future__ import annotations

import asyncio
import glob
import json
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from llmobs.config import DiscoverySettings, DnsSettings, TargetSettings, complete
from llmobs.errors import ConfigError

_MAX_FILE_BYTES = 4 * 1024 * 1024
_DNS_TIMEOUT = 5.0


def file_patterns(settings: DiscoverySettings) -> tuple[str, ...]:
    """Return the names of all files that the patterns match now, sorted."""
    return tuple(sorted({name for pattern in settings.files for name in glob.glob(pattern)}))  # noqa: PTH207


def read_files(settings: DiscoverySettings) -> list[TargetSettings]:
    """Return the targets in all file_sd files. Raises ConfigError naming the file that cannot be used.

    A file holds a list of ``{"targets": ["host:port", …], "labels": {…}}``. Labels that start with ``__`` are
    Prometheus' own: of them `__scheme__` is used, the others are left out.
    """
    return [target for name in file_patterns(settings) for target in _read_file(Path(name))]


def _read_file(path: Path) -> Iterable[TargetSettings]:
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; this is not a file_sd file")
        groups: Any = json.loads(raw) if path.suffix == ".json" else yaml.safe_load(raw)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError, RecursionError):
        raise ConfigError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'}") from None
    if not isinstance(groups or [], list):
        raise ConfigError(f"{path}: expected a list of {{targets: […], labels: {{…}}}}")
    for i, group in enumerate(groups or []):
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            raise ConfigError(f"{path}: entry {i} has no list 'targets'")
        found = group.get("labels") or {}
        if not isinstance(found, Mapping):
            raise ConfigError(f"{path}: entry {i}: 'labels' is not a mapping of names to values")
        labels = {str(k): str(v) for k, v in found.items() if v is not None}
        scheme = labels.pop("__scheme__", "http")
        labels = {k: v for k, v in labels.items() if not k.startswith("__")}
        for address in group["targets"]:
            url = str(address) if "://" in str(address) or str(address).startswith("unix:") else f"{scheme}://{address}"
            yield complete(TargetSettings(url=url, labels=labels), f"{path}[{i}]")


async def look_up(dns: DnsSettings) -> list[TargetSettings]:
    """Return the targets of one DNS name. Raises ConfigError when the look-up fails or its library is missing."""
    where = f"discovery.dns[{dns.name}]"
    try:
        pairs = await asyncio.wait_for(_srv(dns) if dns.type == "SRV" else _addresses(dns), _DNS_TIMEOUT)
    except (OSError, UnicodeError, TimeoutError, asyncio.TimeoutError) as error:
        raise ConfigError(f"{where}: {dns.type} look-up failed ({error or 'timed out'})") from None
    return [
        complete(TargetSettings(url=f"{dns.scheme}://{_bracketed(host)}:{port}", labels=dns.labels), where)
        for host, port in sorted(set(pairs))
    ]


async def _addresses(dns: DnsSettings) -> list[tuple[str, int]]:
    family = socket.AF_INET6 if dns.type == "AAAA" else socket.AF_INET
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(dns.name, dns.port, family=family, type=socket.SOCK_STREAM)
    return [(str(info[4][0]), dns.port) for info in found]


async def _srv(dns: DnsSettings) -> list[tuple[str, int]]:
    try:
        import aiodns
    except ImportError:
        raise ConfigError("discovery.dns: SRV records need pip install 'llmobs[dns]'") from None
    resolver = aiodns.DNSResolver(timeout=_DNS_TIMEOUT, tries=1)
    try:
        answers = await resolver.query(dns.name, "SRV")
    except aiodns.error.DNSError as error:
        raise OSError(str(error.args[-1] if error.args else error)) from None
    finally:
        resolver.cancel()
    return [(answer.host.rstrip("."), answer.port) for answer in answers]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def merge(
    static: Iterable[TargetSettings], found: Mapping[str, Iterable[TargetSettings]]
) -> list[tuple[str, TargetSettings]]:
    """Return (how found, target) for all targets, the list's first; a name that comes twice is watched once."""
    merged: dict[str, tuple[str, TargetSettings]] = {t.name: ("static", t) for t in static}
    for how, targets in found.items():
        for target in targets:
            merged.setdefault(target.name, (how, target))
    return list(merged.values())
