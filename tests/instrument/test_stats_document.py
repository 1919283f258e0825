"""The ledger and its document, fed with statistics objects of vLLM's shape, and docs/stats.md."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmobs import stats
from llmobs.instrument import runtime as runtimes
from llmobs.instrument import share, stats_page
from llmobs.instrument.clients import Clients
from llmobs.instrument.guard import guard
from llmobs.instrument.latencies import position_bucket
from llmobs.instrument.ledger import EngineLedger
from llmobs.instrument.logs import LogWriter
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.settings import InstrumentSettings, load
from llmobs.snapshot import FACTS, TOKEN_BUCKETS, Exemplar

DOC = Path(__file__).resolve().parents[2] / "docs" / "stats.md"


def _runtime(engines: tuple[int, ...] = (0,), **more: Any) -> Runtime:
    settings = InstrumentSettings(log_stderr=False)
    return Runtime(settings, model_name="m", engines=list(engines), static={"max_num_seqs": 8.0}, max_model_len=1024,
                   version="0.32.0", log=LogWriter(settings), **more)  # fmt: skip


def _iteration(**more: Any) -> Any:
    values: dict[str, Any] = {
        "num_generation_tokens": 2, "num_prompt_tokens": 0, "num_preempted_reqs": 0, "time_to_first_tokens_iter": [],
        "inter_token_latencies_iter": [], "finished_requests": [], "n_params_iter": [],
    }  # fmt: skip
    return SimpleNamespace(**{**values, **more})


def test_the_document_describes_every_fact_and_field() -> None:
    """docs/stats.md has one row for each fact, with its kind and label, and for each field of the document."""
    text = DOC.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", text, re.MULTILINE))
    assert rows == {name: fact.kind for name, fact in FACTS.items()}
    for name, fact in FACTS.items():
        if fact.by:
            assert f"| `{name}` | {fact.kind} | `{fact.by}` |" in text
    document = stats.encode(_runtime().snapshot())
    assert set(document) == set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", text, re.MULTILINE))


def test_what_was_never_seen_is_absent() -> None:
    """Before the first message of the engine there is no load, no KV usage, no speculative counter."""
    engine = stats.encode(_runtime().snapshot())["engines"][0]
    for name in ("running", "waiting", "kv_cache_usage", "spec_drafts", "corrupted", "seconds_since_progress"):
        assert name not in engine


@pytest.mark.parametrize(
    ("fields", "waiting", "by_reason"),
    [
        ({"num_waiting_reqs": 3, "num_skipped_waiting_reqs": 2}, 5, {"capacity": 3, "deferred": 2}),  # 0.20 and newer
        ({"num_waiting_reqs": 3}, 3, {}),  # before: deferred are inside
    ],
)
def test_waiting_contains_the_deferred_in_every_version(
    fields: dict[str, int], waiting: int, by_reason: dict[str, int]
) -> None:
    """From 0.20 vLLM reports deferred requests apart; the sum means the same in all versions."""
    ledger = EngineLedger("m", 0, {}, 1024)
    ledger.latest = SimpleNamespace(num_running_reqs=1, gpu_cache_usage=0.25, **fields)
    snapshot = ledger.snapshot(now=1.0, wall=1.0, busy_since=None, shared={})
    assert (snapshot.waiting, dict(snapshot.waiting_by_reason), snapshot.kv_cache_usage) == (waiting, by_reason, 0.25)


def test_a_negative_difference_never_lowers_a_counter() -> None:
    """vLLM has produced negative differences; a counter only grows."""
    ledger = EngineLedger("m", 0, {}, 1024)
    ledger.add("prefix_hits", 5)
    ledger.add("prefix_hits", -3)
    assert ledger.counters["prefix_hits"] == 5


def test_token_positions_fall_into_their_buckets() -> None:
    """Each position is in the bucket whose name contains it."""
    edges = {0: "0", 1: "1", 2: "2-5", 5: "2-5", 6: "6-20", 20: "6-20", 21: "21-50", 50: "21-50", 51: "51-100",
             100: "51-100", 101: "101-500", 500: "101-500", 501: "501+", 10**6: "501+"}  # fmt: skip
    assert {p: TOKEN_BUCKETS[position_bucket(p)] for p in edges} == edges


def test_step_latencies_are_counted_once_and_read_twice() -> None:
    """The inter-token histogram holds all positions after the first; the decode-step histogram splits them."""
    ledger = EngineLedger("m", 0, {}, 1024)
    ledger.steps.first(0.5)
    ledger.steps.later([1, 3, 5], [0.004, 0.004, 0.3])
    snapshot = ledger.snapshot(now=1.0, wall=1.0, busy_since=None, shared={})
    assert snapshot.inter_token_latency is not None
    assert (snapshot.inter_token_latency.count, round(snapshot.inter_token_latency.sum, 3)) == (3, 0.308)
    assert {k: v.count for k, v in snapshot.decode_step_latency.items()} == {"0": 1, "1": 1, "2-5": 2}


def test_an_interval_that_all_share_counts_like_each_by_itself() -> None:
    """A step whose sequences waited equally long is counted bucket by bucket, with the same result."""
    positions = [1, 2, 3, 5, 6, 500, 501, 9999, 1]
    together, apart = EngineLedger("m", 0, {}, 1024).steps, EngineLedger("m", 0, {}, 1024).steps
    together.later(positions, [0.004] * len(positions))
    for position in positions:
        apart.later([position], [0.004])
    assert together.counts == apart.counts
    assert sum(map(sum, together.counts)) == len(positions)
    assert together.totals == pytest.approx(apart.totals)
    together.later([], [])
    assert together.counts == apart.counts


def test_a_step_is_a_gauge_at_once_and_counted_with_the_next_reader() -> None:
    """What the scheduler says of now is known at its message; what has happened is complete when somebody reads."""
    runtime = _runtime()
    for position in (1, 2):
        scheduler = SimpleNamespace(num_running_reqs=position, num_waiting_reqs=7, kv_cache_usage=0.5)
        runtime.steps.add(runtime.first, scheduler, _iteration(inter_token_latencies_iter=[0.004]), [position])
    assert (runtime.first.load.running, runtime.first.load.waiting) == (2, 7)
    runtime.settle()
    engine = runtime.snapshot().engines[0]
    assert engine.generation_tokens == 2 * _iteration().num_generation_tokens
    assert engine.inter_token_latency is not None
    assert engine.inter_token_latency.count == 2
    assert {k: v.count for k, v in engine.decode_step_latency.items()} == {"1": 1, "2-5": 1}


def test_intervals_without_their_positions_are_still_inter_token_times() -> None:
    """A version in which positions and intervals do not match loses that feature, and the histogram goes on."""
    runtime = _runtime()
    hook = guard("steps")
    try:
        for positions in ([1], [1, 2], [1, 2], [1, 2], None, None):
            runtime.steps.add(runtime.first, None, _iteration(inter_token_latencies_iter=[0.004]), positions)
        runtime.settle()
        assert (hook.errors, hook.active) == (3, False)
    finally:
        hook.errors, hook.active = 0, True
    engine = runtime.snapshot().engines[0]
    assert engine.inter_token_latency is not None
    assert (engine.inter_token_latency.count, engine.decode_step_latency["1"].count) == (3, 1)


def test_progress_is_measured_only_while_there_is_work() -> None:
    """Without work the fact is absent; with work it counts from the last progress or the arrival, the later one."""
    ledger = EngineLedger("m", 0, {}, 1024)
    ledger.iteration(_iteration(), 10.0)
    for busy, expected in ((None, None), (5.0, 2.0), (11.5, 0.5)):
        found = ledger.snapshot(now=12.0, wall=0.0, busy_since=busy, shared={})
        assert found.seconds_since_progress == expected


def test_shares_of_several_processes_add_up() -> None:
    """Counters and histograms are sums; a gauge is the one of the process the scheduler spoke to last."""
    parts = []
    for number, spoken in ((1, 10.0), (2, 20.0)):
        runtime = _runtime(client_count=2)
        ledger = runtime.first
        ledger.counters["generation_tokens"] = number * 100
        ledger.latest = SimpleNamespace(num_running_reqs=number, num_waiting_reqs=0, kv_cache_usage=0.1 * number)
        ledger.load_at = spoken
        ledger.ttft.observe(0.05 * number)
        ledger.ttft.exemplify(0.05 * number, "a" * 32, float(number))
        runtime.failed["abort"] = number
        parts.append((runtime.snapshot(), {"0": spoken}))
    engine = share.merge(parts).engines[0]
    assert (engine.generation_tokens, engine.running, engine.failed["abort"]) == (300, 2, 3)
    assert engine.time_to_first_token is not None
    assert engine.time_to_first_token.count == 2
    assert [e.timestamp for e in engine.time_to_first_token.exemplars if isinstance(e, Exemplar)] == [1.0, 2.0]


def test_a_jump_above_the_clients_usual_is_an_outlier() -> None:
    """After a few prompts a client's usual is known; far above it is marked, growth of all clients alike is not."""
    clients = Clients(4.0)
    assert [clients.judge(1, 100) for _ in range(6)] == [False] * 6
    assert clients.judge(1, 900)
    assert not clients.judge(2, 900)


def test_bad_settings_fall_back_and_are_named() -> None:
    """A value that cannot be used costs its setting, not the server."""
    settings, problems = load({"LLMOBS_TIMEOUT_S": "soon", "LLMOBS_LOG_VLLM": "xml"})
    assert (settings.timeout, settings.log_vllm_json) == (30.0, False)
    assert [p.split("=")[0] for p in problems] == ["LLMOBS_LOG_VLLM", "LLMOBS_TIMEOUT_S"]


def test_the_page_is_made_within_a_millisecond_and_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full ledger becomes the document in a millisecond at best, and the sidecar's decoder reads it."""
    runtime = _runtime()
    monkeypatch.setattr(runtimes, "_runtime", runtime)
    for position in (1, 3, 10, 30, 70, 200, 501, 9999):
        for exponent in range(1, 400):
            runtime.first.steps.later([position], [exponent / 100])
            runtime.first.ttft.observe(exponent / 100)
    times = []
    for _ in range(50):
        started = time.perf_counter()
        body = stats_page.render(runtime)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.001
    decoded = stats.decode(json.loads(body), taken_at=0.0, wall_time=0.0)
    assert decoded.engines[0].decode_step_latency["501+"].count == 2 * 399


def test_the_page_is_a_404_where_nothing_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine the application's own answer stands."""
    monkeypatch.setattr(runtimes, "_runtime", None)
    asked: list[str] = []

    async def application(*_args: Any) -> None:
        asked.append("vllm")

    asyncio.run(stats_page.answer({"type": "http"}, None, None, application))  # type: ignore[arg-type]
    assert asked == ["vllm"]
