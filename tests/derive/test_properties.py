"""Whatever a source says, and however it restarts, vanishes or changes: what is published keeps its rules."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmobs.derive import cache, joined, phases, queue, speculation, window
from llmobs.derive.target import Limits, advance, begin
from llmobs.derive.window import Window
from llmobs.snapshot import (
    FACTS,
    EngineSnapshot,
    EngineStats,
    Evidence,
    GpuSnapshot,
    GpuStats,
    Histogram,
    LostRequests,
    OomEvent,
    Reading,
)  # fmt: skip
from tests.derive.conftest import NO_EVIDENCE, Rules, published

LAYOUTS = ((1.0, math.inf), (1.0, 2.0, math.inf), (0.5, 2.0, 8.0, math.inf), (math.inf,))
COUNTS = st.integers(0, 20).map(float)


@st.composite
def histograms(draw: st.DrawFn, layout: st.SearchStrategy[tuple[float, ...]]) -> Histogram:
    bounds = draw(layout)
    grown = draw(st.lists(st.integers(0, 5), min_size=len(bounds), max_size=len(bounds)))
    counts = [float(sum(grown[: i + 1])) for i in range(len(grown))]
    return Histogram(bounds, tuple(counts), draw(st.floats(0, 100)))


@st.composite
def engines(draw: st.DrawFn) -> EngineStats:
    """An engine that says anything that a reader lets through: some facts, whatever values."""
    facts: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(list(FACTS)), max_size=12, unique=True)):
        fact = FACTS[name]
        one = histograms(st.sampled_from(LAYOUTS)) if fact.kind == "histogram" else COUNTS
        if fact.kind == "gauge":
            one = st.one_of(COUNTS, st.floats(0, 1.5))
        facts[name] = (
            draw(st.dictionaries(st.sampled_from(["a", "b", "stop", "abort", "error"]), one)) if fact.by else draw(one)
        )
    return EngineStats(
        model_name=draw(st.sampled_from(["m", "n"])),
        engine=draw(st.sampled_from(["0", "1"])),
        prefix_cache_unit=draw(st.sampled_from([None, "tokens", "blocks"])),
        **facts,
    )


EVIDENCE = st.builds(
    Evidence,
    can_tell=st.sampled_from([frozenset(), frozenset({"cuda"}), frozenset({"cuda", "host"})]),
    ooms=st.lists(
        st.builds(
            OomEvent,
            st.sampled_from(["cuda", "host"]),
            st.sampled_from(["in_process", "log", "cgroup", "memory_full"]),
            st.floats(1e9, 1e9 + 500),
            st.sampled_from([None, "a", "b"]),
        ),
        max_size=2,
    ).map(tuple),
    lost=st.lists(
        st.builds(
            LostRequests,
            id=st.sampled_from(["x", "y", "z"]),
            time=st.floats(1e9, 1e9 + 500),
            instance=st.sampled_from([None, "i"]),
            reason=st.sampled_from(["oom", "engine_dead", "error"]),
            count=st.integers(0, 5),
            total=st.one_of(st.none(), st.integers(0, 9)),
            model_name=st.sampled_from([None, "m"]),
            engine=st.sampled_from([None, "0"]),
        ),
        max_size=1,
    ).map(tuple),
)

GPUS = st.one_of(
    st.none(),
    st.builds(
        lambda energy, utilization: GpuSnapshot(
            taken_at=0,
            wall_time=0,
            available=True,
            devices=(
                GpuStats(
                    uuid="u",
                    index=0,
                    up=True,
                    watched=True,
                    energy_joules=energy,
                    utilization=utilization,
                    memory_total_bytes=50.0,
                ),
            ),
        ),
        st.one_of(st.none(), COUNTS),
        st.one_of(st.none(), st.floats(0, 1)),
    ),
)


@st.composite
def readings(draw: st.DrawFn, at: float) -> Reading:
    health = draw(st.sampled_from([None, 200, 200, 200, 404, 503]))
    if draw(st.integers(0, 4)) == 0:
        reason = draw(st.sampled_from(["refused", "timeout", "parse", "empty"]))
        return Reading(taken_at=at, wall_time=1e9 + at, error_reason=reason, health=health)
    made = {(e.model_name, e.engine): e for e in draw(st.lists(engines(), min_size=1, max_size=2))}
    snapshot = EngineSnapshot(
        taken_at=at,
        wall_time=1e9 + at,
        source=draw(st.sampled_from(["metrics", "stats"])),
        dialect="x",
        engines=tuple(made.values()),
        start_time=draw(st.sampled_from([None, 1e9 - 100.0, 1e9 + at])),
        instance=draw(st.sampled_from([None, None, "i", "j"])),
        consistent=draw(st.booleans()),
        http_responses=draw(st.dictionaries(st.sampled_from(["2xx", "5xx"]), COUNTS)),
        hook_active=draw(st.dictionaries(st.sampled_from(["a", "b"]), COUNTS)),
        hook_errors=draw(st.dictionaries(st.sampled_from(["a", "b"]), COUNTS)),
    )
    return Reading(taken_at=at, wall_time=1e9 + at, snapshot=snapshot, health=health)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_rules_hold_for_any_source(data: st.DataObject) -> None:
    """Never negative, ratios 0–1, counters and buckets never down, whatever happens to source, server and engines."""
    state, rules, at = begin(0.0), Rules(), 0.0
    limits = Limits(window_seconds=20, peak_seconds=20, stall_seconds=5)
    for _ in range(data.draw(st.integers(2, 8))):
        at += data.draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0, 5.0, 30.0]))
        state = advance(state, data.draw(readings(at)), data.draw(EVIDENCE), limits, data.draw(GPUS))
        rules.check(published(state, limits))


class _Counting:
    """A source whose counters really grow, so that what is published can be compared with what happened."""

    def __init__(self) -> None:
        self.total = 0.0
        self.run = 0.0
        self.layout = LAYOUTS[1]

    def grow(self, by: float) -> None:
        self.total += by
        self.run += by

    def engine(self) -> EngineStats:
        n = len(self.layout)
        return EngineStats(
            model_name="m",
            generation_tokens=self.run,
            finished={"stop": self.run},
            time_to_first_token=Histogram(self.layout, tuple(self.run * (i + 1) / n for i in range(n)), self.run),
        )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["grow", "restart", "outage", "layout"]), st.integers(0, 9)), max_size=20))
def test_nothing_is_lost_or_counted_twice_over_restarts(steps: list[tuple[str, int]]) -> None:
    """With a start time the totals equal all that was seen in all runs, whatever the bucket layouts were."""
    source, state, rules, start = _Counting(), begin(0.0), Rules(), 1e9 - 500.0
    for i, (step, by) in enumerate(steps, 1):
        at = 10.0 * i
        if step == "outage":
            state = advance(
                state, Reading(taken_at=at, wall_time=1e9 + at, error_reason="timeout"), NO_EVIDENCE, Limits()
            )
            continue
        if step in ("restart", "layout"):
            source.run, start = 0.0, 1e9 + at
            source.layout = LAYOUTS[by % len(LAYOUTS)] if step == "layout" else source.layout
        source.grow(by)
        snapshot = EngineSnapshot(
            taken_at=at, wall_time=1e9 + at, source="metrics", dialect="x", engines=(source.engine(),), start_time=start
        )
        state = advance(state, Reading(taken_at=at, wall_time=1e9 + at, snapshot=snapshot), NO_EVIDENCE, Limits())
        rules.check(published(state))
        (now,) = state.engines.values()
        assert now.generation_tokens == source.total == now.finished["stop"]
        assert now.time_to_first_token is not None
        assert math.isclose(now.time_to_first_token.count, source.total, abs_tol=1e-6)
        assert math.isclose(now.time_to_first_token.sum, source.total, abs_tol=1e-6)


RATIOS = (
    cache.hit_rate, cache.rescheduled_hit_rate, cache.external_hit_rate, cache.multimodal_hit_rate,
    speculation.acceptance_rate, phases.overhead_ratio,
)  # fmt: skip
AMOUNTS = (
    cache.fill_seconds, queue.completions_per_second, queue.drain_seconds, queue.preemptions_per_second,
    queue.mean_batch_tokens, phases.prefill_tokens_per_second, phases.decode_tokens_per_second,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(engines(), engines(), st.floats(0, 100))
def test_every_windowed_formula_is_sane_or_absent(before: EngineStats, now: EngineStats, seconds: float) -> None:
    """Between any two states each formula gives a finite figure that is not negative, a ratio within 0–1, or None."""
    seen = Window(before, now, seconds)
    for formula in RATIOS:
        share = formula(seen)
        assert share is None or 0 <= share <= 1, formula
    for formula in AMOUNTS:
        amount = formula(seen)
        assert amount is None or (math.isfinite(amount) and amount >= 0), formula
    parts = phases.phase_ratio(seen)
    assert not parts or math.isclose(sum(parts.values()), 1)
    for share in speculation.acceptance_rate_per_position(seen).values():
        assert 0 <= share <= 1
    length = speculation.mean_accepted_length(seen)
    assert length is None or length >= 1


NUMBERS = st.one_of(st.none(), st.floats())


@given(NUMBERS, NUMBERS)
def test_differences_and_quotients_of_any_numbers(a: float | None, b: float | None) -> None:
    """NaN, infinities, negative and missing numbers never become a difference, quotient or ratio that is none."""
    grown, quotient, ratio = window.difference(a, b), window.quotient(a, b), window.ratio(a, b)
    assert grown is None or (math.isfinite(grown) and grown >= 0)
    assert quotient is None or math.isfinite(quotient)
    assert ratio is None or 0 <= ratio <= 1


@given(st.floats(0, 1), st.sampled_from(LAYOUTS).flatmap(lambda bounds: histograms(st.just(bounds))))
def test_a_quantile_lies_within_the_bounds(q: float, made: Histogram) -> None:
    """A quantile is never beyond the last finite bound, and grows with q."""
    found = window.quantile(made, q)
    if found is not None:
        assert 0 <= found <= max((b for b in made.bounds if math.isfinite(b)), default=0)
        lower = window.quantile(made, q / 2)
        assert lower is not None
        assert lower <= found


@given(
    st.lists(
        st.builds(lambda j, u: GpuStats(uuid="u", index=0, up=True, energy_joules=j, utilization=u), NUMBERS, NUMBERS)
    ),
    NUMBERS,
)
def test_joined_figures_of_any_gpus(gpus: list[GpuStats], waiting: float | None) -> None:
    """Energy is finite and not negative or absent; idleness is known only when every utilisation is."""
    joules = joined.energy(gpus, gpus)
    assert joules is None or joules >= 0
    idle = joined.idle_while_waiting(waiting, gpus)
    assert idle is None or all(g.utilization is not None for g in gpus)


def test_an_engine_without_any_fact_publishes_only_its_state() -> None:
    """An engine that says nothing has no figures, and breaks none."""
    state = begin(0.0)
    for at in (1.0, 2.0):
        snapshot = EngineSnapshot(
            taken_at=at, wall_time=at, source="metrics", dialect="x", engines=(EngineStats(model_name="m"),)
        )
        state = advance(state, Reading(taken_at=at, wall_time=at, snapshot=snapshot), NO_EVIDENCE, Limits())
    assert {s.metric for s in published(state) if len(s.labels) >= 3 and s.labels[1] == "m"} == {
        "vllm_engine_stalled",
        "vllm_engine_livelock",
        "vllm_request_failed_total",
    }
