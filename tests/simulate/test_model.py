"""The model is consistent by construction: whatever goes in is somewhere, and its figures agree with each other."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmobs.simulate import SimulatedVllm, facts, load, names
from llmobs.simulate.scenario import (
    Connector,
    EngineSettings,
    Event,
    Lengths,
    ModelSettings,
    Prefixes,
    Scenario,
    Speculation,
    Traffic,
)
from llmobs.snapshot import EngineStats, Histogram
from tests.simulate.runs import run, wall


def check(server: SimulatedVllm) -> None:
    """Assert everything that must hold of a server at any moment."""
    totals = server.totals()
    assert totals.arrived == totals.finished + totals.failed + server.in_flight
    for _, _, engine in server.engines():
        assert engine.pool.used + engine.pool.cached <= engine.pool.total
        assert len(engine.running) <= engine.settings.max_num_seqs
        held = sum(r.blocks for r in engine.running)
        if server.phase == "ready" and not any(r.left for r in engine.running):
            assert engine.pool.held == held
        for request in engine.running:
            have = (request.blocks + request.shared) * engine.settings.block_size
            assert request.computed <= have
    if server.listening:
        for stats in facts.snapshot(server, taken_at=0.0).engines:
            check_facts(stats, server)


def check_facts(stats: EngineStats, server: SimulatedVllm) -> None:
    """Assert what must hold among the facts of one engine."""
    assert stats.waiting == sum(stats.waiting_by_reason.values())
    assert 0 <= (stats.kv_cache_usage or 0) <= 1
    assert stats.prompt_tokens == sum(stats.prompt_tokens_by_source.values())
    assert (stats.prefix_hits or 0) <= (stats.prefix_queries or 0)
    assert (stats.prefix_preempted_hits or 0) <= (stats.prefix_preempted_queries or 0)
    assert (stats.external_hits or 0) <= (stats.external_queries or 0)
    assert sum(stats.cached_tokens_by_tier.values()) == (stats.prefix_hits or 0) + (stats.external_hits or 0)
    finished = sum(stats.finished.values()) - stats.finished["abort"]
    for histogram in (
        stats.e2e_latency, stats.queue_time, stats.prefill_time, stats.decode_time, stats.inference_time,
        stats.time_per_output_token, stats.prompt_length, stats.generation_length, stats.preemptions_per_request,
        stats.prefill_computed_length, stats.n_param, stats.max_tokens_param,
    ):  # fmt: skip
        assert histogram is not None
        assert histogram.count == finished
        assert list(histogram.counts) == sorted(histogram.counts)
    queue, prefill, decode, inference, e2e = (
        h.sum
        for h in (stats.queue_time, stats.prefill_time, stats.decode_time, stats.inference_time, stats.e2e_latency)
        if h is not None
    )
    overhead = server.scenario.models[0].engine.overhead_seconds
    assert prefill + decode == pytest.approx(inference, abs=1e-6)
    assert queue + inference + overhead * finished == pytest.approx(e2e, abs=1e-6)
    steps, inter_token = stats.step_tokens, stats.inter_token_latency
    assert steps is not None
    assert inter_token is not None
    computed = stats.prompt_tokens_by_source["local_compute"]
    assert steps.sum == computed + (stats.generation_tokens or 0)
    by_position = [h for bucket, h in stats.decode_step_latency.items() if bucket != "0"]
    assert sum(h.count for h in by_position) == inter_token.count
    assert sum(h.sum for h in by_position) == pytest.approx(inter_token.sum, abs=1e-6)
    if stats.spec_drafts is not None:
        per_position = list(stats.spec_accepted_per_position.values())
        assert sum(per_position) == stats.spec_accepted_tokens
        assert per_position == sorted(per_position, reverse=True)
        assert all(accepted <= stats.spec_drafts for accepted in per_position)
        assert (stats.spec_accepted_tokens or 0) <= (stats.spec_draft_tokens or 0)


@pytest.mark.parametrize("name", names())
def test_conservation(name: str) -> None:
    """In every scenario nothing is lost or counted twice, at any time."""
    server = SimulatedVllm(load(name), wall=wall)
    for second in range(1, 80, 5):
        server.advance(second)
        check(server)


lengths = st.builds(Lengths, mean=st.floats(1, 3000), spread=st.floats(0, 1.5), minimum=st.integers(1, 50))
traffics = st.builds(
    Traffic,
    rate=st.floats(0.1, 8),
    daily_swing=st.floats(0, 1),
    day_seconds=st.floats(5, 100),
    prompt=lengths,
    output=st.builds(Lengths, mean=st.floats(1, 300)),
    max_tokens=st.integers(1, 600),
    prefix=st.builds(
        Prefixes, families=st.integers(1, 20), tokens=st.integers(0, 2000), share=st.floats(0, 1), skew=st.floats(0, 2)
    ),
    follow_up_ratio=st.floats(0, 0.8),
    think_seconds=st.floats(0, 5),
    timeout_seconds=st.none() | st.floats(0.1, 20),
    abort_ratio=st.floats(0, 0.5),
    error_ratio=st.floats(0, 0.2),
    invalid_ratio=st.floats(0, 0.2),
    structured_ratio=st.floats(0, 0.5),
    adapters=st.sampled_from([(), ("a", "b", "c")]),
)
engines = st.builds(
    EngineSettings,
    max_num_seqs=st.integers(1, 40),
    max_num_batched_tokens=st.integers(16, 5000),
    max_model_len=st.integers(600, 8000),
    kv_blocks=st.integers(20, 800),
    block_size=st.sampled_from([1, 16, 128]),
    prefix_caching=st.booleans(),
    max_num_queued_reqs=st.none() | st.integers(0, 30),
    max_loras=st.integers(1, 3),
    speculation=st.builds(Speculation, tokens=st.integers(0, 5), acceptance=st.floats(0, 1)),
    connector=st.builds(Connector, enabled=st.booleans(), hit_ratio=st.floats(0, 1), failure_ratio=st.floats(0, 1)),
    kv_cache_metrics=st.booleans(),
    mfu_metrics=st.booleans(),
)
events = st.builds(
    Event,
    kind=st.sampled_from(
        ["traffic", "slow", "draft_mismatch", "hang", "sleep", "oom", "host_oom", "engine_death", "restart",
         "abort_all", "oversized"]
    ),
    at=st.floats(0, 20),
    every=st.none() | st.floats(5, 30),
    duration=st.floats(0, 15),
    factor=st.floats(0.1, 4),
    rate_factor=st.none() | st.floats(0, 5),
    prefix_share=st.none() | st.floats(0, 1),
)  # fmt: skip


@given(
    st.builds(
        Scenario,
        seed=st.integers(0, 1000),
        models=st.tuples(st.builds(ModelSettings, engines=st.integers(1, 3), engine=engines, traffic=traffics)),
        events=st.lists(events, max_size=3).map(tuple),
        load_seconds=st.floats(0, 5),
        exit_seconds=st.floats(0, 3),
        down_seconds=st.floats(0, 3),
    ),
    st.lists(st.floats(0, 10), min_size=1, max_size=4),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_scenario_is_consistent(scenario: Scenario, pauses: list[float]) -> None:
    """Whatever the settings, the traffic and the accidents: the figures agree, and counters of one run never fall."""
    server = SimulatedVllm(scenario, wall=wall)
    at = 0.0
    before: dict[str, float] = {}
    instance = server.process.instance
    for pause in pauses:
        at += pause
        server.advance(at)
        check(server)
        if server.process.instance != instance or not server.listening:
            before, instance = {}, server.process.instance
        if server.listening:
            now = facts.snapshot(server, taken_at=0.0).engines[0]
            counters = {
                "generated": now.generation_tokens or 0,
                "prompt": now.prompt_tokens or 0,
                "preemptions": now.preemptions or 0,
                "failed": sum(now.failed.values()),
                "steps": now.step_tokens.count if now.step_tokens else 0,
            }
            assert all(counters[name] >= value for name, value in before.items())
            before = counters


@given(st.lists(st.floats(0.01, 7), min_size=2, max_size=12))
@settings(max_examples=15, deadline=None)
def test_looking_changes_nothing(pauses: list[float]) -> None:
    """The outcome does not depend on how often and when one looks."""
    watched, unwatched = (SimulatedVllm(load("all-features"), wall=wall) for _ in range(2))
    for pause in pauses:
        watched.advance(watched.now + pause)
        facts.snapshot(watched, taken_at=0.0)
    unwatched.advance(watched.now)
    assert facts.snapshot(watched, taken_at=0.0) == facts.snapshot(unwatched, taken_at=0.0)


def test_seed_decides() -> None:
    """Another seed is another run."""
    one = load("steady-chat")
    runs = [SimulatedVllm(dataclasses.replace(one, seed=seed), wall=wall) for seed in (1, 2)]
    for server in runs:
        server.advance(30)
    assert runs[0].totals() != runs[1].totals()


def test_littles_law() -> None:
    """Requests in the system = arrival rate × time in the system, within 5 %."""
    server = SimulatedVllm(load("steady-chat"), wall=wall)
    server.advance(100)
    before, arrived = facts.snapshot(server, taken_at=0).engines[0], server.totals().arrived
    inside = []
    for step in range(2000):
        server.advance(100 + (step + 1) * 0.5)
        inside.append(server.in_flight)
    after = facts.snapshot(server, taken_at=0).engines[0]
    assert before.e2e_latency is not None
    assert after.e2e_latency is not None
    count = after.e2e_latency.count - before.e2e_latency.count
    overhead = server.scenario.models[0].engine.overhead_seconds
    stay = (after.e2e_latency.sum - before.e2e_latency.sum) / count - overhead
    rate = (server.totals().arrived - arrived) / 1000
    assert statistics.mean(inside) == pytest.approx(rate * stay, rel=0.05)


def test_arrivals_follow_the_rate() -> None:
    """A Poisson process brings as many requests as its rate says, within four standard deviations."""
    server = SimulatedVllm(load("errors"), wall=wall)
    server.advance(1000)
    expected = 3.0 * 1000
    assert abs(server.totals().arrived - expected) < 4 * expected**0.5


def test_hit_rate_is_the_shared_part() -> None:
    """When every prompt begins with one of six known prefixes, the hit rate is the prefix's share of the prompt."""
    stats = run("cache-unfriendly", 115).last
    assert stats.prefix_hits is not None
    assert stats.prefix_queries
    assert stats.prompt_length is not None
    mean = stats.prompt_length.sum / stats.prompt_length.count
    assert stats.prefix_hits / stats.prefix_queries == pytest.approx(2048 / mean, rel=0.03)


def test_step_time_is_what_the_settings_say() -> None:
    """One sequence alone is decoded at the base time plus its own and its context's share."""
    scenario = Scenario(
        models=(
            ModelSettings(
                traffic=Traffic(rate=0.01, prompt=Lengths(mean=1000, spread=0), output=Lengths(mean=500, spread=0))
            ),
        )
    )
    server = SimulatedVllm(scenario, wall=wall)
    while not (server.totals().finished and not server.in_flight):
        server.advance(server.now + 20)
    stats = facts.snapshot(server, taken_at=0).engines[0]
    step = scenario.models[0].engine.step
    histogram = stats.inter_token_latency
    assert histogram is not None
    assert stats.prompt_length is not None
    context = stats.prompt_length.sum / stats.prompt_length.count + 250
    expected = step.base_seconds + step.decode_seconds_per_sequence + context * step.context_seconds_per_token
    assert histogram.sum / histogram.count == pytest.approx(expected, rel=0.02)


def test_exemplars_lie_in_their_buckets() -> None:
    """An exemplar is an observation of its bucket, with a trace id, at a time that has passed."""
    stats = run("steady-chat").last
    seen = 0
    for histogram in (stats.time_to_first_token, stats.e2e_latency, *stats.decode_step_latency.values()):
        assert isinstance(histogram, Histogram)
        for index, exemplar in enumerate(histogram.exemplars):
            if exemplar is not None:
                lower = histogram.bounds[index - 1] if index else 0.0
                assert lower < exemplar.value <= histogram.bounds[index]
                assert len(exemplar.trace_id) == 32
                assert exemplar.timestamp <= wall(180)
                seen += 1
    assert seen > 10
