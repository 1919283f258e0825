"""Memory runs out in the worker of the real engine, under load: what the client sees, and what is left afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmobs.journal import JournalEntry, from_line
from tests.instrument.client import normal
from tests.instrument.conftest import INJECT, Instrumented
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

IN_FLIGHT = 16
DEATH_CODE = 17


@dataclass
class Died:
    """One server that died of the injected error: what its clients saw, and its exit code."""

    answers: list[tuple[int | None, str, str]]  # status, last frame or body, request id
    exit_code: int | None
    stats: dict[str, Any]


async def _one(session: aiohttp.ClientSession, url: str, number: int) -> tuple[int | None, str, str]:
    body = {
        "model": "tiny",
        "prompt": f"{number} hello",
        "max_tokens": 900,
        "ignore_eos": True,
        "temperature": 0,
        "stream": number % 2 == 0,
    }
    headers = {"X-Request-Id": f"oom-{number}"}
    async with session.post(url + "/v1/completions", json=body, headers=headers) as response:
        text = (await response.read()).decode()
        # The tokens before the death depend on its moment; what ends the answer does not.
        frames = [f for f in text.split("\n\n") if f.strip()]
        end = "\n\n".join(frames[-2:]) if text.startswith("data: ") else text
        return response.status, normal(end), response.headers.get("x-request-id", "")


async def _load(url: str, switch: Path, stats: bool) -> tuple[list[Any], dict[str, Any]]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(_one(session, url, n)) for n in range(IN_FLIGHT)]
        await asyncio.sleep(1.0)
        switch.write_text("oom")
        gathered = asyncio.gather(*tasks, return_exceptions=True)
        document: dict[str, Any] = {}
        while stats:  # until the server is gone, a moment after the death
            try:
                async with session.get(url + "/stats") as response:
                    document = await response.json()
            except (aiohttp.ClientError, OSError):  # noqa: PERF203
                break
        return list(await gathered), document


def _inject(switch: Path) -> dict[str, str]:
    return {"INJECT_STEP": str(switch), "PYTHONPATH": str(INJECT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oom")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[Instrumented, VllmServer]]:
    """An instrumented and a plain server, started side by side."""
    launcher = ("--engine-death-exit-code", str(DEATH_CODE))
    ours = Instrumented(folder, launcher=launcher, **_inject(folder / "switch"))
    plain = VllmServer(folder / "plain.log", environment=_inject(folder / "switch-plain"))
    try:
        ours.server.wait_ready()
        plain.wait_ready()
        yield ours, plain
    finally:
        ours.server.stop()
        plain.stop()


@pytest.fixture(scope="module")
def ours(servers: tuple[Instrumented, VllmServer], folder: Path) -> Died:
    answers, stats = asyncio.run(_load(servers[0].url, folder / "switch", stats=True))
    return Died(answers, servers[0].server.process.wait(90), stats)


@pytest.fixture(scope="module")
def theirs(servers: tuple[Instrumented, VllmServer], folder: Path) -> Died:
    answers, _ = asyncio.run(_load(servers[1].url, folder / "switch-plain", stats=False))
    return Died(answers, servers[1].process.wait(90), {})


def _entries(state: Path) -> list[JournalEntry]:
    lines = (state / "journal.jsonl").read_bytes().splitlines(keepends=True)
    entries = [from_line(line) for line in lines]
    assert None not in entries
    return [entry for entry in entries if entry is not None]


def test_memory_that_runs_out_at_the_start_is_journalled(tmp_path: Path) -> None:
    """A model that does not fit: vLLM exits with 1 as ever, and one oom is in the journal, from the worker."""
    server = Instrumented(tmp_path, INJECT_LOAD="oom", PYTHONPATH=str(INJECT))
    try:
        assert server.server.process.wait(120) == 1
    finally:
        server.server.stop()
    entries = _entries(server.state)
    assert {(e.event, e.kind) for e in entries} == {("oom", "cuda")}
    assert len({e.id for e in entries}) == 1
    assert any(e.process == "Worker_0" and "Tried to allocate" in e.message for e in entries)


def test_clients_see_what_plain_vllm_shows_them(ours: Died, theirs: Died) -> None:
    """Status and end of every answer are the same as without us."""
    assert [a[:2] for a in ours.answers] == [a[:2] for a in theirs.answers]
    assert {a[0] for a in ours.answers} == {200, 500}


def test_the_exit_code_is_the_one_asked_for(ours: Died, theirs: Died) -> None:
    """A plain vLLM ends with 0 after its engine died; the launcher turns that into the operator's code."""
    assert theirs.exit_code == 0
    assert ours.exit_code == DEATH_CODE


def test_the_journal_tells_of_one_oom(ours: Died, servers: tuple[Instrumented, VllmServer]) -> None:
    """However many processes write about it, the lines have one id; batch, step and message are in them."""
    entries = [e for e in _entries(servers[0].state) if e.event == "oom"]
    assert {e.id for e in entries} == {entries[0].id}
    assert {e.process for e in entries} == {"Worker_0", "EngineCore"}
    for entry in entries:
        assert entry.kind == "cuda"
        assert "Tried to allocate 2.00 GiB" in entry.message
        assert len(entry.requests) == IN_FLIGHT
        assert all(identity.startswith("cmpl-oom-") for identity, _, _ in entry.requests)
        assert all(0 < prompt < 20 and output > 10 for _, prompt, output in entry.requests)
        assert entry.step_tokens == IN_FLIGHT
    core = next(e for e in entries if e.process == "EngineCore")
    assert core.kv_cache_usage is not None
    assert 0 < core.kv_cache_usage < 0.1


def test_the_journal_counts_the_lost_requests_once(ours: Died, servers: tuple[Instrumented, VllmServer]) -> None:
    """The API server's account says how many requests were lost with the engine, and why."""
    failed = [e for e in _entries(servers[0].state) if e.event == "requests_failed"]
    assert [(e.reason, e.count) for e in failed] == [("oom", IN_FLIGHT)]


def test_every_request_in_flight_is_logged_as_lost_to_oom(ours: Died, servers: tuple[Instrumented, VllmServer]) -> None:
    """One request_failed line each, with tokens and error, whether the answer was 500 or a broken stream."""
    lines = servers[0].lines("request_failed")
    assert len(lines) == IN_FLIGHT
    assert {line["failure_reason"] for line in lines} == {"oom"}
    assert {line["request_id"] for line in lines} == {f"oom-{n}" for n in range(IN_FLIGHT)}
    assert {(line["stream"], line["http_status"]) for line in lines} == {(True, 200), (False, 500)}
    assert all(line["completion_tokens"] > 10 and line["error_code"] == 500 for line in lines)


def test_the_engines_death_is_an_event(ours: Died, servers: tuple[Instrumented, VllmServer]) -> None:
    """One engine_died line says why and how many requests went with it."""
    lines = servers[0].lines("engine_died")
    assert [(line["reason"], line["kind"], line["requests_lost"]) for line in lines] == [("oom", "cuda", IN_FLIGHT)]


def test_stats_show_the_oom_while_the_server_still_answers(ours: Died) -> None:
    """In the moment between death and exit, /stats counts one oom and the requests lost to it."""
    engine = ours.stats["engines"][0]
    assert engine["oom"]["cuda"] == 1
    assert engine["failed"]["oom"] == IN_FLIGHT
    assert engine["completed"] == 0
