"""Build the spans of one request that has ended, from its facts. Runs in the pipeline's thread.

Every start and end is a moment that was measured; a span that lacks one of its two is left out. Spans are made as the
SDK's finished spans, because all is known: a tracer that starts and ends each would take five times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from llmobs import __version__
from llmobs.instrument.endpoints import OPERATIONS
from llmobs.instrument.ledger import position_bucket
from llmobs.instrument.record import RequestFacts
from llmobs.instrument.traces import names
from llmobs.instrument.traces.context import new_span_id
from llmobs.instrument.traces.tokens import Detail, Step
from llmobs.snapshot import TOKEN_BUCKETS

SCOPE = InstrumentationScope("llmobs", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request to be told as spans. Times are on the monotonic clock, in seconds.

    `request` are the attributes of its sampling parameters, `offset` is added to the engine's times of `detail`.
    """

    facts: RequestFacts
    scheme: str | None
    parsed_at: float | None
    last_byte_at: float | None
    request: Mapping[str, Any]
    finish_reasons: Sequence[str]
    detail: Detail | None
    offset: float


class SpanBuilder:
    """Makes spans with this process's resource. `labels` go on every root span."""

    def __init__(
        self, resource: Resource, *, labels: Mapping[str, str], speculative: bool = False, logits: bool = False
    ) -> None:
        self._resource = resource
        self._labels = {f"llmobs.label.{name}": value for name, value in labels.items()}
        self._speculative = speculative
        self._score = ("logit", "logit_max") if logits else ("logprob", "logprob_max")

    def span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = _UNSET,
        events: Sequence[Event] = (),
    ) -> ReadableSpan:
        """Return one finished span; `times` are its start and end in Unix nanoseconds."""
        return ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=events,
            kind=kind,
            status=status,
            start_time=times[0],
            end_time=max(times),
            instrumentation_scope=SCOPE,
        )

    def request(self, ended: Ended) -> list[ReadableSpan]:
        """Return all spans of a request: the root, its phases, and the decode steps where detail was kept."""
        facts = ended.facts
        trace = facts.trace
        if trace is None or trace.span_id is None:
            return []
        trace_id = int(trace.trace_id, 16)
        state = TraceState.from_header([trace.state]) if trace.state else TraceState()
        root = SpanContext(trace_id, int(trace.span_id, 16), False, _SAMPLED, state)
        parent = None
        if trace.parent_id is not None:
            parent = SpanContext(trace_id, int(trace.parent_id, 16), True, _SAMPLED, state)
        base = round(facts.started_wall * 1e9)

        def ns(at: float) -> int:
            return base + round((at - facts.started_at) * 1e9)

        end = ns(facts.ended_at)
        spans = [
            self.span(
                names.REQUEST,
                root,
                parent,
                (base, end),
                self._root_attributes(ended),
                kind=SpanKind.SERVER,
                status=_status(facts),
                events=_exception(facts, end),
            )
        ]
        for name, start, stop, attributes in _phases(ended):
            if start is None or stop is None or stop < start:
                continue
            context = SpanContext(trace_id, new_span_id(), False, _SAMPLED, state)
            detail = ended.detail
            if detail is not None and name == names.PREFILL and detail.first is not None:
                attributes |= self._token(detail.first)
            elif detail is not None and name == names.DECODE:
                attributes |= {"llmobs.detail": True, "llmobs.steps": detail.seen}
                attributes["llmobs.tokens.dropped"] = detail.seen - detail.most
                for step in detail.steps():
                    child = SpanContext(trace_id, new_span_id(), False, _SAMPLED, state)
                    at = step.at + ended.offset
                    times = (ns(at - (step.seconds or 0.0)), ns(at))
                    spans.append(self.span(names.STEP, child, context, times, self._step(step)))
            if facts.model is not None:
                attributes["gen_ai.request.model"] = facts.model
            spans.append(self.span(name, context, root, (ns(start), ns(stop)), attributes))
        return spans

    def _root_attributes(self, ended: Ended) -> Attributes:
        facts = ended.facts
        load = facts.load_at_arrival
        decode, completion = facts.decode, facts.completion_tokens
        after_first = (completion or 0) - facts.sequences
        first_chunk = facts.first_byte_at if facts.stream else None
        inference = None if facts.prefill is None or decode is None else facts.prefill + decode
        attributes: Attributes = {
            "http.request.method": "POST",
            "http.route": facts.endpoint,
            "url.path": facts.endpoint,
            "url.scheme": ended.scheme,
            "http.response.status_code": facts.status,
            "error.type": facts.reason,
            "gen_ai.operation.name": OPERATIONS.get(facts.endpoint or ""),
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": facts.model,
            "gen_ai.response.model": (facts.lora or facts.model) if completion else None,
            "gen_ai.response.finish_reasons": list(ended.finish_reasons) or None,
            "gen_ai.response.time_to_first_chunk": None if first_chunk is None else first_chunk - facts.started_at,
            "gen_ai.usage.input_tokens": facts.prompt_tokens,
            "gen_ai.usage.output_tokens": completion,
            "gen_ai.usage.cache_read.input_tokens": facts.cached_tokens,
            "gen_ai.request.stream": facts.stream,
            "gen_ai.latency.time_to_first_token": facts.time_to_first_token,
            "gen_ai.latency.e2e": facts.latency,
            "gen_ai.latency.time_in_queue": facts.queue,
            "gen_ai.latency.time_in_model_prefill": facts.prefill,
            "gen_ai.latency.time_in_model_decode": decode,
            "gen_ai.latency.time_in_model_inference": inference,
            "llmobs.request_id": facts.request_id,
            "llmobs.outcome": facts.outcome,
            "llmobs.input_length": facts.prompt_tokens,
            "llmobs.output_length": completion,
            "llmobs.cached_tokens": facts.cached_tokens,
            "llmobs.kv_cache_hit": None if facts.cached_tokens is None else facts.cached_tokens > 0,
            "llmobs.kv_cache_usage_ratio": load.kv_cache_usage,
            "llmobs.queue_length": load.waiting,
            "llmobs.running": load.running,
            "llmobs.preemptions": facts.preemptions,
            "llmobs.spec_acceptance_ratio": facts.spec_acceptance,
            "llmobs.sequences": facts.sequences or None,
            "llmobs.lora": facts.lora,
            "llmobs.prompt_near_limit": facts.near_limit or None,
            "llmobs.prompt_outlier": facts.outlier or None,
            "llmobs.e2e_us": _us(facts.latency),
            "llmobs.ttft_us": _us(facts.time_to_first_token),
            "llmobs.queue_us": _us(facts.queue),
            "llmobs.prefill_us": _us(facts.prefill),
            "llmobs.decode_us": _us(decode),
            "llmobs.time_per_output_token_us": _us(decode / after_first) if decode and after_first > 0 else None,
            **ended.request,
            **self._labels,
        }
        return _known(attributes)

    def _token(self, step: Step) -> Attributes:
        score, best = self._score
        return _known(
            {
                "token_index": step.position,
                "token_id": step.token_ids[0],
                "token_bucket": TOKEN_BUCKETS[position_bucket(step.position)],
                score: step.score,
                best: step.best,
            }
        )

    def _step(self, step: Step) -> Attributes:
        attributes = self._token(step)
        attributes["kv_cache_hit"] = not step.recomputed
        if len(step.token_ids) > 1:
            attributes["token_ids"] = list(step.token_ids)
        if self._speculative:
            attributes["speculative_accepted"] = len(step.token_ids) > 1
            attributes["speculative_accepted_tokens"] = len(step.token_ids) - 1
        if step.slow:
            attributes["llmobs.slow"] = True
        return attributes


def _phases(ended: Ended) -> list[tuple[str, float | None, float | None, Attributes]]:
    facts = ended.facts
    parsed = ended.parsed_at or facts.body_at
    length = _known({"llmobs.input_length": facts.prompt_tokens, "llmobs.cached_tokens": facts.cached_tokens})
    hit = {} if facts.cached_tokens is None else {"llmobs.kv_cache_hit": facts.cached_tokens > 0}
    decoded = _known({"llmobs.output_length": facts.completion_tokens, "llmobs.preemptions": facts.preemptions})
    several = facts.last_token_at != facts.first_token_at
    # A stream is formatted piece by piece: what is left after its last token ends when the last piece was handed over.
    formatted = ended.last_byte_at if facts.stream else facts.response_started_at
    return [
        (names.PARSE, facts.started_at, parsed, {}),
        (names.BUILD, parsed, facts.submitted_at, {}),
        (names.QUEUE, facts.submitted_at, facts.scheduled_at, {**length}),
        (names.PREFILL, facts.scheduled_at, facts.first_token_at, length | hit),
        (names.DECODE, facts.first_token_at, facts.last_token_at if several else None, length | decoded),
        (names.FORMAT, facts.last_token_at, formatted, {}),
        (
            names.RESPONSE,
            facts.response_started_at,
            facts.ended_at,
            _known({"http.response.status_code": facts.status}),
        ),
    ]


def _status(facts: RequestFacts) -> Status:
    """Errors are what the server did not do; a refusal with 4xx is the caller's, as the HTTP conventions have it."""
    if facts.outcome == "failed" or (facts.status or 0) >= 500:
        return Status(StatusCode.ERROR, facts.error_message or facts.reason)
    return _UNSET


def _exception(facts: RequestFacts, at: int) -> Sequence[Event]:
    if facts.reason is None:
        return ()
    return (Event("exception", {"exception.message": facts.error_message or facts.reason}, at),)


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _known(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
