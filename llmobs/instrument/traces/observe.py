"""The observer that gives each request its trace and, at its end, hands it to the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from llmobs import __version__
from llmobs.instrument import record as records
from llmobs.instrument.guard import Guard, guard
from llmobs.instrument.observer import Observer
from llmobs.instrument.patch import wrap
from llmobs.instrument.record import RequestFacts, RequestRecord, SequenceRecord
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.traces import export
from llmobs.instrument.traces.context import Sampler, Share
from llmobs.instrument.traces.settings import TraceSettings
from llmobs.instrument.traces.spans import Ended, SpanBuilder
from llmobs.instrument.traces.tokens import Detail

#: Spans of a request without token detail.
_SPANS = 8

#: Sampling parameter of vLLM → attribute. Their neutral values are left out, except a temperature of 0.
_PARAMETERS: tuple[tuple[str, str, Any], ...] = (
    ("max_tokens", "gen_ai.request.max_tokens", None),
    ("temperature", "gen_ai.request.temperature", None),
    ("top_p", "gen_ai.request.top_p", None),
    ("top_k", "gen_ai.request.top_k", 0),
    ("frequency_penalty", "gen_ai.request.frequency_penalty", 0.0),
    ("presence_penalty", "gen_ai.request.presence_penalty", 0.0),
    ("seed", "gen_ai.request.seed", None),
)


class Traces(Observer):
    """Makes spans. A request that is not recorded costs a few ids and one comparison."""

    name = "traces"

    def __init__(self, runtime: Runtime, settings: TraceSettings, vllm_config: Any, *, vllm_traces: bool) -> None:
        self._runtime = runtime
        self._settings = settings
        self._vllm_traces = vllm_traces
        self._sampler = Sampler(settings)
        self._share = Share(settings.detail_ratio)
        mode = getattr(getattr(vllm_config, "model_config", None), "logprobs_mode", "")
        head = export.head(
            {
                "service.instance.id": f"{runtime.instance}-{runtime.client_index}",
                "llmobs.version": __version__,
                **({"vllm.version": runtime.version} if runtime.version else {}),
            }
        )
        self._builder = SpanBuilder(
            labels=settings.labels,
            speculative=getattr(vllm_config, "speculative_config", None) is not None,
            logits=str(mode).endswith("logits"),
        )
        self._pipeline = export.Pipeline(settings, head, self._dropped)
        hook = guard("parse")
        if not wrap("fastapi.routing:run_endpoint_function", hook, lambda f: _before_endpoint(f, hook)):
            hook.active = False  # spans then count the validation of the body to the building of the prompt

    def _dropped(self, count: int) -> None:
        self._runtime.spans_dropped += count

    def started(self, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        """Give the request its trace, and vLLM's own tracing, where it is on, our root span as the parent."""
        if not record.http:
            return
        forced = self._settings.detail_allowed and _header(headers, b"x-llmobs-detail") == b"1"
        state = _header(headers, b"tracestate").decode("latin-1") if record.trace is not None else ""
        trace = record.trace = self._sampler.root(record.trace, state, forced=forced)
        if forced or (self._share.any and trace.sampled and self._share.has(trace.trace_id)):
            record.wants_detail = True
        if self._vllm_traces:
            flags = "01" if trace.sampled else "00"
            ours = f"00-{trace.trace_id}-{trace.span_id}-{flags}".encode()
            headers[:] = [*(h for h in headers if h[0] != b"traceparent"), (b"traceparent", ours)]

    def submitted(self, record: RequestRecord, sequence: SequenceRecord) -> None:
        """Follow the first sequence's steps, when the request gets token detail."""
        if record.detail is None:
            record.detail = sequence.detail = Detail(self._settings.detail_every)

    def finished(self, record: RequestRecord, facts: RequestFacts) -> None:
        """Make the spans and hand them to the pipeline."""
        trace = record.trace
        if trace is None or not trace.sampled or trace.span_id is None:
            return
        ended = Ended(
            facts=facts,
            scheme=record.scheme,
            parsed_at=record.parsed_at,
            last_byte_at=record.last_byte_at,
            request=_request(record),
            finish_reasons=[s.finish_reason for s in record.sequences if s.finish_reason is not None],
            detail=record.detail,
            offset=self._runtime.clock_offset or 0.0,
            error=record.stream_error or record.error_body,
        )
        detail: Detail | None = record.detail
        if detail is None:
            self._pipeline.add(_SPANS, lambda: self._builder.request(ended))
        else:  # many spans: in the pipeline's thread
            self._pipeline.put(_SPANS + detail.most, lambda: self._builder.request(ended))


def _request(record: RequestRecord) -> Mapping[str, Any]:
    """Return the attributes of the first sequence's sampling parameters: the values in effect, defaults included."""
    if not record.sequences:
        return {}
    first = record.sequences[0]
    found: dict[str, Any] = {}
    for name, attribute, neutral in _PARAMETERS:
        value = getattr(first.params, name, None)
        if value is not None and value != neutral:
            found[attribute] = value
    parent = getattr(first.state, "parent_req", None)
    n = getattr(getattr(parent, "sampling_params", None) or first.params, "n", None)
    if n is not None:
        found["gen_ai.request.n"] = n
        if n != 1:
            found["gen_ai.request.choice.count"] = n
    engine_id = getattr(first.state, "external_req_id", None)
    if engine_id is not None:
        found["gen_ai.request.id"] = engine_id
    return found


def _header(headers: list[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    for name, value in headers:
        if name == wanted:
            return value.strip()
    return b""


def _before_endpoint(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def run_endpoint_function(*args: Any, **kwargs: Any) -> Any:
        hook.run(_parsed)
        return original(*args, **kwargs)

    return run_endpoint_function


def _parsed() -> None:
    """FastAPI has read, parsed and validated the body: the endpoint is about to run."""
    record = records.current.get()
    if record is not None and record.parsed_at is None:
        record.parsed_at = time.monotonic()
