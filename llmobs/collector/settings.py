"""What a user can set about the generated Collector, Tempo, Prometheus and Grafana configuration.

It is the ``collector:`` part of the YAML file given with ``llmobs generate --config``; other parts belong to other
generators. An unknown key is an error that names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from llmobs.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """From when on a request is slow enough to keep its trace, in seconds."""

    time_to_first_token: float = 2.0
    inter_token: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Knobs of the generated configuration; see `docs/guides/collector.md`."""

    #: Version of the Collector (contrib distribution) to generate for: component types were renamed up to 0.157.
    version: str = "0.157.0"
    #: ``redact`` removes prompts, completions and tool texts; ``keep`` lets them pass (an operator's explicit choice).
    content: str = "redact"
    #: Ask the Kubernetes API for pod attributes (needs RBAC); off outside Kubernetes.
    kubernetes: bool = True
    #: The agent scrapes the sidecar; switch off where Prometheus does it, or everything is stored twice.
    scrape: bool = True
    #: Longest request in seconds; a sampling decision waits a little longer.
    longest_request: int = 600
    #: Traces kept in memory while their decision is due: new traces per second × decision wait, with room.
    traces_in_memory: int = 100_000
    #: Share of ordinary traces to keep, in percent.
    keep_percent: float = 2.0
    #: From when on a request is slow enough to keep its trace, in seconds.
    slow: Slow = field(default_factory=Slow)
    #: Model name → its own limits.
    slow_by_model: Mapping[str, Slow] = field(default_factory=lambda: MappingProxyType({}))
    #: Resource or span attribute that marks a canary.
    canary_attribute: str = "canary"
    #: Values of that attribute by which a trace is kept.
    canary_values: tuple[str, ...] = ("true", "1")
    #: Gateways behind the load balancer: a DNS name that gives all their addresses (a headless Service).
    gateway_dns: str = "llmobs-gateway-headless"
    #: Days Tempo keeps traces.
    trace_days: int = 14
    #: Days Prometheus keeps samples.
    metric_days: int = 30

    @property
    def queue_batches(self) -> bool:
        """Whether an exporter's queue can batch and count items; older Collectors need the batch processor."""
        return self.release >= (0, 130)

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor of `version`."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def load(path: Path | None) -> Settings:
    """Return the settings in the ``collector`` part of the file, or the defaults without a file.

    Raises ConfigError when the file cannot be read, is not YAML, or has an unknown key or an unusable value.
    """
    part = section(path, "collector")
    values = dict(part)
    values["slow"] = _slow(values.get("slow", {}), "collector.slow")
    models = values.get("slow_by_model", {})
    if not isinstance(models, Mapping):
        raise ConfigError("collector.slow_by_model must map a model name to its limits")
    values["slow_by_model"] = MappingProxyType(
        {str(model): _slow(limits, f"collector.slow_by_model.{model}") for model, limits in models.items()}
    )
    if "canary_values" in values:
        values["canary_values"] = tuple(str(v) for v in values["canary_values"])
    if "version" in values:
        values["version"] = str(values["version"])
    settings: Settings = build(Settings, values, "collector")
    _check(settings)
    return settings


def section(path: Path | None, name: str) -> Mapping[str, Any]:
    """Return the part called `name` of the user's YAML file; empty without a file or without that part."""
    if path is None:
        return {}
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    part = document.get(name, {}) if isinstance(document, Mapping) else None
    if not isinstance(part, Mapping):
        raise ConfigError(f"{path}: {name!r} must be a mapping of settings")
    return part


def build(cls: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Return `cls(**values)` after checking names and types of its simple fields. Raises ConfigError."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"{where}.{key} is not a setting{nearest(str(key), fields)}")
        default = fields[key].default
        if isinstance(default, bool):
            good = isinstance(value, bool)
        elif isinstance(default, (int, float)):
            good = isinstance(value, type(default) if isinstance(default, int) else (int, float))
            good = good and not isinstance(value, bool) and value > 0
        elif isinstance(default, str):
            good = isinstance(value, str) and bool(value)
        else:
            good = True
        if not good:
            raise ConfigError(f"{where}.{key}: {value!r} cannot be used; the default is {default!r}")
    return cls(**values)


def _slow(values: Any, where: str) -> Slow:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping with time_to_first_token and inter_token, in seconds")
    slow: Slow = build(Slow, values, where)
    return slow


def _check(settings: Settings) -> None:
    if settings.content not in ("redact", "keep"):
        raise ConfigError(f"collector.content: {settings.content!r} is not one of redact, keep")
    if settings.keep_percent > 100:
        raise ConfigError(f"collector.keep_percent: {settings.keep_percent} is more than 100")
    parts = settings.version.split(".")
    if len(parts) < 2 or not all(p.isdigit() for p in parts[:2]):
        raise ConfigError(f"collector.version: {settings.version!r} is not a version like 0.157.0")
