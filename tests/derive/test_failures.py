"""Failed requests and out-of-memory events: each counted once, none made up."""

from __future__ import annotations

import pytest

from llmobs.derive.target import TargetState
from llmobs.snapshot import FAILURE_REASONS, EngineStats, Evidence, LostRequests, OomEvent, Reading
from tests.derive.conftest import engine, failure, histogram, reading, run, value, values

START = {"start_time": 1.0}
AGAIN = {"start_time": 1e9 + 15}


def busy(tokens: float = 10.0, **facts: object) -> EngineStats:
    """An engine with three requests running and two waiting."""
    return engine(running=3.0, waiting=2.0, generation_tokens=tokens, **facts)


def failed(state: TargetState) -> dict[str, float]:
    return {
        labels[2]: count for labels, count in values(state, "vllm_request_failed_total").items() if labels[0] == "m"
    }


def loss(at: float, count: int, *, id: str = "a", reason: str = "engine_dead", **more: object) -> Evidence:  # noqa: A002
    fields = {"id": id, "time": 1e9 + at, "instance": None, "reason": reason, "count": count, "total": None, **more}
    return Evidence(can_tell=frozenset({"cuda", "host"}), lost=(LostRequests(**fields),))  # type: ignore[arg-type]


def oom(at: float, evidence: str = "log", kind: str = "cuda", id: str | None = None) -> Evidence:  # noqa: A002
    return Evidence(can_tell=frozenset({"cuda", "host"}), ooms=(OomEvent(kind, evidence, 1e9 + at, id),))


def test_clients_that_went_away_are_counted() -> None:
    """First tokens without an end and without a place in the engine are clients that disconnected."""
    facts = {"time_to_first_token": histogram(8, 10), "finished": {"stop": 6.0, "abort": 1.0}, "waiting": 0.0}
    state = run(reading(1.0, engine(running=1.0, **facts)))
    assert failed(state)["abort"] == 2 + 1


def test_requests_in_the_engine_are_no_clients_that_went_away() -> None:
    """While requests run or wait the figure is too low for a moment, never below what it was."""
    ttft = {"time_to_first_token": histogram(8, 10), "finished": {"stop": 7.0}}
    state = run(
        reading(1.0, engine(running=0.0, waiting=0.0, **ttft)), reading(2.0, engine(running=2.0, waiting=1.0, **ttft))
    )
    assert failed(state)["abort"] == 3


def test_a_page_of_several_instants_is_not_subtracted() -> None:
    """In multi-process mode gauges and counters are of different ages: abort is unknown, hence absent."""
    facts = {"time_to_first_token": histogram(8, 10), "finished": {"stop": 6.0}, "running": 0.0, "waiting": 0.0}
    assert "abort" not in failed(run(reading(1.0, engine(**facts), consistent=False)))


def test_reasons_a_page_cannot_know_are_absent() -> None:
    """A page of vLLM knows neither timeouts nor out of memory nor bad requests."""
    state = run(reading(1.0, engine(running=0.0, waiting=0.0, finished={"error": 1.0})))
    assert failed(state) == {"engine_dead": 0, "error": 1}


def test_all_reasons_of_stats_are_there_from_the_start() -> None:
    """/stats counts every failure: each reason of the closed set is published, also at 0."""
    state = run(reading(1.0, engine(failed={"timeout": 2.0}), source="stats"))
    assert failed(state) == {**dict.fromkeys(FAILURE_REASONS, 0.0), "timeout": 2.0}


@pytest.mark.parametrize("last", [failure(11, "timeout", health=503), failure(11, "refused")])
def test_a_death_loses_what_was_in_flight_within_two_cycles(last: Reading) -> None:
    """The engine dies with five requests: one cycle later they are failed, once."""
    first = reading(10, busy(), **START)
    assert failed(run(first, last))["engine_dead"] == 0
    again = failure(12, "refused")
    assert failed(run(first, last, again))["engine_dead"] == 5
    assert (
        failed(run(first, last, again, failure(13), reading(20, busy(1.0), **AGAIN), reading(25, busy(2.0), **AGAIN)))[
            "engine_dead"
        ]
        == 5
    )


def test_a_death_between_two_cycles_is_seen_by_the_restart() -> None:
    """A server that died and came back meanwhile has lost what was in flight."""
    state = run(reading(10, busy(), **START), reading(20, busy(1.0), **AGAIN), reading(25, busy(2.0), **AGAIN))
    assert failed(state)["engine_dead"] == 5


def test_a_timeout_is_no_death() -> None:
    """A server that does not answer for a moment has lost nothing."""
    state = run(
        reading(10, busy(), **START), failure(11, "timeout"), failure(12, "timeout"), reading(20, busy(), **START)
    )
    assert failed(state)["engine_dead"] == 0


def test_what_was_in_flight_long_ago_is_not_lost_now() -> None:
    """After an hour without an answer nobody knows what was in flight when the server died."""
    state = run(
        reading(10, busy(), **START), failure(20, "timeout"), failure(3600, "refused"), failure(3601, "refused")
    )
    assert failed(state)["engine_dead"] == 0


def test_a_death_beside_an_oom_is_oom() -> None:
    """Requests lost together with an out-of-memory event failed because of it."""
    state = run(reading(10, busy(), **START), failure(11), failure(12), evidence={2: oom(11)})
    assert failed(state) == {"engine_dead": 0, "oom": 5}
    assert values(state, "vllm_oom_total") == {("cuda",): 1, ("host",): 0}
    assert values(state, "vllm_oom_evidence_total") == {("log",): 1}


def test_an_oom_long_ago_is_not_the_reason() -> None:
    """An event more than a minute away does not explain a death."""
    state = run(reading(10, busy(), **START), failure(111), failure(112), evidence={0: oom(10)})
    assert failed(state)["oom"] == 0


def test_the_journal_replaces_what_was_inferred() -> None:
    """The journal's count is exact, whether it is read before or after the inference was booked."""
    for late in (2, 3):
        readings = [reading(10, busy(), **START), failure(11), failure(12), failure(13), failure(14)]
        state = run(*readings, evidence={late: loss(11, 5, reason="oom")})
        assert sum(failed(state).values()) == 5, late


def test_a_journal_entry_is_counted_once_however_often_it_is_read() -> None:
    """The entry's id names the event."""
    state = run(reading(10, busy(), **START), failure(11), failure(12), evidence={1: loss(11, 4), 2: loss(11, 4)})
    assert failed(state)["engine_dead"] == 4


def test_two_journal_entries_are_two_events() -> None:
    """Two API servers each tell of their own requests."""
    state = run(reading(10, busy(), **START), failure(11), evidence={1: loss(11, 4)})
    both = run(
        reading(10, busy(), **START), failure(11), failure(12), evidence={1: loss(11, 4), 2: loss(11, 3, id="b")}
    )
    assert failed(state)["engine_dead"] == 4
    assert failed(both)["engine_dead"] == 7


@pytest.mark.parametrize(("total", "expected"), [(7, 7), (2, 2), (None, 2)])
def test_failures_that_stats_already_had_are_not_counted_again(total: int | None, expected: float) -> None:
    """`total` says how many of this run and reason there are; without it the later of the two accounts counts."""
    stats = {"source": "stats", "instance": "i"}
    first = reading(10, engine(running=0.0, waiting=0.0, failed={"oom": 2.0}), **stats)
    evidence = loss(9, 5, reason="oom", instance="i", total=total)
    state = run(
        first, reading(11, engine(running=0.0, waiting=0.0, failed={"oom": 2.0}), **stats), evidence={1: evidence}
    )
    assert failed(state)["oom"] == expected


def test_losses_of_an_engine_never_seen_are_published() -> None:
    """A server that dies while it starts leaves only its journal."""
    state = run(failure(1.0), failure(2.0), evidence={1: loss(1, 3, model_name="m", engine="0")})
    assert failed(state)["engine_dead"] == 3


@pytest.mark.parametrize("reason", ["error", "abort", "rejected"])
def test_losses_add_to_what_the_page_counts(reason: str) -> None:
    """A reason that both the page and the journal know is the sum of both."""
    facts = {
        "finished": {"error": 2.0, "abort": 2.0}, "admission_rejections": {"x": 2.0}, "running": 0.0, "waiting": 0.0,
        "time_to_first_token": histogram(4, 4),
    }  # fmt: skip
    state = run(reading(1.0, engine(**facts)), reading(2.0, engine(**facts)), evidence={1: loss(1, 3, reason=reason)})
    assert failed(state)[reason] == 5


def test_pieces_of_evidence_of_one_event_are_one_event() -> None:
    """Log, kernel and process all tell of the same death within a minute."""
    readings = [reading(float(at), engine(running=0.0)) for at in range(1, 5)]
    state = run(*readings, evidence={0: oom(1), 1: oom(2, "in_process", id="A"), 2: oom(3, "cgroup"), 3: oom(4)})
    assert values(state, "vllm_oom_total")["cuda",] == 1
    assert values(state, "vllm_oom_evidence_total") == {("cgroup",): 1, ("in_process",): 1, ("log",): 2}


def test_named_events_are_told_apart_however_close() -> None:
    """Two events with names of their own are two, also with a nameless piece of evidence between them."""
    readings = [reading(float(at), engine(running=0.0)) for at in range(1, 4)]
    state = run(*readings, evidence={0: oom(1, "in_process", id="A"), 1: oom(2), 2: oom(3, "in_process", id="B")})
    assert values(state, "vllm_oom_total")["cuda",] == 2


def test_a_crash_loop_is_more_than_one_event() -> None:
    """Evidence every fifty seconds does not stay one event for ever."""
    readings = [reading(50.0 * i, engine(running=0.0)) for i in range(1, 7)]
    state = run(*readings, evidence={i: oom(50.0 * (i + 1)) for i in range(6)})
    assert values(state, "vllm_oom_total")["cuda",] == 3


def test_kinds_are_told_apart() -> None:
    """The GPU's and the host's memory are two things."""
    state = run(
        reading(1.0, engine(running=0.0)), reading(2.0, engine()), evidence={0: oom(1), 1: oom(2, "cgroup", "host")}
    )
    assert values(state, "vllm_oom_total") == {("cuda",): 1, ("host",): 1}


def test_without_evidence_oom_is_absent() -> None:
    """What nothing could have shown is absent, not 0."""
    assert values(run(reading(1.0, engine(running=0.0))), "vllm_oom_total") == {}


def test_ooms_of_stats_do_not_fall_when_a_journal_appears() -> None:
    """A second account that begins at 0 does not turn the counter back."""
    stats = [reading(at, engine(oom={"cuda": 3.0}), source="stats") for at in (1.0, 2.0, 3.0)]
    state = run(*stats, evidence={1: Evidence(can_tell=frozenset({"cuda"})), 2: oom(3)})
    assert values(state, "vllm_oom_total")["cuda",] == 4


def test_failures_stay_while_the_target_is_down() -> None:
    """That is when they matter."""
    state = run(reading(10, busy(), **START), failure(11), failure(12))
    assert value(state, "vllm_up") == 0
    assert failed(state)["engine_dead"] == 5


def test_failures_do_not_fall_when_the_source_changes() -> None:
    """What was inferred from the page and what /stats counts go on from one another."""
    facts = {"time_to_first_token": histogram(8, 10), "finished": {"stop": 6.0}, "running": 0.0, "waiting": 0.0}
    state = run(
        reading(1.0, engine(**facts)),
        reading(2.0, engine(failed={"abort": 1.0}), source="stats"),
        reading(3.0, engine(failed={"abort": 2.0}), source="stats"),
    )
    assert failed(state)["abort"] == 5
