"""Endpoints beside completions and chat on the real server: unharmed, and those that run the model are observed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.instrument.ask import Reply, ask, the_line
from tests.instrument.conftest import Instrumented, wait_for
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

_POOLING = ("--runner", "pooling", "--convert", "embed")
_TEXT = "hello world"  # 11 tokens: the tiny model has one per byte
#: Requests of the generating server that are not followed, as path and body (GET without one).
_ASIDE: dict[str, tuple[str, Any]] = {
    "models": ("/v1/models", None),
    "tokenize": ("/tokenize", {"model": "tiny", "prompt": _TEXT, "return_token_strs": True}),
    "tokenize_chat": ("/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": _TEXT}]}),
    "tokenize_invalid": ("/tokenize", {"model": "nobody", "prompt": _TEXT}),
    "detokenize": ("/detokenize", {"model": "tiny", "tokens": [10, 20, 30]}),
    "version": ("/version", None),
    "health": ("/health", None),
}
_RESPONSES = {"model": "tiny", "input": _TEXT, "max_output_tokens": 6, "temperature": 0, "store": False}
_EMBED = {
    "one": ("/v1/embeddings", {"model": "tiny", "input": _TEXT}),
    "three": ("/v1/embeddings", {"model": "tiny", "input": [_TEXT, "abc", "defg"]}),
    "chat": ("/v1/embeddings", {"model": "tiny", "messages": [{"role": "user", "content": _TEXT}]}),
    "base64": ("/v1/embeddings", {"model": "tiny", "input": _TEXT, "encoding_format": "base64"}),
    "pooling": ("/pooling", {"model": "tiny", "input": _TEXT}),
    "invalid": ("/v1/embeddings", {"model": "tiny"}),
    "too_long": ("/v1/embeddings", {"model": "tiny", "input": "x" * 1500}),
}


def _counted(server: Instrumented) -> dict[str, float]:
    engine = server.stats()["engines"][0]
    return {"completed": engine["completed"], **{k: v for k, v in engine["failed"].items() if v}}


@pytest.mark.parametrize("name", _ASIDE)
def test_what_does_not_run_the_model_passes_through(instrumented: Instrumented, plain: VllmServer, name: str) -> None:
    """Same status and body as plain vLLM, and neither a log line nor a count."""
    path, body = _ASIDE[name]
    before = len(instrumented.requests()), _counted(instrumented)
    ours, theirs = ask(instrumented.url, path, body), ask(plain.url, path, body)
    for reply in (ours, theirs):
        assert "x-trace-id" not in reply.headers
    assert ours.same == theirs.same
    assert (len(instrumented.requests()), _counted(instrumented)) == before


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_counted_once_with_their_tokens(
    instrumented: Instrumented, plain: VllmServer, stream: bool
) -> None:
    """/v1/responses: the body of plain vLLM, one line with tokens and phases, one completed request more."""
    body = {**_RESPONSES, "stream": stream}
    before = _counted(instrumented)
    ours = ask(instrumented.url, "/v1/responses", body, X_Request_Id=f"responses-{stream}")
    theirs = ask(plain.url, "/v1/responses", body, X_Request_Id=f"responses-{stream}")
    if stream:
        assert ours.status == theirs.status == 200
        assert [x for x in ours.body.splitlines() if x.startswith("event:")][-1] == "event: response.completed"
    else:
        assert ours.same == theirs.same
    line = the_line(instrumented, f"responses-{stream}")
    assert (line["event"], line["endpoint"], line["stream"]) == ("request_completed", "/v1/responses", stream)
    assert line["prompt_tokens"] > len(_TEXT)  # the chat template is around it
    assert line["completion_tokens"] == 6
    assert line["finish_reason"] == "length"
    assert line["ttft_ms"] <= line["latency_ms"]
    assert _counted(instrumented) == {**before, "completed": before["completed"] + 1}


@pytest.fixture(scope="module")
def plain_pooling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reply]:
    """What plain vLLM answers as a pooling server; it is gone when the other one starts."""
    server = VllmServer(tmp_path_factory.mktemp("plain-pooling") / "server.log", *_POOLING)
    try:
        server.wait_ready()
        return {name: ask(server.url, *request, X_Request_Id=name) for name, request in _EMBED.items()}
    finally:
        server.stop()


@pytest.fixture(scope="module")
def pooling(plain_pooling: dict[str, Reply], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    made = Instrumented(tmp_path_factory.mktemp("pooling"), *_POOLING, launcher=())
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


@pytest.mark.parametrize(
    ("name", "prompt_tokens"),
    [("one", 11), ("three", 18), ("chat", 29), ("base64", 11), ("pooling", 11)],
)
def test_embeddings_are_those_of_plain_vllm_and_observed(
    pooling: Instrumented, plain_pooling: dict[str, Reply], name: str, prompt_tokens: int
) -> None:
    """The same vectors; one line a request, however many inputs it has, with the tokens of all of them."""
    before = _counted(pooling)
    path, body = _EMBED[name]
    reply = ask(pooling.url, path, body, X_Request_Id=name)
    assert reply.status == 200
    assert reply.same == plain_pooling[name].same
    line = the_line(pooling, name)
    assert (line["event"], line["endpoint"], line["http_status"]) == ("request_completed", path, 200)
    assert (line["prompt_tokens"], line["total_tokens"]) == (prompt_tokens, prompt_tokens)
    assert line["completion_tokens"] == 0
    assert 0 < line["queue_ms"] < line["latency_ms"]
    assert _counted(pooling) == {**before, "completed": before.get("completed", 0) + 1}


@pytest.mark.parametrize(("name", "reason"), [("invalid", "invalid"), ("too_long", "context_length")])
def test_refused_embeddings_are_counted_once(
    pooling: Instrumented, plain_pooling: dict[str, Reply], name: str, reason: str
) -> None:
    """The refusal of plain vLLM, and one line and one count with its reason."""
    before = _counted(pooling)
    reply = ask(pooling.url, *_EMBED[name], X_Request_Id=name)
    assert reply.status == 400
    assert reply.same == plain_pooling[name].same
    assert the_line(pooling, name)["failure_reason"] == reason
    assert _counted(pooling) == {**before, reason: before.get(reason, 0) + 1}


def test_zz_a_pooling_server_has_stats_and_no_errors(pooling: Instrumented) -> None:
    """Prompt tokens add up, no token was generated, no hook failed."""
    document = pooling.stats()
    engine = document["engines"][0]
    assert wait_for(lambda: pooling.stats()["engines"][0]["prompt_tokens"] == 80), engine["prompt_tokens"]
    assert engine["generation_tokens"] == 0
    assert sum(engine["finished"].values()) == 7
    assert sum(document["hook_errors"].values()) == 0
