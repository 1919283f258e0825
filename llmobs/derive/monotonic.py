"""Counters that never go down, also across restarts of vLLM and changes of the source.

vLLM's counters start again at 0 when it restarts. What we publish is ``raw + offset``, where the offset of a counter
grows by its last raw value at each restart. A restart is recognised by another start time or instance name, or, where
the source gives neither, by any counter of the server going back; all counters of the server restart together then,
including those that have already overtaken their old value.

`/stats` and `/metrics` of one server count at slightly different moments. When the source changes, or part of a server
vanishes, a counter that would go back goes on from where it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from llmobs.snapshot import FACTS, EngineSnapshot, EngineStats, Fact, Histogram

_COUNTERS: tuple[Fact, ...] = tuple(f for f in FACTS.values() if f.kind != "gauge")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

#: Most bucket layouts of one histogram that are kept apart over restarts.
_MAX_LAYOUTS = 8

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Carry:
    """What must be remembered of one engine: its last raw values and, after a restart, the offsets.

    Both map a fact's name to a value, or to a mapping of keys to values. The offset of a histogram is a tuple of
    histograms, one for each bucket layout it has had: on its own bounds a layout loses nothing.
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
                if earlier is not None and _lower(part, earlier):
                    return True
        elif _lower(value, before):
            return True
    return False


def advance(carry: Carry, now: EngineStats, *, restarted: bool) -> tuple[EngineStats, Carry]:
    """Return the engine with monotonic counters and histograms, and what to remember for the next time."""
    offsets: dict[str, Any] = _merge(carry.offsets, carry.last) if restarted else dict(carry.offsets)
    last: dict[str, Any] = {} if restarted else dict(carry.last)
    totals: dict[str, Any] = {}
    for fact in _COUNTERS:
        name = fact.name
        value = getattr(now, name)
        if value is None or (fact.by and not value):
            continue
        if fact.by:
            value, part_offsets = _advance_parts(last.get(name, _NOTHING), offsets.get(name, _NOTHING), value)
            # A key that is missing this time (a family that shows only what moved) keeps its place.
            last[name] = {**last.get(name, _NOTHING), **value}
            if part_offsets:
                offsets[name] = part_offsets
                totals[name] = _total_parts(part_offsets, last[name], value)
            continue
        value, offset = _advance_one(last.get(name), offsets.get(name), value)
        if value is not getattr(now, name):
            totals[name] = value
        last[name] = value
        if offset is not None:
            offsets[name] = offset
            totals[name] = _add(offset, value)
    return (dataclasses.replace(now, **totals) if totals else now), Carry(last, offsets or _NOTHING)


def advance_counts(
    carry: Carry, now: Mapping[str, Mapping[str, float]], *, restarted: bool
) -> tuple[Mapping[str, Mapping[str, float]], Carry]:
    """Do for counters of the whole server, given as name → key → count, what `advance` does for an engine's."""
    offsets = _merge(carry.offsets, carry.last) if restarted else dict(carry.offsets)
    last: dict[str, Any] = {} if restarted else dict(carry.last)
    totals: dict[str, Mapping[str, float]] = {}
    for name, counts in now.items():
        value, offset = _advance_parts(last.get(name, _NOTHING), offsets.get(name, _NOTHING), counts)
        last[name] = {**last.get(name, _NOTHING), **value}
        offsets[name] = offset
        totals[name] = _total_parts(offset, last[name], value)
    return totals, Carry(last, offsets)


def restarted(before: EngineSnapshot, now: EngineSnapshot, carries: Mapping[tuple[str, str], Carry]) -> bool:
    """Return whether the server restarted between two snapshots."""
    if before.instance and now.instance:
        return before.instance != now.instance
    if before.source != now.source:
        # /stats counts the start from when our plugin was loaded, /metrics from when the process began, seconds
        # earlier; and their counters differ a little. What began after we last read it is another process.
        return now.start_time is not None and now.start_time > before.wall_time - 1.0
    # The start time is rounded to 10 ms by /proc.
    if before.start_time and now.start_time and abs(now.start_time - before.start_time) > 1.5:
        return True
    return any(
        went_back(carries[e.model_name, e.engine], e) for e in now.engines if (e.model_name, e.engine) in carries
    )


def never_down(
    totals: Mapping[_Key, float], offsets: Mapping[_Key, float], now: Mapping[_Key, float], *, rebase: bool
) -> tuple[dict[_Key, float], dict[_Key, float]]:
    """Return (totals, offsets) of derived counters after `now`: a total never falls, keys that are missing are kept.

    A derived figure that falls is too low for a moment and stands still until it has caught up. With `rebase` what
    it is made of has changed, and it grows from where it was.
    """
    new_totals, new_offsets = dict(totals), dict(offsets)
    for key, value in now.items():
        total = value + new_offsets.get(key, 0.0)
        before = totals.get(key)
        if before is not None and total < before:
            if rebase:
                new_offsets[key] = before - value
            total = before
        new_totals[key] = total
    return new_totals, new_offsets


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


def _lower(value: Any, before: Any) -> bool:
    """Return whether a value is lower than it was. Histograms are compared in the buckets that both have."""
    if not isinstance(value, Histogram):
        return bool(value < before)
    if value.bounds == before.bounds:
        return value.counts != before.counts and any(a < b for a, b in zip(value.counts, before.counts))
    earlier = dict(zip(before.bounds, before.counts))
    return any(count < earlier.get(bound, 0.0) for bound, count in zip(value.bounds, value.counts))


def _advance_one(before: Any, offset: Any, value: Any) -> tuple[Any, Any]:
    """Return (value, offset), the offset grown by what the value lost."""
    if before is None:
        return value, offset
    if _lower(value, before):
        if not isinstance(value, Histogram):
            return value, (offset or 0.0) + before - value
        return value, _layouts(_layouts(offset or (), before), value, sign=-1)
    if isinstance(value, Histogram) and value.sum < before.sum:
        # An observation below 0 (vLLM's clocks): the sum must not look like a restart.
        return dataclasses.replace(value, sum=before.sum), offset
    return value, offset


def _advance_parts(
    before: Mapping[str, Any], offset: Mapping[str, Any], value: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    values, offsets = dict(value), dict(offset)
    for key, part in value.items():
        values[key], grown = _advance_one(before.get(key), offset.get(key), part)
        if grown is not None:
            offsets[key] = grown
    return values, offsets


def _total_parts(offset: Mapping[str, Any], last: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of the keys that are there now, and of those that have not come again since a restart."""
    keys = dict.fromkeys((*offset, *value))
    return {key: _add(offset[key], last.get(key)) if key in offset else last[key] for key in keys}


def _add(offset: Any, value: Any) -> Any:
    """Return offset + value; the offset of a histogram is put on the value's bounds."""
    if not isinstance(offset, tuple):
        return offset + (value or 0.0)
    bounds = value.bounds if value is not None else offset[-1].bounds
    parts = [part if part.bounds == bounds else rebin(part, bounds) for part in offset]
    if value is not None:
        parts.append(value)
    counts = tuple(sum(counts) for counts in zip(*(part.counts for part in parts)))
    exemplars = value.exemplars if value is not None else ()
    return Histogram(bounds, counts, sum(part.sum for part in parts), exemplars)


def _merge(offsets: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offsets grown by the last values."""
    merged = dict(offsets)
    for name, value in last.items():
        if isinstance(value, Mapping):
            merged[name] = _merge(merged.get(name, _NOTHING), value)
        elif isinstance(value, Histogram):
            merged[name] = _layouts(merged.get(name, ()), value)
        else:
            merged[name] = merged.get(name, 0.0) + value
    return merged


def _layouts(layouts: tuple[Histogram, ...], value: Histogram, sign: int = 1) -> tuple[Histogram, ...]:
    """Return the layouts with the value added to, or taken from, the one with its bounds."""
    same = next((part for part in layouts if part.bounds == value.bounds), None)
    counts = tuple(sign * c + (same.counts[i] if same else 0.0) for i, c in enumerate(value.counts))
    total = sign * value.sum + (same.sum if same else 0.0)
    others = tuple(part for part in layouts if part is not same)
    if len(others) >= _MAX_LAYOUTS:
        others = others[1:] if not others[0].count else _layouts(others[1:], rebin(others[0], others[1].bounds))
    return (*others, Histogram(value.bounds, counts, total))
