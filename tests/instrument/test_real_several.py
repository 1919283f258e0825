"""Several API server processes: `/stats` is one answer for all of them, whoever gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.instrument import client
from tests.instrument.conftest import Instrumented, wait_for

pytestmark = pytest.mark.needs("vllm")

_KINDS = ("completion", "stream", "chat", "invalid")
COUNT = 80


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    made = Instrumented(tmp_path_factory.mktemp("several"), "--api-server-count", "2", launcher=())
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


def test_the_answer_is_the_sum_of_all_processes_and_never_goes_back(several: Instrumented) -> None:
    """Each process serves a part of the requests; /stats counts all of them, whichever process answers."""
    wait_for(lambda: not several.stats()["partial"], 20)
    asyncio.run(client.run(several.url, client.plan(COUNT, kinds=_KINDS)))
    seen = []

    def complete() -> bool:
        engine = several.stats()["engines"][0]
        seen.append(engine["completed"] + sum(engine["failed"].values()))
        return seen[-1] == COUNT

    assert wait_for(complete, 15), seen
    seen += [s["completed"] + sum(s["failed"].values()) for s in (several.stats()["engines"][0] for _ in range(20))]
    assert seen == sorted(seen)
    document = several.stats()
    assert document["partial"] is False
    engine = document["engines"][0]
    assert engine["completed"] == COUNT * 3 / 4
    assert engine["failed"]["invalid"] == COUNT / 4
    assert engine["finished"]["length"] == COUNT * 3 / 4
    assert engine["time_to_first_token"]["counts"][-1] == COUNT * 3 / 4


def test_each_process_writes_a_log_file_of_its_own(several: Instrumented) -> None:
    """Two processes never rotate the same file, and together they hold every request."""
    files = sorted(several.lines_file.parent.glob("requests*.jsonl"))
    assert [f.name for f in files] == ["requests-1.jsonl", "requests.jsonl"]
    texts = [f.read_text() for f in files]
    assert all('"request_completed"' in text for text in texts)
    assert sum(text.count('"event":"request_') for text in texts) == COUNT


def test_without_the_other_process_the_answer_says_partial(several: Instrumented) -> None:
    """A process that has published nothing for a while is not in the sum, and the document says so."""
    # The published file of a process goes stale when the process hangs; here the file is taken away.
    import os
    import signal
    from pathlib import Path

    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
                if title.startswith(b"VLLM::APIServer_") and os.getpgid(int(entry.name)) == several.server.process.pid:
                    pids.append(int(entry.name))
            except OSError:
                continue
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGSTOP)
    try:
        import urllib.error

        def partial() -> bool:
            try:
                return bool(several.stats()["partial"])
            except (urllib.error.URLError, TimeoutError):
                return False  # the stopped process was asked

        assert wait_for(partial, 40)
    finally:
        os.kill(pids[0], signal.SIGCONT)
