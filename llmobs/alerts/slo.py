"""Objectives: what good service is, per model, as ratios at bucket boundaries; and the windows that watch the budget.

A latency objective counts the requests at or below a bucket boundary, which is exact: nothing is interpolated, and
the share of the rest is a ratio that has an error budget, which a quantile has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from llmobs.errors import ConfigError, nearest

#: The period of the error budget. The windows below are made for it; another period needs other windows.
PERIOD = "30d"

#: long window, short window, burn-rate factor, for, severity (Google SRE workbook, chapter 5; kubernetes-mixin).
WINDOWS = (
    ("1h", "5m", 14.4, "2m", "critical"),
    ("6h", "30m", 6.0, "15m", "critical"),
    ("1d", "2h", 3.0, "1h", "warning"),
    ("3d", "6h", 1.0, "3h", "warning"),
)
RATIO_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d", PERIOD)

#: Failures that are the service's fault. `abort` is the client's decision, `invalid` and `context_length` its mistake.
BAD_REASONS = ("oom", "timeout", "error", "engine_dead", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective: `target` is the share of good events, `boundary` the bucket bound in seconds (None: failures)."""

    slo: str
    histogram: str
    target: float
    boundary: float | None
    why: str
    models: Mapping[str, Objective] = field(default_factory=lambda: MappingProxyType({}))


_DEFAULTS = (
    Objective(
        slo="availability", histogram="", target=0.995, boundary=None,
        why="3.6 hours of failing requests in 30 days; a single replica cannot promise more",
    ),
    Objective(
        slo="ttft", histogram="vllm_time_to_first_token_seconds", target=0.95, boundary=2.5,
        why="interactive use tolerates about two seconds before the first word; 2.5 s is the bucket bound above",
    ),
    Objective(
        slo="inter_token", histogram="vllm_inter_token_latency_seconds", target=0.99, boundary=0.2,
        why="five tokens a second is slow reading speed; every output is one observation, hence 99 %",
    ),
    Objective(
        slo="e2e", histogram="vllm_e2e_request_latency_seconds", target=0.95, boundary=60.0,
        why="longer than the usual gateway time-out is a failure for the caller, whatever the length of the output",
    ),
)  # fmt: skip


def objectives(given: Mapping[str, Any]) -> tuple[Objective, ...]:
    """Return the objectives with the user's changes. Raises ConfigError for unknown names and impossible targets."""
    known = {o.slo: o for o in _DEFAULTS}
    for name in given:
        if name not in known:
            raise ConfigError(f"alerts.slo.{name} is not an objective{nearest(str(name), known)}")
    return tuple(_objective(o, given.get(o.slo, {}), f"alerts.slo.{o.slo}") for o in _DEFAULTS)


def _objective(base: Objective, given: Any, where: str) -> Objective:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a mapping with target and boundary")
    keys = ("target", "boundary", "models") if base.boundary is not None else ("target", "models")
    for key in given:
        if key not in keys:
            raise ConfigError(f"{where}.{key} is not a setting{nearest(str(key), keys)}")
    target, boundary = given.get("target", base.target), given.get("boundary", base.boundary)
    # 14.4 times the budget must be below 1, or the fastest page could never fire.
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 1 - 1 / 14.4 < target < 1:
        raise ConfigError(
            f"{where}.target: {target!r} is not a share above 0.931 and below 1; below it no page can fire"
        )
    if boundary is not None and (isinstance(boundary, bool) or not isinstance(boundary, (int, float)) or boundary <= 0):
        raise ConfigError(f"{where}.boundary: {boundary!r} is not a bucket bound in seconds")
    own = replace(
        base, target=float(target), boundary=None if boundary is None else float(boundary), models=MappingProxyType({})
    )
    models = given.get("models", {})
    if not isinstance(models, Mapping):
        raise ConfigError(f"{where}.models must map a model name to its objective")
    tiers = {str(model): _objective(own, tier, f"{where}.models.{model}") for model, tier in models.items()}
    return replace(own, models=MappingProxyType(tiers))
