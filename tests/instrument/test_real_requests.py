"""Requests on the real vLLM: every one is counted once and answered as if we were not there."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

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
    found = asyncio.run(client.run(instrumented.url, work))
    wait_for(lambda: len(instrumented.requests()) >= COUNT, 20)
    return found


def test_every_request_is_logged_exactly_once_with_its_outcome(
    instrumented: Instrumented, answers: list[client.Answer]
) -> None:
    """completed + failed + rejected = sent, and each request has the outcome of its kind."""
    lines = Counter(line["request_id"] for line in instrumented.requests())
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
    assert engine["completed"] + sum(engine["failed"].values()) == len(answers)


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
