"""Spans as OTLP messages: the same as the SDK's own encoder makes of the same span."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from llmobs import __version__
from llmobs.instrument.traces import export
from llmobs.instrument.traces.encode import SERVER, Event, Head, Span

_TRACE, _ROOT, _CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
_ATTRIBUTES: dict[str, Any] = {
    "text": "größer", "empty": "", "yes": True, "no": False, "count": 7, "negative": -1, "large": 2**63 - 1,
    "ratio": 0.25, "zero": 0.0, "texts": ["a", "b"], "numbers": (1, 2), "flags": [True, False], "none at all": [],
}  # fmt: skip
_RESOURCE = {"service.name": "chat", "llmobs.version": "1", "n": 3}


def _ours(*spans: Span) -> ExportTraceServiceRequest:
    batch = Head(_RESOURCE, "https://schema").batch()
    batch.extend(spans)
    return ExportTraceServiceRequest.FromString(batch.payload())


def _sdk(*spans: dict[str, Any]) -> ExportTraceServiceRequest:
    resource, scope = Resource(_RESOURCE, "https://schema"), InstrumentationScope("llmobs", __version__)
    made = encode_spans([ReadableSpan(resource=resource, instrumentation_scope=scope, **s) for s in spans])
    for span in made.resource_spans[0].scope_spans[0].spans:
        if span.status == type(span.status)():
            span.ClearField("status")  # says as much as an empty one
    return ExportTraceServiceRequest.FromString(made.SerializeToString())


def _context(span_id: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(_TRACE, span_id, remote, TraceFlags(1), TraceState([("shop", "1"), ("b", "2")]))


def test_a_span_equals_what_the_sdk_encodes() -> None:
    """A server span below a caller's, with an error, an event, and every kind of attribute; and its child."""
    ours = _ours(
        Span("root", _TRACE.to_bytes(16, "big"), _ROOT.to_bytes(8, "big"), _CALLER.to_bytes(8, "big"), 5, 9,
             _ATTRIBUTES, (), SERVER, "shop=1,b=2", True, "it broke",
             (Event("exception", 8, {"exception.message": "x"}),)),
        Span("child", _TRACE.to_bytes(16, "big"), _CALLER.to_bytes(8, "big"), _ROOT.to_bytes(8, "big"), 6, 7, {},
             trace_state="shop=1,b=2"),
    )  # fmt: skip
    sdk = _sdk(
        {
            "name": "root", "context": _context(_ROOT), "parent": _context(_CALLER, remote=True), "start_time": 5,
            "end_time": 9, "attributes": _ATTRIBUTES, "kind": SpanKind.SERVER,
            "status": Status(StatusCode.ERROR, "it broke"),
            "events": [SdkEvent("exception", {"exception.message": "x"}, 8)],
        },
        {"name": "child", "context": _context(_CALLER), "parent": _context(_ROOT), "start_time": 6, "end_time": 7},
    )  # fmt: skip
    assert ours == sdk


def test_attributes_in_common_come_first_and_are_the_same_attributes() -> None:
    """Encoded once, they arrive with every span; what is not known is left out of them too."""
    common = (("a", "größer"), ("unknown", None), ("b", True), ("c", ("x", "y")))
    span = Span("x", bytes(16), bytes(8), None, 1, 2, {"d": 4}, common)
    whole = span._replace(attributes={"a": "größer", "b": True, "c": ["x", "y"], "d": 4}, common=())
    assert _ours(span, span) == _ours(whole, whole)


def test_a_root_without_a_caller_equals_the_sdks() -> None:
    """No parent, no state."""
    context = SpanContext(_TRACE, _ROOT, False, TraceFlags(1))
    sdk = _sdk({"name": "root", "context": context, "start_time": 5, "end_time": 9})
    assert _ours(Span("root", _TRACE.to_bytes(16, "big"), _ROOT.to_bytes(8, "big"), None, 5, 9, {})) == sdk


def _attributes(given: dict[str, Any]) -> dict[str, Any]:
    message = _ours(Span("x", bytes(16), bytes(8), None, 1, 2, given))
    span = message.resource_spans[0].scope_spans[0].spans[0]
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


class _Named(str, enum.Enum):
    LENGTH = "length"


def test_what_is_not_known_is_left_out() -> None:
    """None makes no attribute."""
    assert _attributes({"a": None, "b": 0}) == {"b": 0}


@pytest.mark.parametrize(
    ("value", "written"),
    [(2**64, None), (object(), None), ([1, object()], None), ("half \ud800", "half ?"), (_Named.LENGTH, "length")],
)
def test_a_value_that_does_not_fit_costs_only_itself(value: object, written: object) -> None:
    """The attributes beside it arrive; text that is no Unicode is mended."""
    expected = {"before": 1, **({} if written is None else {"odd": written}), "after": 2}
    assert _attributes({"before": 1, "odd": value, "after": 2}) == expected


def test_a_span_that_cannot_be_written_leaves_no_half() -> None:
    """Those before it stay."""
    batch = Head({}).batch()
    good = Span("good", bytes(16), bytes(8), None, 1, 2, {})
    with pytest.raises((TypeError, ValueError)):
        batch.extend([good, good._replace(start=-1), good])
    assert len(batch) == 1


def test_the_resource_is_that_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, and what the operator says, who wins; vllm where nobody named the service."""
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue,llmobs.version=9")
    resource = export.head({"llmobs.version": "1", "vllm.version": "2"}).batch().request.resource_spans[0].resource
    found = {a.key: a.value.string_value for a in resource.attributes}
    assert {k: found[k] for k in ("team", "llmobs.version", "vllm.version", "service.name")} == {
        "team": "blue", "llmobs.version": "9", "vllm.version": "2", "service.name": "vllm",
    }  # fmt: skip
