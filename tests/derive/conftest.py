"""Readings, and the rules that every published sample must keep, for the tests of the room `derive`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from llmobs.catalog import METRICS
from llmobs.derive.publish import Sample, samples
from llmobs.derive.target import Limits, TargetState, advance, begin
from llmobs.snapshot import EngineSnapshot, EngineStats, Evidence, Histogram, Reading

LIMITS = Limits()
NO_EVIDENCE = Evidence()


def histogram(*counts: float, total: float = 1.0, bounds: tuple[float, ...] = (1.0, 10.0)) -> Histogram:
    """Return a histogram of cumulative counts; the last bound is +Inf."""
    return Histogram((*bounds[: len(counts) - 1], math.inf), counts, total)


def engine(**facts: Any) -> EngineStats:
    return EngineStats(**{"model_name": "m", **facts})


def reading(at: float, *engines: EngineStats, health: int | None = 200, **fields: Any) -> Reading:
    """Return a good reading taken at `at`; `fields` are those of the snapshot."""
    made = EngineSnapshot(
        **{"taken_at": at, "wall_time": 1e9 + at, "source": "metrics", "dialect": "x", "engines": engines, **fields}
    )
    return Reading(taken_at=at, wall_time=1e9 + at, snapshot=made, health=health)


def failure(at: float, reason: str = "refused", health: int | None = None) -> Reading:
    return Reading(taken_at=at, wall_time=1e9 + at, error_reason=reason, error_message="x", health=health)


def run(*readings: Reading, evidence: Mapping[int, Evidence] | None = None, limits: Limits = LIMITS) -> TargetState:
    """Return the state after the readings; `evidence` comes with the reading of that index."""
    state = begin(0.0)
    for i, found in enumerate(readings):
        state = advance(state, found, (evidence or {}).get(i, NO_EVIDENCE), limits)
    return state


def published(state: TargetState, limits: Limits = LIMITS) -> list[Sample]:
    return samples(state, "t", limits)[0]


def values(state: TargetState, metric: str, limits: Limits = LIMITS) -> dict[tuple[str, ...], Any]:
    """Return label values (without the target's) → value of one metric."""
    assert metric in METRICS
    return {s.labels[1:]: s.value for s in published(state, limits) if s.metric == metric}


def value(state: TargetState, metric: str, limits: Limits = LIMITS) -> Any:
    """Return the value of the metric's only series, None when it is absent."""
    found = values(state, metric, limits)
    assert len(found) <= 1
    return next(iter(found.values()), None)


class Rules:
    """What holds for all that is published, one cycle after another."""

    def __init__(self) -> None:
        self._highest: dict[tuple[Any, ...], float] = {}

    def check(self, found: Iterable[Sample]) -> None:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for sample in found:
            metric = METRICS[sample.metric]
            assert len(sample.labels) == len(metric.labels), sample
            assert (sample.metric, sample.labels) not in seen, sample
            seen.add((sample.metric, sample.labels))
            for label, closed in metric.values.items():
                if metric.name in ("vllm_engine_state", "vllm_request_failed_total", "vllm_oom_total"):
                    assert sample.labels[metric.labels.index(label)] in closed
            if isinstance(sample.value, Histogram):
                assert metric.kind == "histogram"
                self._histogram(sample, sample.value)
                continue
            assert metric.kind != "histogram"
            assert math.isfinite(sample.value), sample
            assert sample.value >= 0, sample
            if metric.unit in ("ratio", "bool"):
                assert sample.value <= 1, sample
            if metric.kind == "counter":
                self._counter((sample.metric, sample.labels), sample.value)

    def _histogram(self, sample: Sample, value: Histogram) -> None:
        assert value.bounds[-1] == math.inf
        assert list(value.counts) == sorted(value.counts), sample
        assert value.counts[0] >= 0
        for bound, count in zip(value.bounds, value.counts):
            self._counter((sample.metric, sample.labels, bound), count)
        self._counter((sample.metric, sample.labels, "sum"), value.sum)

    def _counter(self, key: tuple[Any, ...], value: float) -> None:
        # Sums of floats may lose their last bit.
        assert value >= self._highest.get(key, 0.0) * (1 - 1e-9) - 1e-9, (key, value, self._highest[key])
        self._highest[key] = max(value, self._highest.get(key, 0.0))
