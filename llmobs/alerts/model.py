"""What an alert is, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from llmobs.errors import ConfigError

Severity = Literal["critical", "warning", "info"]
#: critical pages a person now, warning goes to the work queue, info is context for somebody who already looks.
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")

#: Labels of an alert by what it is about; the user's extra scope labels (namespace, …) come before them.
MODEL = ("model_name",)
REPLICA = ("instance", "target", "model_name", "engine")
TARGET = ("instance", "target", "model_name")
GPU = ("instance", "uuid", "model_name")
SIDECAR = ("instance",)
NOTHING = ()

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdw]))+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A number that can be set: its default, its unit, and why it is this number.

    `scales` marks a span of time in seconds, which `time_scale` shortens like every other duration.
    """

    value: float
    unit: str
    why: str
    scales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert with everything that is generated from it.

    `expr` is PromQL with ``$threshold``, the names of `params`, and the label lists ``$model``, ``$replica``,
    ``$target``, ``$gpu``, ``$sidecar``, ``$joined`` (a target) and ``$host``; matchers of overrides are added to its
    selectors. `scope` are the labels an alert instance has. `metric` is the series whose panel shows the threshold as
    a line, when it can be drawn there as it is. `inhibited_by` names alerts that make this one redundant. `also` are
    labels added to every instance.
    """

    name: str
    group: str
    question: str
    expr: str
    scope: tuple[str, ...]
    severity: Severity
    for_: str
    summary: str
    impact: str
    causes: tuple[str, ...]
    first: str
    stop: str
    prevent: tuple[str, ...]
    tune: str
    threshold: Knob | None = None
    keep_firing_for: str = ""
    metric: str = ""
    params: Mapping[str, Knob] = field(default_factory=lambda: MappingProxyType({}))
    inhibited_by: tuple[str, ...] = ()
    dashboard: str = "llmobs-health"
    trace: str = ""
    enabled: bool = True
    off_because: str = ""
    confirm: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: An override adds a rule beside the general one instead of taking its series out of it (for ``absent``).
    additive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording rule; `labels` are those its series have, `also` are added as they are."""

    name: str
    expr: str
    labels: tuple[str, ...]
    why: str
    also: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def seconds(duration: str) -> float:
    """Return a Prometheus duration (``1h30m``) in seconds. Raises ConfigError when it is none."""
    if not _DURATION.fullmatch(duration) and duration != "0":
        raise ConfigError(f"{duration!r} is not a duration such as 30s, 5m, or 1h30m")
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdw])", duration))


def duration(value: float) -> str:
    """Return seconds as a Prometheus duration, to the second, or to the millisecond below one."""
    if value == 0:
        return "0s"
    if value < 1:
        return f"{max(1, round(value * 1000))}ms"
    left, parts = round(value), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
