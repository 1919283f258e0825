"""`LLMOBS_DISABLED=1` on the real server, with everything of ours loaded: it is plain vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.instrument import client
from tests.instrument.ask import ask
from tests.instrument.conftest import Instrumented
from tests.instrument.otlp import Receiver
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

_KINDS = tuple(k for k in client.KINDS if not k.startswith("leave"))


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def disabled(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Instrumented]:
    """All plugins loaded, the middleware named, every output asked for, and the switch on."""
    made = Instrumented(
        tmp_path_factory.mktemp("disabled"),
        *("--middleware", "llmobs.instrument.middleware.Middleware"),
        LLMOBS_DISABLED="1",
        LLMOBS_LOG_VLLM="json",
        LLMOBS_STATS_INTERVAL_S="1",
        LLMOBS_TRACE_LAYERS="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_BSP_SCHEDULE_DELAY="100",
        VLLM_PLUGINS="llmobs",
    )
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


def test_status_headers_and_bodies_are_those_of_plain_vllm(disabled: Instrumented, plain: VllmServer) -> None:
    """Mixed requests: nothing differs, and no header of ours is there, not even the caller's id."""
    work = client.plan(66, kinds=_KINDS)
    seen = []
    for url in (plain.url, disabled.url):
        answers = asyncio.run(client.run(url, work))
        heads = [{k: v for k, v in a.headers.items() if k not in ("date", "content-length")} for a in answers]
        seen.append([(a.status, head, client.joined(a.body)) for a, head in zip(answers, heads)])
    assert seen[0] == seen[1]


def test_there_is_no_stats_page(disabled: Instrumented, plain: VllmServer) -> None:
    """The page answers what plain vLLM answers: 404."""
    assert ask(disabled.url, "/stats").same == ask(plain.url, "/stats").same
    assert ask(disabled.url, "/stats").status == 404


def test_zz_nothing_was_written_anywhere(disabled: Instrumented, receiver: Receiver) -> None:
    """No log line, journal, span, JSON or sentence of ours, also not at the end; the stop is in good order."""
    assert disabled.server.stop() == 0
    assert not disabled.lines_file.exists()
    assert list(disabled.state.iterdir()) == []
    assert receiver.spans == []
    text = disabled.log.read_text()
    assert '"event"' not in text
    assert [line for line in text.splitlines() if "llmobs:" in line or "llmobs 0" in line] == []
