"""Requests on the real vLLM: every one is counted once and answered as if we were not there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import urllib.request
from collections import Counter
from typing import Any

import pytest

from tests.instrument import client
from tests.instrument.conftest import Instrumented, wait_for
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

COUNT = int(os.environ.get("LLMOBS_TEST_REQUESTS", "700"))
_LEAVING = ("leave_stream", "leave_waiting")
_OURS = {"x-request-id", "x-trace-id", "traceresponse"}


@pytest.fixture(scope="module")
def work() -> list[tuple[int, str]]:
    return client.plan(COUNT)


@pytest.fixture(scope="module")
def answers(instrumented: Instrumented, work: list[tuple[int, str]]) -> list[client.Answer]:
    """What the clients of the instrumented server saw of the mixed load."""
    before = len(instrumented.requests())  # other tests share the server
    found = asyncio.run(client.run(instrumented.url, work))
    wait_for(lambda: len(instrumented.requests()) >= before + COUNT, 20)
    return found


def test_every_request_is_logged_exactly_once_with_its_outcome(
    instrumented: Instrumented, answers: list[client.Answer]
) -> None:
    """completed + failed + rejected = sent, and each request has the outcome of its kind."""
    sent = {answer.request_id for answer in answers}
    lines = Counter(line["request_id"] for line in instrumented.requests() if line["request_id"] in sent)
    assert lines == Counter(answer.request_id for answer in answers)
    outcome = {line["request_id"]: line for line in instrumented.requests()}
    wrong = []
    left = 0
    for answer in answers:
        line = outcome[answer.request_id]
        expected = client.EXPECTED.get(answer.kind)
        if answer.kind in _LEAVING and line["event"] == "request_completed":
            # On a busy machine a client may leave after the answer was ready.
            assert line["completion_tokens"] == 900, line
            left += 1
        elif (line["failure_reason"], line["event"] == "request_completed") != (expected, expected is None):
            wrong.append((answer, line))
    assert wrong == []
    assert left < COUNT * 0.02


def test_stats_count_every_request_exactly_once(instrumented: Instrumented, answers: list[client.Answer]) -> None:
    """The counters of /stats agree with the log lines, reason by reason."""
    engine = instrumented.stats()["engines"][0]
    lines = instrumented.requests()
    reasons = Counter(line["failure_reason"] for line in lines)
    assert engine["completed"] == reasons.pop(None)
    assert {k: v for k, v in engine["failed"].items() if v} == dict(reasons)
    assert engine["completed"] + sum(engine["failed"].values()) == len(lines) >= len(answers)


def test_responses_are_identical_with_and_without_the_plugin(
    plain: VllmServer, answers: list[client.Answer], work: list[tuple[int, str]]
) -> None:
    """Status, headers and body of every answer are those of plain vLLM, apart from ids, times and our headers."""
    without = asyncio.run(client.run(plain.url, work))
    different = []
    assert len(without) == len(answers)
    for theirs, ours in zip(without, answers):
        ignored = _OURS | {"date", "content-length"}
        heads = [{k: v for k, v in a.headers.items() if k not in ignored} for a in (theirs, ours)]
        bodies = [client.joined(a.body) for a in (theirs, ours)]
        if theirs.status != ours.status or heads[0] != heads[1] or bodies[0] != bodies[1]:
            different.append((theirs, ours))
    assert different == []


def test_the_callers_request_id_comes_back(answers: list[client.Answer]) -> None:
    """A response carries the X-Request-Id that the caller gave."""
    with_headers = [a for a in answers if a.headers]
    assert with_headers
    assert all(a.headers["x-request-id"] == a.request_id for a in with_headers)


def _ask(server: Instrumented, body: dict[str, Any], **headers: str) -> dict[str, str]:
    data = {"model": "tiny", "max_tokens": 8, "ignore_eos": True, "temperature": 0, **body}
    request = urllib.request.Request(
        server.url + "/v1/completions", json.dumps(data).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        response.read()
        return {k.lower(): v for k, v in response.headers.items()}


def _line(server: Instrumented, request_id: str) -> dict[str, Any]:
    found = wait_for(lambda: [x for x in server.requests() if x["request_id"] == request_id])
    assert len(found) == 1
    line: dict[str, Any] = found[0]
    return line


def test_a_request_without_an_id_gets_one_that_header_and_log_share(instrumented: Instrumented) -> None:
    """The id we give stands in the response header and in the log line."""
    headers = _ask(instrumented, {"prompt": "hello"})
    assert _line(instrumented, headers["x-request-id"])["event"] == "request_completed"


def test_the_phases_of_a_request_add_up_to_its_latency(instrumented: Instrumented) -> None:
    """queue + prefill + decode lie within the latency and make most of it; the rates follow from them."""
    started = time.monotonic()
    headers = _ask(instrumented, {"prompt": "hello", "max_tokens": 200})
    seen = (time.monotonic() - started) * 1000
    line = _line(instrumented, headers["x-request-id"])
    phases = line["queue_ms"] + line["prefill_latency_ms"] + line["decode_latency_ms"]
    assert 0.7 * line["latency_ms"] < phases <= line["latency_ms"] <= seen
    assert (line["prompt_tokens"], line["completion_tokens"], line["total_tokens"]) == (5, 200, 205)
    assert line["num_generation_tokens_per_sec"] == pytest.approx(199 / line["decode_latency_ms"] * 1000, rel=0.01)
    assert line["ttft_ms"] < line["latency_ms"]


def test_the_callers_trace_is_in_the_line_and_in_the_exemplars(instrumented: Instrumented) -> None:
    """A sampled traceparent gives the log line its trace id, and a bucket of /stats an exemplar."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = _ask(instrumented, {"prompt": "hello"}, traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    assert headers["x-trace-id"] == trace
    assert _line(instrumented, headers["x-request-id"])["trace_id"] == trace
    engine = instrumented.stats()["engines"][0]
    for name in ("e2e_latency", "time_to_first_token", "decode_time", "prefill_time"):
        assert trace in [e[0] for e in engine[name]["exemplars"] if e]


def test_a_prompt_near_the_models_context_is_marked_and_counted(instrumented: Instrumented) -> None:
    """More than 90 % of the context: an event of its own, a mark in the line, a counter."""
    before = instrumented.stats()["engines"][0]["prompts_near_limit"]
    headers = _ask(instrumented, {"prompt": "x" * 950})
    assert _line(instrumented, headers["x-request-id"])["prompt_near_limit"] is True
    assert wait_for(
        lambda: [x for x in instrumented.lines("prompt_near_limit") if x["request_id"] == headers["x-request-id"]]
    )
    assert instrumented.stats()["engines"][0]["prompts_near_limit"] == before + 1


def test_the_engine_says_how_it_is_at_intervals(instrumented: Instrumented) -> None:
    """engine_started and engine_config come once, engine_stats again and again."""
    assert len(instrumented.lines("engine_started")) == 1
    assert instrumented.lines("engine_config")[0]["config"]["scheduler_config"]["max_num_seqs"] > 0
    first = len(instrumented.lines("engine_stats"))
    assert wait_for(lambda: len(instrumented.lines("engine_stats")) > first, 5)


def test_vllms_own_metrics_agree_with_our_counters(instrumented: Instrumented) -> None:
    """Tokens, finished sequences and latency sums are those of vLLM's /metrics."""
    page = urllib.request.urlopen(instrumented.url + "/metrics", timeout=10).read().decode()
    engine = instrumented.stats()["engines"][0]

    def theirs(name: str) -> float:
        return sum(float(m) for m in re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))

    assert engine["generation_tokens"] == theirs("generation_tokens_total")
    assert engine["prompt_tokens"] == theirs("prompt_tokens_total")
    assert sum(engine["finished"].values()) == theirs("request_success_total")
    for ours, name in (
        ("time_to_first_token", "time_to_first_token_seconds"),
        ("inter_token_latency", "inter_token_latency_seconds"),
        ("e2e_latency", "e2e_request_latency_seconds"),
        ("queue_time", "request_queue_time_seconds"),
        ("decode_time", "request_decode_time_seconds"),
        ("step_tokens", "iteration_tokens_total"),
    ):
        assert engine[ours]["counts"][-1] == theirs(name + "_count"), ours
        assert engine[ours]["sum"] == pytest.approx(theirs(name + "_sum"), rel=1e-3), ours
