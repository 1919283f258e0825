"""Spans as values, and how they are written into an OTLP message: in place, so that nothing is copied.

Messages that are made one by one and then put together, as the SDK's encoder does it, are copied at every level, which
takes four times as long. All of it runs in vLLM's API server and keeps the event loop waiting.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from llmobs import __version__

INTERNAL = trace_pb2.Span.SPAN_KIND_INTERNAL
SERVER = trace_pb2.Span.SPAN_KIND_SERVER
_ERROR = trace_pb2.Status.STATUS_CODE_ERROR
_PARENT_KNOWN = trace_pb2.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_PARENT_REMOTE = _PARENT_KNOWN | trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

#: Name → str, bool, int, float, a sequence of these, or None for "not known", which is left out.
Attributes = Mapping[str, Any]
Common = tuple[tuple[str, Any], ...]


class Event(NamedTuple):
    """Something that happened within a span, at Unix nanoseconds."""

    name: str
    at: int
    attributes: Attributes


class Span(NamedTuple):
    """A finished span. `start` and `end` are Unix nanoseconds, ids are bytes.

    `common` are attributes that most spans of this name have alike: together with the name they are encoded once, and
    must be hashable. `remote` says that the parent is another process's. `error` is the description of an error
    status, which may be empty; None is no error.
    """

    name: str
    trace_id: bytes
    span_id: bytes
    parent: bytes | None
    start: int
    end: int
    attributes: Attributes
    common: Common = ()
    kind: trace_pb2.Span.SpanKind.ValueType = INTERNAL
    trace_state: str = ""
    remote: bool = False
    error: str | None = None
    events: Sequence[Event] = ()


class Head:
    """What every export of this process begins with: resource and scope, encoded once."""

    def __init__(self, resource: Attributes, schema_url: str = "") -> None:
        self._request = ExportTraceServiceRequest()
        group = self._request.resource_spans.add()
        group.resource.SetInParent()
        _write_attributes(group.resource.attributes, resource)
        group.schema_url = schema_url
        scope = group.scope_spans.add().scope
        scope.name, scope.version = "llmobs", __version__

    def batch(self) -> Batch:
        """Return an empty batch."""
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._request)
        return Batch(request)


class Batch:
    """The spans of one export, each written in place when it is added."""

    def __init__(self, request: ExportTraceServiceRequest) -> None:
        self.request = request
        self._spans = request.resource_spans[0].scope_spans[0].spans

    def __len__(self) -> int:
        return len(self._spans)

    def extend(self, spans: Iterable[Span]) -> None:
        """Write spans behind the others; one that cannot be written ends it with its error and leaves no trace."""
        add = self._spans.add
        for span in spans:
            target = add()
            try:
                _write_span(target, span)
            except Exception:
                del self._spans[-1]
                raise

    def payload(self) -> bytes:
        """Return the message as bytes."""
        data: bytes = self.request.SerializeToString()
        return data


def _write_span(target: Any, span: Span) -> None:
    name, trace_id, span_id, parent, start, end, attributes, common, kind, trace_state, remote, error, events = span
    target.MergeFromString(_alike(name, kind, remote, common))
    target.trace_id = trace_id
    target.span_id = span_id
    if parent is not None:
        target.parent_span_id = parent
    target.start_time_unix_nano = start
    target.end_time_unix_nano = end
    if trace_state:
        target.trace_state = trace_state
    if error is not None:
        target.status.code = _ERROR
        target.status.message = _text(error)
    for event in events:
        written = target.events.add()
        written.name = event.name
        written.time_unix_nano = event.at
        _write_attributes(written.attributes, event.attributes)
    _write_attributes(target.attributes, attributes)


@functools.lru_cache(1024)
def _alike(name: str, kind: trace_pb2.Span.SpanKind.ValueType, remote: bool, common: Common) -> bytes:
    span = trace_pb2.Span(name=name, kind=kind, flags=_PARENT_REMOTE if remote else _PARENT_KNOWN)
    _write_attributes(span.attributes, dict(common))
    encoded: bytes = span.SerializeToString()
    return encoded


def _write_attributes(target: Any, attributes: Attributes) -> None:
    add = target.add
    for name, value in attributes.items():
        if value is None:
            continue
        entry = add()
        entry.key = name
        try:
            kind = type(value)
            if kind is int:  # `_write` would do for these three as well, at a call for every attribute
                entry.value.int_value = value
            elif kind is str:
                entry.value.string_value = value
            elif kind is float:
                entry.value.double_value = value
            else:
                _write(entry.value, value)
        except UnicodeEncodeError:
            entry.value.string_value = _text(value)
        except (TypeError, ValueError):  # an integer past 64 bits, an object of somebody else's: the rest still counts
            del target[-1]


def _write(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = int(value)
    elif isinstance(value, float):
        target.double_value = float(value)
    elif isinstance(value, str):
        target.string_value = _text(value)
    elif isinstance(value, Sequence):
        target.array_value.SetInParent()
        for item in value:
            _write(target.array_value.values.add(), item)
    else:
        raise TypeError(f"no attribute can be made of {type(value).__name__}")


def _text(value: str) -> str:
    """Return text that UTF-8 can hold: JSON may carry halves of surrogate pairs."""
    return value.encode("utf-8", "replace").decode()
