"""Data parallel and tensor parallel on the real server, on CPU: unharmed, and nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.instrument import client
from tests.instrument.conftest import Instrumented, wait_for
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

COUNT = 120
_KINDS = ("completion", "stream", "chat", "n_two", "invalid", "too_long")
_CASES = {
    "data": ("--data-parallel-size", "2", "--api-server-count", "1"),
    "data_two_servers": ("--data-parallel-size", "2"),  # as many API servers as engines, by default
    "tensor": ("--tensor-parallel-size", "2"),
}


@pytest.fixture(scope="module")
def work() -> list[tuple[int, str]]:
    return client.plan(COUNT, kinds=_KINDS)


@pytest.fixture(scope="module")
def theirs(plain: VllmServer, work: list[tuple[int, str]]) -> list[client.Answer]:
    return asyncio.run(client.run(plain.url, work))


@pytest.fixture(scope="module", params=_CASES)
def parallel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    made = Instrumented(
        tmp_path_factory.mktemp(request.param),
        *_CASES[request.param],
        launcher=(),
        VLLM_CPU_OMP_THREADS_BIND="nobind",
    )
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


def test_responses_are_whole(parallel: Instrumented, theirs: list[client.Answer], work: list[tuple[int, str]]) -> None:
    """Every request, whichever engine serves it, has the status that one engine without us gives it."""
    wait_for(lambda: not parallel.stats()["partial"], 20)
    ours = asyncio.run(client.run(parallel.url, work))
    assert [(a.kind, a.status) for a in ours] == [(a.kind, a.status) for a in theirs]


def test_every_request_is_counted_once(parallel: Instrumented, request: pytest.FixtureRequest) -> None:
    """The counters summed over the engines are the requests sent and their sequences; each engine did its part."""

    def summed(name: str) -> float:
        return float(sum(e.get(name, 0) for e in parallel.stats()["engines"]))

    expected = client.expected(client.plan(COUNT, kinds=_KINDS))
    completed = expected.pop("completed")
    assert wait_for(lambda: summed("completed") == completed, 15), parallel.stats()["engines"]
    document = parallel.stats()
    engines = document["engines"]
    failed: Counter[str] = Counter()
    for engine in engines:
        failed.update({k: v for k, v in engine.get("failed", {}).items() if v})
    assert failed == expected
    assert document["partial"] is False
    assert sum(document["hook_errors"].values()) == 0
    sequences = completed + expected["invalid"]  # n=2 makes one more; there are as many of them as invalid ones
    assert sum(sum(e["finished"].values()) for e in engines) == sequences
    made = {"completion": 1, "stream": 1, "chat": 1, "n_two": 2}
    plan = client.plan(COUNT, kinds=_KINDS)
    assert summed("generation_tokens") == sum(
        made.get(k, 0) * client.request(k, n)[1].get("max_tokens", 0) for n, k in plan
    )
    case = request.node.callspec.params["parallel"]
    assert [e["engine"] for e in engines] == (["0"] if case == "tensor" else ["0", "1"])
    for engine in engines:
        assert engine["prompt_tokens"] > 0
        assert engine["generation_tokens"] > 0
        assert engine["e2e_latency"]["counts"][-1] > 0


def test_every_request_has_one_line(parallel: Instrumented) -> None:
    """Over the files of all API server processes."""
    lines: list[str] = []

    def all_lines() -> bool:
        lines.clear()
        for path in parallel.lines_file.parent.glob("requests*.jsonl"):
            lines.extend(x for x in path.read_text().splitlines() if '"event":"request_' in x)
        return len(lines) >= COUNT

    assert wait_for(all_lines)
    assert len(lines) == COUNT
