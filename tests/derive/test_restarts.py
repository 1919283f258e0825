"""Counters over restarts, changes of source, and engines that come and go."""

from __future__ import annotations

from llmobs.derive.target import Limits, advance, begin
from tests.derive.conftest import NO_EVIDENCE, engine, histogram, reading, run, value, values


def test_a_restart_by_start_time_is_counted_once() -> None:
    """Another start time is one restart, and totals go on from where they were."""
    state = run(
        reading(10, engine(generation_tokens=100.0), start_time=1.0),
        reading(20, engine(generation_tokens=5.0), start_time=1e9 + 15),
        reading(30, engine(generation_tokens=9.0), start_time=1e9 + 15),
    )
    assert value(state, "vllm_engine_restarts_total") == 1
    assert value(state, "vllm_decode_tokens_total") == 109


def test_a_restart_that_overtook_the_old_counters_is_seen() -> None:
    """With another start time a counter that is already higher than before is added, too."""
    state = run(
        reading(10, engine(generation_tokens=100.0), start_time=1.0),
        reading(900, engine(generation_tokens=150.0), start_time=1e9 + 15),
    )
    assert value(state, "vllm_decode_tokens_total") == 250


def test_without_a_start_time_one_counter_going_back_restarts_all() -> None:
    """All counters of a server restart together, also those that grew."""
    state = run(
        reading(10, engine(generation_tokens=100.0, prompt_tokens=5.0)),
        reading(20, engine(generation_tokens=1.0, prompt_tokens=7.0)),
    )
    assert value(state, "vllm_engine_restarts_total") == 1
    assert value(state, "vllm_decode_tokens_total") == 101
    assert value(state, "vllm_prompt_tokens_total") == 12


def test_a_small_step_of_the_clock_is_no_restart() -> None:
    """The start time of one process wobbles by hundredths of a second."""
    state = run(
        reading(10, engine(generation_tokens=1.0), start_time=100.0),
        reading(20, engine(generation_tokens=2.0), start_time=100.4),
    )
    assert value(state, "vllm_engine_restarts_total") == 0


def test_the_hit_rate_since_start_is_this_runs() -> None:
    """After a restart the lifetime hit rate begins anew, while the totals go on."""
    state = run(
        reading(10, engine(prefix_queries=100.0, prefix_hits=0.0, prefix_cache_unit="tokens"), start_time=1.0),
        reading(20, engine(prefix_queries=10.0, prefix_hits=5.0, prefix_cache_unit="tokens"), start_time=1e9 + 15),
    )
    assert value(state, "vllm_gpu_cache_hit_rate_since_start") == 0.5
    assert value(state, "vllm_prefix_cache_queries_total") == 110


STATS = {"source": "stats", "start_time": 1e9 - 90.0, "instance": "i"}
PAGE = {"source": "metrics", "start_time": 1e9 - 100.0}


def test_a_change_of_source_is_no_restart() -> None:
    """/stats and /metrics count from other start times and at other moments: totals go on, nothing is doubled."""
    state = run(
        reading(10, engine(generation_tokens=100.0, finished={"stop": 7.0}), **PAGE),
        reading(20, engine(generation_tokens=98.0, finished={"stop": 9.0}), **STATS),
        reading(30, engine(generation_tokens=108.0, finished={"stop": 9.0}), **STATS),
        reading(40, engine(generation_tokens=112.0, finished={"stop": 8.0}), **PAGE),
    )
    assert value(state, "vllm_engine_restarts_total") == 0
    assert value(state, "vllm_decode_tokens_total") == 112 + 2
    assert values(state, "vllm_request_finished_total") == {("m", "0", "stop"): 9}


def test_a_restart_during_a_change_of_source_is_seen() -> None:
    """What began after the last reading is another process, whoever says it."""
    state = run(
        reading(10, engine(generation_tokens=100.0), **PAGE),
        reading(90, engine(generation_tokens=5.0), source="stats", start_time=1e9 + 50.0, instance="j"),
    )
    assert value(state, "vllm_engine_restarts_total") == 1
    assert value(state, "vllm_decode_tokens_total") == 105


def test_buckets_of_another_source_do_not_fall() -> None:
    """The finer buckets of /stats replace vLLM's; bounds that both have never fall, and come back whole."""
    fine, coarse = (0.5, 1.0, 10.0), (1.0, 10.0)
    readings = [
        reading(10, engine(time_to_first_token=histogram(4, 8, 9, bounds=coarse)), **PAGE),
        reading(20, engine(time_to_first_token=histogram(2, 4, 7, 9, bounds=fine)), **STATS),
        reading(30, engine(time_to_first_token=histogram(2, 4, 8, 10, bounds=fine)), **STATS),
        reading(40, engine(time_to_first_token=histogram(5, 9, 11, bounds=coarse)), **PAGE),
    ]
    state = run(*readings)
    found = value(state, "vllm_time_to_first_token_seconds")
    assert dict(zip(found.bounds, found.counts))[1.0] >= 4
    assert found.counts[1] >= 9
    assert found.count >= 11


def test_part_of_a_server_that_vanishes_does_not_lower_its_totals() -> None:
    """The same instance with lower counters (an API server left the sum) goes on from where it was."""
    state = run(
        reading(10, engine(generation_tokens=100.0), **STATS),
        reading(20, engine(generation_tokens=60.0), **STATS),
        reading(30, engine(generation_tokens=70.0), **STATS),
    )
    assert value(state, "vllm_decode_tokens_total") == 110
    assert value(state, "vllm_engine_restarts_total") == 0


def test_an_engine_that_comes_back_goes_on() -> None:
    """A rank that was away over a restart keeps its total."""
    both = [engine(engine=e, generation_tokens=10.0) for e in "01"]
    state = run(
        reading(10, *both, start_time=1.0),
        reading(20, engine(engine="0", generation_tokens=1.0), start_time=1e9 + 15),
        reading(30, *(engine(engine=e, generation_tokens=2.0) for e in "01"), start_time=1e9 + 15),
    )
    assert values(state, "vllm_decode_tokens_total") == {("m", "0"): 12, ("m", "1"): 12}


def test_computed_tokens_never_fall_while_hits_run_ahead() -> None:
    """Hits are counted when scheduled, prompt tokens at the first token: the difference stands still meanwhile."""
    facts = [(1000.0, 500.0), (1000.0, 800.0), (1600.0, 800.0)]
    state = begin(0.0)
    seen = []
    for at, (prompt, hits) in enumerate(facts, 1):
        said = engine(prompt_tokens=prompt, prefix_hits=hits, prefix_queries=prompt + 300, prefix_cache_unit="tokens")
        state = advance(state, reading(at, said), NO_EVIDENCE, Limits())
        seen.append(value(state, "vllm_prefill_tokens_computed_total"))
    assert seen == [500, 500, 800]
