"""The state of a target in one word, progress, peaks and the sliding window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmobs.derive.target import Limits, advance, begin, quiet_seconds
from llmobs.snapshot import Reading
from tests.derive.conftest import NO_EVIDENCE, engine, failure, reading, run, value, values

KEY = ("m", "0")


def test_a_server_that_never_answered_is_starting_within_its_budget() -> None:
    """Refused connections are a model still loading, until the start budget is spent."""
    limits = Limits(start_budget_seconds=100)
    assert run(failure(1.0), limits=limits).word == "starting"
    assert run(failure(1.0), failure(100.0), limits=limits).word == "starting"
    late = run(failure(1.0), failure(100.5), limits=limits)
    assert late.word == "unreachable"
    assert value(late, "vllm_engine_state_age_seconds") == 0


@pytest.mark.parametrize("reason", ["auth", "tls", "redirect", "parse", "too_large"])
def test_what_no_start_explains_is_unreachable_at_once(reason: str) -> None:
    """A wrong key or certificate does not go away by waiting."""
    assert run(failure(1.0, reason)).word == "unreachable"


def test_a_server_that_was_up_is_unreachable() -> None:
    """After it once answered, a server that does not is not starting."""
    assert run(reading(1.0, engine(running=0)), failure(2.0)).word == "unreachable"


@pytest.mark.parametrize("last", [failure(2.0, "timeout", health=503), reading(2.0, engine(running=1), health=503)])
def test_health_503_is_a_dead_engine_and_takes_its_figures_along(last: Reading) -> None:
    """A frozen page beside /health 503 is not published: the engine is dead."""
    state = run(reading(1.0, engine(running=1)), last)
    assert state.word == "dead"
    assert value(state, "vllm_up") == 0
    assert value(state, "vllm_num_running_requests") is None


def test_503_before_the_first_page_is_a_server_still_starting() -> None:
    """A proxy that says 503 while the server loads does not make the engine dead."""
    assert run(failure(1.0, "http", health=503)).word == "starting"


def test_a_sleeping_engine_is_sleeping() -> None:
    """`awake` 0 is sleep."""
    assert run(reading(1.0, engine(sleep_state={"awake": 0, "discard_all": 1}))).word == "sleeping"


def test_exactly_one_state_is_one() -> None:
    """Of all states one is 1, whatever happened."""
    for state in (begin(0.0), run(failure(1.0)), run(reading(1.0, engine(running=1)))):
        assert sum(values(state, "vllm_engine_state").values()) == 1


def moving(until: int, **facts: float) -> Iterator[Reading]:
    for at in range(1, until):
        yield reading(at, engine(running=1.0, waiting=0.0, **facts))


def test_work_without_progress_is_a_stall() -> None:
    """Requests run, no token and no step comes for the stall time, /health says 200: stalled."""
    state = run(*moving(30, generation_tokens=5.0))
    assert (state.word, quiet_seconds(state, KEY)) == ("ready", 28)
    state = run(*moving(33, generation_tokens=5.0))
    assert state.word == "stalled"
    assert value(state, "vllm_engine_stalled") == 1
    assert value(state, "vllm_engine_seconds_since_progress") == 31


def test_one_token_ends_a_stall() -> None:
    """Progress of any kind begins the time anew."""
    state = run(*moving(40, generation_tokens=5.0), reading(40, engine(running=1.0, generation_tokens=6.0)))
    assert state.word == "ready"
    assert quiet_seconds(state, KEY) == 0


def test_no_work_is_no_stall() -> None:
    """An idle engine makes no progress and is healthy; its time since progress is absent."""
    state = run(*(reading(at, engine(running=0.0, waiting=0.0, generation_tokens=5.0)) for at in range(1, 100)))
    assert state.word == "ready"
    assert value(state, "vllm_engine_seconds_since_progress") is None


def test_waiting_begins_when_work_comes() -> None:
    """The time without progress counts from when work appeared, not from the last token long ago."""
    idle = [reading(at, engine(running=0.0, waiting=0.0, generation_tokens=5.0)) for at in range(1, 100)]
    state = run(*idle, reading(100, engine(running=0.0, waiting=1.0, generation_tokens=5.0)))
    assert quiet_seconds(state, KEY) == 0


def test_the_sources_own_time_without_progress_wins() -> None:
    """/stats knows it exactly."""
    assert run(reading(1.0, engine(running=1.0, seconds_since_progress=40.0))).word == "stalled"


def test_prefill_again_and_again_is_a_livelock() -> None:
    """Preemptions or repeated look-ups by the same requests without a token are a livelock, not a hang."""
    preempted = [reading(at, engine(running=1.0, generation_tokens=5.0, preemptions=float(at))) for at in range(1, 40)]
    looked_up = [
        reading(at, engine(running=1.0, generation_tokens=5.0, prefix_queries=9.0 * at)) for at in range(1, 40)
    ]
    for readings in (preempted, looked_up):
        state = run(*readings)
        assert state.word == "livelock"
        assert value(state, "vllm_engine_livelock") == 1
        assert value(state, "vllm_engine_stalled") == 0


def test_a_queue_that_grows_before_a_hang_is_no_livelock() -> None:
    """New requests look their prefixes up once; that is no churn."""
    readings = [
        reading(at, engine(running=1.0, waiting=float(at), generation_tokens=5.0, prefix_queries=9.0 * at))
        for at in range(1, 40)
    ]
    assert run(*readings).word == "stalled"


def test_a_hang_in_one_rank_shows_although_the_other_moves() -> None:
    """Each rank is judged for itself, and one is enough for the target's state."""
    readings = [
        reading(at, *(engine(engine=e, running=1.0, generation_tokens=n) for e, n in (("0", 1.0), ("1", float(at)))))
        for at in range(1, 40)
    ]  # fmt: skip
    state = run(*readings)
    assert state.word == "stalled"
    assert values(state, "vllm_engine_stalled") == {("m", "0"): 1, ("m", "1"): 0}


def test_an_outage_begins_the_time_without_progress_anew() -> None:
    """What was not seen is not counted as a stall."""
    state = run(
        *moving(20, generation_tokens=5.0),
        failure(20, "timeout"),
        reading(50, engine(running=1.0, generation_tokens=5.0)),
    )
    assert state.word == "ready"


def test_a_peak_is_kept_for_its_interval() -> None:
    """A spike between two scrapes shows in the peak, and leaves it after the peak interval."""
    limits = Limits(peak_seconds=10)
    spike = [reading(1.0, engine(waiting=0.0)), reading(2.0, engine(waiting=9.0)), reading(3.0, engine(waiting=1.0))]
    state = run(*spike, limits=limits)
    assert value(state, "vllm_request_waiting_queue_length") == 1
    assert value(state, "vllm_request_waiting_queue_length_peak") == 9
    late = run(*spike, *(reading(float(at), engine(waiting=1.0)) for at in range(4, 14)), limits=limits)
    assert value(late, "vllm_request_waiting_queue_length_peak") == 1


def test_a_peak_does_not_outlive_the_target() -> None:
    """A target that stops answering loses its peaks, too."""
    state = run(reading(1.0, engine(waiting=9.0)), failure(2.0))
    assert value(state, "vllm_request_waiting_queue_length_peak") is None


def test_a_usage_above_one_is_absent_everywhere() -> None:
    """A KV usage that is no ratio is not shown, nor in the peak."""
    state = run(reading(1.0, engine(kv_cache_usage=1.5, cpu_kv_cache_usage=2.0)))
    for metric in ("vllm_kv_cache_usage_ratio", "vllm_kv_cache_usage_ratio_peak", "vllm_cpu_kv_cache_usage_ratio"):
        assert value(state, metric) is None


@pytest.mark.parametrize("interval", [0.2, 1.0, 5.0, 7.0, 50.0])
def test_the_window_is_as_long_as_asked_for(interval: float) -> None:
    """With any interval the window is at least its length and at most one step more, in few moments of memory."""
    count = int(200 / interval) + 2
    state = run(*(reading(i * interval + 1, engine(generation_tokens=10.0 * i * interval)) for i in range(count)))
    seen = state.window(KEY)
    assert seen is not None
    assert 60 <= seen.seconds <= 60 + max(interval, 10.0) + 1e-6
    assert len(state.history) <= 16
    assert value(state, "vllm_decode_throughput_tokens_per_second") == pytest.approx(10.0)


def test_the_window_begins_with_the_second_reading() -> None:
    """One reading has no rates; two have."""
    assert run(reading(1.0, engine(generation_tokens=0.0))).window(KEY) is None
    two = run(reading(1.0, engine(generation_tokens=0.0)), reading(2.0, engine(generation_tokens=7.0)))
    assert value(two, "vllm_decode_throughput_tokens_per_second") == 7


def test_what_happened_in_an_outage_is_not_the_windows() -> None:
    """After a gap the window begins anew."""
    state = run(
        reading(1.0, engine(generation_tokens=0.0)),
        failure(2.0, "timeout"),
        reading(3.0, engine(generation_tokens=50.0)),
    )
    assert state.window(KEY) is None
    gap = run(reading(1.0, engine(generation_tokens=0.0)), reading(100.0, engine(generation_tokens=50.0)))
    assert gap.window(KEY) is None


def test_a_reading_out_of_order_changes_nothing() -> None:
    """An older reading that comes late does not turn counters back."""
    state = run(reading(5.0, engine(generation_tokens=9.0)))
    assert advance(state, reading(4.0, engine(generation_tokens=3.0)), NO_EVIDENCE, Limits()) == state


def test_a_server_that_invents_engines_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models that come and go without end only the last are remembered."""
    monkeypatch.setattr("llmobs.derive.target.MAX_KNOWN", 20)
    state = begin(0.0)
    for at in range(1, 100):
        state = advance(state, reading(at, engine(model_name=f"m{at}", running=1.0)), NO_EVIDENCE, Limits())
    assert len(state.known) == len(state.carries) == 20
    assert ("m99", "0") in state.known
    assert len(state.failed) <= 21 * 8


def test_label_values_from_outside_are_capped_and_counted() -> None:
    """A thousand adapters become 64 series; those left out are counted."""
    from llmobs.derive.publish import samples

    state = run(
        reading(
            1.0,
            engine(lora_running={f"a{i}": 1.0 for i in range(1000)}),
            http_responses={str(i): 1.0 for i in range(100)},
        )
    )
    found, dropped = samples(state, "t", Limits(), max_label_values=64)
    assert sum(s.metric == "vllm_lora_running_requests" for s in found) == 64
    assert dropped == (1000 - 64) + (100 - 64)
