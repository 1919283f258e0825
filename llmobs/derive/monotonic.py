"""Counters that never go down, also across restarts of vLLM.

vLLM's counters start again at 0 when it restarts. What we publish is ``raw + offset``, where the offset of a counter
grows by its last raw value at each restart. A restart is recognised by another start time or instance name, or, where
the source gives neither, by any counter of the server going back; all counters of the server restart together then,
including those that have already overtaken their old value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llmobs.snapshot import FACTS, EngineSnapshot, EngineStats, Fact, Histogram

_COUNTERS: tuple[Fact, ...] = tuple(f for f in FACTS.values() if f.kind != "gauge")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Carry:
    """What must be remembered of one engine: its last raw values and, after a restart, the offsets.

    Both map a fact's name to a number, a `Histogram`, or a mapping of keys to those.
    """

    last: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    offsets: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


def went_back(carry: Carry, now: EngineStats) -> bool:
    """Return whether any counter of the engine is lower than it was."""
    last = carry.last
    for fact in _COUNTERS:
        before = last.get(fact.name)
        if before is None:
            continue
        value = getattr(now, fact.name)
        if value is None:
            continue
        if fact.by:
            for key, part in value.items():
                earlier = before.get(key)
                if earlier is not None and _size(part) < _size(earlier):
                    return True
        elif _size(value) < _size(before):
            return True
    return False


def advance(carry: Carry, now: EngineStats, *, restarted: bool) -> tuple[EngineStats, Carry]:
    """Return the engine with monotonic counters and histograms, and what to remember for the next time."""
    offsets: Mapping[str, Any] = _merge(carry.offsets, carry.last) if restarted else carry.offsets
    last = {} if restarted else dict(carry.last)
    totals: dict[str, Any] = {}
    for fact in _COUNTERS:
        value = getattr(now, fact.name)
        if value is None or (fact.by and not value):
            continue
        # A key that is missing this time (a family that shows only what moved) keeps its place.
        last[fact.name] = {**last.get(fact.name, _NOTHING), **value} if fact.by else value
        if offsets and (offset := offsets.get(fact.name)) is not None:
            totals[fact.name] = _add(offset, value)
    return (dataclasses.replace(now, **totals) if totals else now), Carry(last, offsets)


def advance_counts(
    carry: Carry, now: Mapping[str, Mapping[str, float]], *, restarted: bool
) -> tuple[Mapping[str, Mapping[str, float]], Carry]:
    """Do for counters of the whole server, given as name → key → count, what `advance` does for an engine's."""
    offsets = _merge(carry.offsets, carry.last) if restarted else carry.offsets
    last = now if restarted else {**carry.last, **now}
    return {name: _add(offsets.get(name, _NOTHING), counts) for name, counts in last.items()}, Carry(last, offsets)


def restarted(before: EngineSnapshot, now: EngineSnapshot, carries: Mapping[tuple[str, str], Carry]) -> bool:
    """Return whether the server restarted between two snapshots."""
    if before.instance and now.instance:
        return before.instance != now.instance
    # The start time is rounded to 10 ms by /proc, and differs between sources by less than a second.
    if before.start_time and now.start_time and abs(now.start_time - before.start_time) > 1.5:
        return True
    return any(
        went_back(carries[e.model_name, e.engine], e) for e in now.engines if (e.model_name, e.engine) in carries
    )


def rebin(histogram: Histogram, bounds: tuple[float, ...]) -> Histogram:
    """Return the histogram on other bounds, without ever counting an observation too low.

    Each observation goes to the smallest new bound that certainly holds it, so that the result stays cumulative and
    its count and sum stay exact. Needed when a restart brings another version with other buckets.
    """
    counts: list[float] = []
    for bound in bounds:
        below = [c for b, c in zip(histogram.bounds, histogram.counts) if b <= bound]
        counts.append(below[-1] if below else 0.0)
    return Histogram(bounds, tuple(counts), histogram.sum)


def _size(value: Any) -> float:
    size: float = value.count if isinstance(value, Histogram) else value
    return size


def _add(offset: Any, value: Any) -> Any:
    if isinstance(value, Histogram):
        before = offset if offset.bounds == value.bounds else rebin(offset, value.bounds)
        counts = tuple(a + b for a, b in zip(before.counts, value.counts))
        return Histogram(value.bounds, counts, before.sum + value.sum, value.exemplars)
    if isinstance(value, Mapping):
        # Keys that have not come again yet are still part of the total.
        return {**offset, **{k: _add(offset[k], v) if k in offset else v for k, v in value.items()}}
    return offset + value


def _merge(offsets: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(offsets)
    for name, value in last.items():
        merged[name] = _add(merged[name], value) if name in merged else value
    return merged
