"""Where our output cannot go, on the real server: vLLM serves on, and what is lost is counted and said once.

Two servers: one with a journal folder below a file, a full disk for its log, and a Collector that refuses; one with a
read-only journal folder, a missing log folder, and a Collector that accepts and never answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.instrument import client
from tests.instrument.ask import ask
from tests.instrument.conftest import INJECT, Instrumented, wait_for
from tests.real.server import VllmServer, free_port

pytestmark = pytest.mark.needs("vllm")

COUNT = 220
QUEUE = 64
_KINDS = tuple(k for k in client.KINDS if not k.startswith("leave"))
_OURS = {"x-request-id", "x-trace-id", "traceresponse", "date", "content-length"}
_CASES = ("refusing", "hanging")


@dataclass
class Lossy:
    """A server whose outputs fail; `oom` is the file that makes its next step run out of memory."""

    made: Instrumented
    oom: Path

    def said(self, text: str) -> int:
        return self.made.log.read_text(errors="replace").count(text)


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that nobody can write, root included."""
    folder = tmp_path_factory.mktemp("read-only")
    if os.getuid():
        folder.chmod(0o555)
        yield folder
        return
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"root writes everywhere, and a read-only mount is refused: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A port that takes connections and never says anything."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                while True:
                    taken.append(listener.accept()[0])
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


@pytest.fixture(scope="module", params=_CASES)
def lossy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, read_only: Path, silent: str
) -> Iterator[Lossy]:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "file").write_text("")
    if request.param == "refusing":
        places = {"LLMOBS_STATE_DIR": str(folder / "file" / "state"), "LLMOBS_LOG": "/dev/full"}
        collector = f"http://127.0.0.1:{free_port()}", "grpc"
    else:
        places = {"LLMOBS_STATE_DIR": str(read_only), "LLMOBS_LOG": str(folder / "missing" / "requests.jsonl")}
        collector = silent, "http/protobuf"
    made = Instrumented(
        folder,
        launcher=(),
        PYTHONPATH=str(INJECT),
        INJECT_STEP=str(folder / "oom"),
        VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1",  # so that /stats can be read after it
        LLMOBS_STATS_INTERVAL_S="0",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector[0],
        OTEL_EXPORTER_OTLP_PROTOCOL=collector[1],
        OTEL_BSP_MAX_QUEUE_SIZE=str(QUEUE),
        OTEL_BSP_SCHEDULE_DELAY="200",
        **places,
    )
    try:
        made.server.wait_ready()
        yield Lossy(made, folder / "oom")
    finally:
        made.server.stop()


@pytest.fixture(scope="module")
def theirs(plain: VllmServer) -> list[client.Answer]:
    return asyncio.run(client.run(plain.url, client.plan(COUNT, kinds=_KINDS), concurrency=16))


def test_every_response_is_that_of_plain_vllm(lossy: Lossy, theirs: list[client.Answer]) -> None:
    """16 requests at a time, each traced and logged into nothing: status, headers and body are the same."""
    ours = asyncio.run(client.run(lossy.made.url, client.plan(COUNT, kinds=_KINDS), concurrency=16))
    seen = []
    for answers in (theirs, ours):
        heads = [{k: v for k, v in a.headers.items() if k not in _OURS} for a in answers]
        seen.append([(a.status, head, client.joined(a.body)) for a, head in zip(answers, heads)])
    assert seen[0] == seen[1]


def test_what_is_lost_is_counted(lossy: Lossy) -> None:
    """Every log line, and the spans of every request but those still waiting, are in `dropped` of /stats."""
    # Three lines of the start, and one per request.
    assert wait_for(lambda: lossy.made.stats()["dropped"]["log_lines"] >= COUNT + 3), lossy.made.stats()["dropped"]
    dropped = lossy.made.stats()["dropped"]
    assert dropped["log_lines"] == COUNT + 3
    assert dropped["spans"] > COUNT
    assert dropped["journal_lines"] == 0
    engine = lossy.made.stats()["engines"][0]
    assert engine["completed"] + sum(engine["failed"].values()) == COUNT
    assert sum(lossy.made.stats()["hook_errors"].values()) == 0


def test_what_is_lost_is_said_once(lossy: Lossy) -> None:
    """One sentence each for the log, the journal, and the spans, once the exporter has given up its first batch."""
    assert wait_for(lambda: lossy.said("llmobs: spans are lost"), 30)
    assert lossy.said("llmobs: spans are lost") == 1
    assert lossy.said("llmobs: log lines are being dropped") == 1
    assert lossy.said("no failure journal (") == 1
    assert lossy.said("opentelemetry") == 0


@pytest.mark.parametrize("lossy", ["hanging"], indirect=True)
def test_zz_a_stop_is_quick_and_in_good_order(lossy: Lossy) -> None:
    """A queue full of spans holds the end of the server up for the three seconds it may, not for more."""
    asyncio.run(client.run(lossy.made.url, client.plan(32, kinds=("completion",)), concurrency=16))
    began = time.monotonic()
    assert lossy.made.server.stop() == 0
    assert time.monotonic() - began < 12


@pytest.mark.parametrize("lossy", ["refusing"], indirect=True)
def test_zz_a_journal_line_that_cannot_be_written_is_counted_too(lossy: Lossy) -> None:
    """The step runs out of memory: the answer is vLLM's, the journal's lines are counted, and said once a process."""
    lossy.oom.write_text("oom")
    reply = ask(lossy.made.url, "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 4})
    assert reply.status == 500
    # One line each from the worker, the engine core, and the API server.
    assert wait_for(lambda: lossy.made.stats()["dropped"]["journal_lines"] == 3), lossy.made.stats()["dropped"]
    assert lossy.said("cannot be written, its lines are lost") == 3
    assert lossy.made.stats()["engines"][0]["failed"]["oom"] == 1
