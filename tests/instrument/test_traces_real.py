"""Traces of the real vLLM, received by a real OTLP service."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from llmobs.instrument.traces import names
from tests.instrument.conftest import Instrumented, wait_for
from tests.instrument.otlp import Receiver, Seen

pytestmark = pytest.mark.needs("vllm")

_PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_CHAT = {"messages": [{"role": "user", "content": "Tell me about the sea"}]}
_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "hello there"}),
    "completion_stream": ("/v1/completions", {"prompt": "hello there", "stream": True}),
    "chat": ("/v1/chat/completions", _CHAT),
    "chat_stream": ("/v1/chat/completions", {**_CHAT, "stream": True}),
}


@dataclass
class Called:
    """What the client saw; `latency` in seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    latency: float

    @property
    def trace_id(self) -> str:
        return self.headers["x-trace-id"]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    """vLLM with llmobs, all spans to the receiver, token detail on request, and a trace of one engine step in five."""
    made = Instrumented(
        tmp_path_factory.mktemp("traces"),
        "--otlp-traces-endpoint",
        receiver.url,
        launcher=(),
        OTEL_BSP_SCHEDULE_DELAY="200",
        OTEL_SERVICE_NAME="chat-prod",
        LLMOBS_TRACE_LABELS="version=7,canary=true",
        LLMOBS_TRACE_DETAIL="allow",
        LLMOBS_TRACE_LAYERS="5",
    )
    try:
        made.server.wait_ready()
        call(made, "chat")  # the first request compiles templates
        yield made
    finally:
        made.server.stop()


def call(server: Instrumented, kind: str, headers: dict[str, str] | None = None, **more: Any) -> Called:
    path, body = _BODIES[kind]
    body = {"model": "tiny", "max_tokens": 40, "temperature": 0, "ignore_eos": True, **body, **more}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.connect()
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    content = response.read()
    latency = time.monotonic() - began
    connection.close()
    return Called(response.status, {k.lower(): v for k, v in response.getheaders()}, content, latency)


def trace_of(receiver: Receiver, called: Called) -> dict[str, Seen]:
    """Return our spans of the request by name, once the root has come."""

    def ours() -> list[Seen]:
        return [s for s in receiver.trace(called.trace_id) if s.name in names.SPANS and s.name != names.STEP]

    receiver.wait(lambda: any(s.name == names.REQUEST for s in ours()))
    found = ours()
    assert len({s.name for s in found}) == len(found)
    return {s.name: s for s in found}


@pytest.mark.parametrize("kind", _BODIES)
def test_every_span_is_there_in_order_under_the_root(server: Instrumented, receiver: Receiver, kind: str) -> None:
    """All eight spans, the phases as children of the root, each beginning where the one before it ended."""
    spans = trace_of(receiver, call(server, kind))
    assert set(spans) == {names.REQUEST, *names.PHASES}
    root = spans[names.REQUEST]
    assert root.parent == ""
    for name in names.PHASES:
        span = spans[name]
        assert span.parent == root.span_id
        assert root.start <= span.start <= span.end <= root.end
    order = [spans[n] for n in names.PHASES[:-1]]
    assert all(a.end == b.start for a, b in zip(order, order[1:]))
    response = spans[names.RESPONSE]
    if "stream" in kind:
        assert response.start < spans[names.DECODE].end
    else:
        assert response.start == spans[names.FORMAT].end
    assert response.end == root.end


@pytest.mark.parametrize("kind", _BODIES)
def test_the_phases_add_up_to_the_clients_latency(server: Instrumented, receiver: Receiver, kind: str) -> None:
    """Phase by phase, the trace explains the time the client measured, to 5 %."""
    shares = []
    for _ in range(3):
        called = call(server, kind, max_tokens=100)
        spans = trace_of(receiver, called)
        total = sum(spans[n].seconds for n in names.PHASES[:-1])
        total += (spans[names.RESPONSE].end - max(spans[names.RESPONSE].start, spans[names.FORMAT].end)) / 1e9
        shares.append(total / called.latency)
    assert any(0.95 <= share <= 1.0 for share in shares), shares


def test_the_root_says_what_was_asked_and_what_came_of_it(server: Instrumented, receiver: Receiver) -> None:
    """Attributes of the HTTP and GenAI conventions, vLLM's latency keys, and our facts, with the right values."""
    called = call(server, "completion", max_tokens=20, top_p=0.5, seed=3, frequency_penalty=0.25)
    answer = json.loads(called.body)
    root = trace_of(receiver, called)[names.REQUEST]
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.frequency_penalty": 0.25,
        "llmobs.outcome": "completed",
        "llmobs.output_length": 20,
        "llmobs.queue_length": 0,
        "llmobs.preemptions": 0,
        "llmobs.label.version": "7",
        "llmobs.label.canary": "true",
    }
    assert {k: root.attributes.get(k) for k in expected} == expected
    assert root.attributes["gen_ai.latency.e2e"] == pytest.approx(root.seconds, abs=1e-5)
    assert root.attributes["llmobs.e2e_us"] == pytest.approx(root.seconds * 1e6, abs=2)
    assert root.resource["service.name"] == "chat-prod"
    assert root.span.kind == 2


def test_the_callers_trace_is_continued(server: Instrumented, receiver: Receiver) -> None:
    """An incoming traceparent gives the trace id and the parent; the answer's headers and the log line agree."""
    trace_id, parent = _PARENT
    headers = {"traceparent": f"00-{trace_id}-{parent}-01", "tracestate": "shop=1", "X-Request-Id": "order-77"}
    called = call(server, "chat", headers)
    root = trace_of(receiver, called)[names.REQUEST]
    assert (root.trace_id, root.parent, root.span.trace_state) == (trace_id, parent, "shop=1")
    assert called.headers["traceresponse"] == f"00-{trace_id}-{root.span_id}-01"
    assert called.headers["x-request-id"] == root.attributes["llmobs.request_id"] == "order-77"
    (line,) = wait_for(lambda: [x for x in server.requests() if x["request_id"] == "order-77"])
    assert (line["trace_id"], line["span_id"]) == (trace_id, root.span_id)


def test_the_callers_decision_not_to_record_is_followed(server: Instrumented, receiver: Receiver) -> None:
    """With the sampled flag off in traceparent neither we nor vLLM's own tracing make a span."""
    trace_id = "1" * 32
    called = call(server, "chat", {"traceparent": f"00-{trace_id}-{_PARENT[1]}-00"})
    assert called.trace_id == trace_id
    trace_of(receiver, call(server, "chat"))  # a later one has arrived
    assert receiver.trace(trace_id) == []


def test_vllms_own_span_is_a_child_of_our_root(server: Instrumented, receiver: Receiver) -> None:
    """With --otlp-traces-endpoint, vLLM's llm_request is in the same trace, below our root."""
    called = call(server, "completion")
    root = trace_of(receiver, called)[names.REQUEST]
    theirs = receiver.wait(lambda: [s for s in receiver.trace(called.trace_id) if s.name == "llm_request"])
    assert [s.parent for s in theirs] == [root.span_id]


def test_a_refused_request_says_why(server: Instrumented, receiver: Receiver) -> None:
    """A prompt longer than the context: status 400, reason and exception in the trace, and no phase of the engine."""
    called = call(server, "completion", prompt="x" * 4000)
    spans = trace_of(receiver, called)
    root = spans[names.REQUEST]
    assert called.status == root.attributes["http.response.status_code"] == 400
    assert (root.attributes["error.type"], root.attributes["llmobs.outcome"]) == ("context_length", "rejected")
    assert [e.name for e in root.span.events] == ["exception"]
    assert not {names.QUEUE, names.PREFILL, names.DECODE, names.FORMAT} & set(spans)


def test_a_client_that_leaves_is_an_error(server: Instrumented, receiver: Receiver) -> None:
    """A stream left by its client ends with error status and reason abort, and keeps the phases it reached."""
    path, body = _BODIES["chat_stream"]
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    payload = json.dumps({"model": "tiny", "max_tokens": 900, "ignore_eos": True, **body})
    connection.request("POST", path, payload, {"Content-Type": "application/json", "X-Request-Id": "left"})
    connection.getresponse().read(10)
    connection.close()

    def left() -> list[Seen]:
        return [s for s in receiver.named(names.REQUEST) if s.attributes["llmobs.request_id"] == "left"]

    (root,) = receiver.wait(left)
    assert (root.span.status.code, root.attributes["error.type"]) == (2, "abort")
    assert {names.QUEUE, names.PREFILL} <= {s.name for s in receiver.trace(root.trace_id)}


def test_exemplars_carry_the_trace(server: Instrumented, receiver: Receiver) -> None:
    """The histograms of /stats name traces that were recorded."""
    called = call(server, "completion", max_tokens=30)
    trace_of(receiver, called)
    assert called.trace_id in json.dumps(server.stats())


def test_token_detail_follows_single_steps(server: Instrumented, receiver: Receiver) -> None:
    """X-LLMObs-Detail: 1 gives a child of the decode loop per step, capped, with the tokens the client got."""
    called = call(server, "completion", {"X-LLMObs-Detail": "1"}, max_tokens=200, logprobs=1, return_token_ids=True)
    spans = trace_of(receiver, called)
    steps = [s for s in receiver.trace(called.trace_id) if s.name == names.STEP]
    loop = spans[names.DECODE]
    assert {s.parent for s in steps} == {loop.span_id}
    assert loop.attributes["llmobs.steps"] == 199
    assert loop.attributes["llmobs.tokens.dropped"] == 199 - len(steps) > 0
    positions = [s.attributes["token_index"] for s in steps]
    assert positions[:64] == list(range(1, 65))
    tokens = json.loads(called.body)["choices"][0]
    for step in steps:
        position = step.attributes["token_index"]
        assert step.attributes["token_id"] == tokens["token_ids"][position]
        assert step.attributes["logprob"] == pytest.approx(tokens["logprobs"]["token_logprobs"][position], abs=1e-4)
        assert step.attributes["kv_cache_hit"] is True
        assert loop.start <= step.start < step.end <= loop.end
    assert spans[names.PREFILL].attributes["token_id"] == tokens["token_ids"][0]


def test_no_token_detail_unless_asked_for(server: Instrumented, receiver: Receiver) -> None:
    """A request without the header has no step spans."""
    called = call(server, "completion")
    trace_of(receiver, called)
    assert not [s for s in receiver.trace(called.trace_id) if s.name == names.STEP]


def test_one_engine_step_in_n_shows_its_layers(server: Instrumented, receiver: Receiver) -> None:
    """The worker's trace has one child per decoder layer of the tiny model, within the step, and the request's id."""
    call(server, "completion", {"X-Request-Id": "layered"}, max_tokens=60)

    def ours() -> list[Seen]:
        steps = receiver.named(names.ENGINE_STEP)
        return [s for s in steps if any("layered" in i for i in s.attributes["llmobs.step.request_ids"])]

    step = receiver.wait(ours)[0]
    layers = [s for s in receiver.trace(step.trace_id) if s is not step]
    assert [s.name for s in layers] == ["llm.layer.0.forward", "llm.layer.1.forward"]
    assert {s.parent for s in layers} == {step.span_id}
    assert step.start <= layers[0].start < layers[0].end <= layers[1].start < layers[1].end <= step.end
    batch = {k: step.attributes["llmobs.step." + k] for k in ("requests", "prefill_requests", "tokens")}
    assert batch["requests"] == 1
    assert batch["prefill_requests"] == (1 if batch["tokens"] > 1 else 0)


def test_every_attribute_that_was_sent_is_in_the_list(server: Instrumented, receiver: Receiver) -> None:
    """Nothing reaches the Collector that names.py, and so docs/traces.md, does not name."""
    known = {n for n in names.ATTRIBUTES if not n.endswith("*")}
    ours = [s for s in receiver.spans if s.name.startswith(("http.server.", "llm.layer.")) or s.name in names.SPANS]
    unknown = {a for s in ours for a in s.attributes if a not in known and not a.startswith("llmobs.label.")}
    assert len(ours) > 50
    assert unknown == set()
