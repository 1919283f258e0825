"""What no metric of vLLM's own shows, on the real server: a hung engine, a killed engine, refused and left requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest

from tests.instrument.conftest import Instrumented, wait_for

pytestmark = pytest.mark.needs("vllm")

KEY = "secret-key-of-the-test"
AUTH = {"Authorization": f"Bearer {KEY}"}
CODE = 23


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    """A server with an API key, a queue limit, JSON logs, captured content, and a short timeout."""
    made = Instrumented(
        tmp_path_factory.mktemp("guarded"),
        *("--api-key", KEY, "--max-num-queued-reqs", "6", "--max-num-seqs", "2"),
        launcher=("--engine-death-exit-code", str(CODE)),
        LLMOBS_LOG_VLLM="json",
        LLMOBS_CAPTURE_CONTENT="1",
        LLMOBS_CAPTURE_MAX_CHARS="8",
        LLMOBS_TIMEOUT_S="1.5",
    )
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


def _post(server: Instrumented, request_id: str, *, timeout: float = 60, **body: object) -> int | None:
    """Return the status of one completion; None when the client gave up after `timeout` seconds."""
    data = {"model": "tiny", "prompt": "hello world, this is long", "max_tokens": 4, "ignore_eos": True, **body}
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id, **AUTH}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(data).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def _line(server: Instrumented, request_id: str) -> dict[str, object]:
    found = wait_for(lambda: [x for x in server.requests() if x["request_id"] == request_id])
    assert len(found) == 1, found
    line: dict[str, object] = found[0]
    return line


def test_stats_want_the_api_key(guarded: Instrumented) -> None:
    """With an API key set, /stats answers 401 without it, and never shows it."""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            guarded.stats(**headers)
        assert caught.value.code == 401
    assert guarded.stats(**AUTH)["schema"] == "llmobs.stats/v1"
    assert KEY not in json.dumps(guarded.stats(**AUTH))


def test_a_wrong_key_is_a_rejected_request(guarded: Instrumented) -> None:
    """A request that vLLM refuses with 401 is counted and logged as invalid."""
    request = urllib.request.Request(
        guarded.url + "/v1/completions", b"{}", {"Content-Type": "application/json", "X-Request-Id": "no-key"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 401
    line = _line(guarded, "no-key")
    assert (line["event"], line["failure_reason"], line["error_code"]) == ("request_rejected", "invalid", 401)


def test_captured_content_is_cut_and_announced(guarded: Instrumented) -> None:
    """With LLMOBS_CAPTURE_CONTENT=1 the line has prompt and completion, cut, and the start-up line says so."""
    assert _post(guarded, "captured") == 200
    line = _line(guarded, "captured")
    assert line["prompt"] == "hello wo"
    assert isinstance(line["completion"], list)
    assert all(len(text) <= 8 for text in line["completion"])
    assert guarded.lines("engine_started")[0]["content_captured"] is True
    assert "PROMPT AND COMPLETION TEXT IS LOGGED" in guarded.log.read_text()


def test_no_secret_is_in_any_line(guarded: Instrumented) -> None:
    """The API key is in neither our lines nor the engine's configuration as we log it."""
    assert guarded.lines("engine_config")
    assert KEY not in guarded.lines_file.read_text()


def test_vllms_own_lines_are_json_when_asked(guarded: Instrumented) -> None:
    """Every line of vLLM's loggers and of uvicorn is one JSON object with our fields, in all processes."""
    lines = []
    for text in guarded.log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and "logger" in line:
                lines.append(line)
    assert {"APIServer", "EngineCore", "Worker"} <= {line["process"] for line in lines}
    assert any(line["logger"] == "uvicorn.access" for line in lines)
    assert all({"event", "timestamp", "level", "logger", "process", "pid"} <= set(line) for line in lines)
    after_start = guarded.log.read_text().partition("PROMPT AND COMPLETION")[2].splitlines()[1:]
    assert [text for text in after_start if not text.startswith("{")] == []


def test_admission_control_is_a_rejection(guarded: Instrumented) -> None:
    """Requests beyond --max-num-queued-reqs are refused with 503 and counted as rejected, each once."""

    async def burst() -> list[int]:
        async with aiohttp.ClientSession(headers=AUTH) as session:

            async def one(n: int) -> int:
                body = {"model": "tiny", "prompt": "hello", "max_tokens": 60, "ignore_eos": True}
                headers = {"X-Request-Id": f"burst-{n}"}
                async with session.post(guarded.url + "/v1/completions", json=body, headers=headers) as response:
                    await response.read()
                    return response.status

            return await asyncio.gather(*(one(n) for n in range(16)))

    statuses = asyncio.run(burst())
    refused = statuses.count(503)
    assert refused > 0
    lines = wait_for(
        lambda: (
            len([x for x in guarded.requests() if x["request_id"].startswith("burst-")]) == 16
            and [x for x in guarded.requests() if x["failure_reason"] == "rejected"]
        )
    )
    assert len(lines) == refused
    engine = guarded.stats(**AUTH)["engines"][0]
    assert engine["failed"]["rejected"] == refused
    assert engine["admission_rejections"] == {"max_num_queued_reqs": refused}


def test_a_client_that_leaves_is_an_abort_and_after_the_limit_a_timeout(guarded: Instrumented) -> None:
    """vLLM counts neither; we count the first as abort and the second, which waited 1.5 s and more, as timeout."""
    pids = guarded.server.engine_core_pids()
    os.kill(pids[0], signal.SIGSTOP)  # so that neither is answered before it leaves
    try:
        assert _post(guarded, "impatient", timeout=0.5) is None
        assert _post(guarded, "patient", timeout=2.0) is None
    finally:
        os.kill(pids[0], signal.SIGCONT)
    assert _line(guarded, "impatient")["failure_reason"] == "abort"
    assert _line(guarded, "patient")["failure_reason"] == "timeout"


def test_a_hung_engine_shows_in_seconds_since_progress(guarded: Instrumented) -> None:
    """With the engine frozen /health still says 200; /stats shows the time without progress, and its end."""
    assert "seconds_since_progress" not in guarded.stats(**AUTH)["engines"][0]
    pids = guarded.server.engine_core_pids()
    os.kill(pids[0], signal.SIGSTOP)
    try:
        waiting = threading.Thread(target=_post, args=(guarded, "hung"))
        waiting.start()
        time.sleep(2.0)
        assert urllib.request.urlopen(guarded.url + "/health", timeout=5).status == 200
        assert guarded.stats(**AUTH)["engines"][0]["seconds_since_progress"] > 1.0
    finally:
        os.kill(pids[0], signal.SIGCONT)
    waiting.join(30)
    assert _line(guarded, "hung")["event"] == "request_completed"
    assert "seconds_since_progress" not in guarded.stats(**AUTH)["engines"][0]


def test_the_age_of_the_oldest_waiting_request_is_known(guarded: Instrumented) -> None:
    """With two places in the batch and six requests, the age of those that wait grows, until nobody waits.

    What earlier tests left in the queue may make admission refuse these six: they are sent up to three times then.
    """
    for attempt in range(3):
        threads = [
            threading.Thread(target=_post, args=(guarded, f"queue-{attempt}-{n}"), kwargs={"max_tokens": 900})
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        ages: list[float] = []
        while any(thread.is_alive() for thread in threads):
            age = guarded.stats(**AUTH)["engines"][0].get("oldest_waiting_seconds")
            if age is not None:
                ages.append(age)
            time.sleep(0.05)
        if len(ages) > 3:
            break
    assert 0 < ages[0] < max(ages) < 60
    assert wait_for(lambda: "oldest_waiting_seconds" not in guarded.stats(**AUTH)["engines"][0])


def test_zz_a_killed_engine_takes_its_requests_along_counted_and_journalled(guarded: Instrumented) -> None:
    """kill -9 of the engine core: lost requests are engine_dead in log and journal, and the exit code is ours."""
    before = len(guarded.lines("request_failed"))
    pid = guarded.server.engine_core_pids()[0]
    os.kill(pid, signal.SIGSTOP)  # so that none is answered before the kill
    threads = [threading.Thread(target=_post, args=(guarded, f"lost-{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: "seconds_since_progress" in guarded.stats(**AUTH)["engines"][0])
    time.sleep(1.0)
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(30)
    assert guarded.server.process.wait(30) == CODE
    failed = guarded.lines("request_failed")[before:]
    assert {line["request_id"] for line in failed} == {f"lost-{n}" for n in range(4)}
    assert {line["failure_reason"] for line in failed} == {"engine_dead"}
    journal = guarded.journal()
    assert [(e["event"], e["reason"], e["count"]) for e in journal] == [
        ("engine_dead", "engine_dead", None),
        ("requests_failed", "engine_dead", 4),
    ]
    assert [line["requests_lost"] for line in guarded.lines("engine_died")] == [4]
