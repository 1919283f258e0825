"""Build the spans of one request that has ended, from its facts.

Every start and end is a moment that was measured; a span that lacks one of its two is left out. This runs on the event
loop of vLLM's API server, or with token detail in a thread that keeps it waiting, so nothing is looked up, converted or
copied twice. An attribute that is not known is None here, and left out when it is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentelemetry.trace import TraceState

from llmobs.instrument.endpoints import OPERATIONS
from llmobs.instrument.latencies import position_bucket
from llmobs.instrument.record import RequestFacts
from llmobs.instrument.traces import names
from llmobs.instrument.traces.context import new_span_ids
from llmobs.instrument.traces.encode import INTERNAL, SERVER, Common, Event, Span
from llmobs.instrument.traces.tokens import Detail, Step
from llmobs.snapshot import TOKEN_BUCKETS

_TYPE_LENGTH = 128

Attributes = dict[str, Any]


@dataclass(slots=True, kw_only=True)  # not frozen: that alone would double the time to make one
class Ended:
    """A request to be told as spans. Times are on the monotonic clock, in seconds.

    `request` are the attributes of its sampling parameters, `offset` is added to the engine's times of `detail`.
    `error` is the JSON of the error that vLLM answered with, empty without one.
    """

    facts: RequestFacts
    scheme: str | None
    parsed_at: float | None
    last_byte_at: float | None
    request: Mapping[str, Any]
    finish_reasons: Sequence[str]
    detail: Detail | None
    offset: float
    error: bytes = b""


class _Phase(NamedTuple):
    """A child of the root. `start` and `end` are on the monotonic clock, None when the request did not get there."""

    name: str
    start: float | None
    end: float | None
    attributes: Attributes


class SpanBuilder:
    """Makes the spans of requests. `labels` go on every root span."""

    def __init__(self, *, labels: Mapping[str, str], speculative: bool = False, logits: bool = False) -> None:
        self._labels = tuple((f"llmobs.label.{name}", value) for name, value in labels.items())
        self._speculative = speculative
        self._score = ("logit", "logit_max") if logits else ("logprob", "logprob_max")

    def request(self, ended: Ended) -> list[Span]:
        """Return all spans of a request: the root, its phases, and the decode steps where detail was kept."""
        facts = ended.facts
        trace = facts.trace
        if trace is None or trace.span_id is None:
            return []
        trace_id, root = bytes.fromhex(trace.trace_id), bytes.fromhex(trace.span_id)
        parent = None if trace.parent_id is None else bytes.fromhex(trace.parent_id)
        state = TraceState.from_header([trace.state]).to_header() if trace.state else ""
        origin, base = facts.started_at, int(facts.wall(facts.started_at) * 1e9)
        end = base + int(facts.latency * 1e9)
        spans = [
            Span(
                names.REQUEST,
                trace_id,
                root,
                parent,
                base,
                end,
                self._root_attributes(ended),
                self._root_common(ended),
                SERVER,
                state,
                parent is not None,
                _error(facts),
                _exception(ended, end),
            )
        ]
        ids = new_span_ids(len(names.PHASES))
        model = (("gen_ai.request.model", facts.model),)
        for span_id, (name, began, ended_at, attributes) in zip(ids, self._phases(ended)):
            if began is None or ended_at is None or ended_at < began:
                continue
            start, stop = base + int((began - origin) * 1e9), base + int((ended_at - origin) * 1e9)
            span = Span(name, trace_id, span_id, root, start, stop, attributes, model, INTERNAL, state)
            spans.append(span)
            if ended.detail is not None and name == names.DECODE:
                spans += self._steps(ended.detail, span, base, origin - ended.offset)
        return spans

    def _steps(self, detail: Detail, loop: Span, base: int, since: float) -> list[Span]:
        """Return the decode steps within their loop. `base` is in Unix nanoseconds what `since` is to the engine."""
        steps = detail.steps()
        trace_id, parent, state, earliest, latest = (
            loop.trace_id, loop.span_id, loop.trace_state, loop.start, loop.end,
        )  # fmt: skip
        spans = []
        for span_id, step in zip(new_span_ids(len(steps)), steps):
            end = base + int((step.at - since) * 1e9)
            start = end - int((step.seconds or 0.0) * 1e9)
            # The loop's own times were computed in another order: rounding must not put a step outside it.
            end = max(earliest, min(end, latest))
            start = max(earliest, min(start, end))
            spans.append(
                Span(names.STEP, trace_id, span_id, parent, start, end, self._step(step), self._step_common(step),
                     INTERNAL, state)
            )  # fmt: skip
        return spans

    def _root_common(self, ended: Ended) -> Common:
        """Return what most requests of a server have in common."""
        facts = ended.facts
        cached = facts.cached_tokens
        return (
            ("http.request.method", "POST"),
            ("http.route", facts.endpoint),
            ("url.path", facts.endpoint),
            ("url.scheme", ended.scheme),
            ("http.response.status_code", facts.status),
            ("error.type", facts.reason),
            ("gen_ai.operation.name", OPERATIONS.get(facts.endpoint or "")),
            ("gen_ai.provider.name", "vllm"),
            ("gen_ai.request.model", facts.model),
            ("gen_ai.response.model", (facts.lora or facts.model) if facts.completion_tokens else None),
            ("gen_ai.response.finish_reasons", tuple(ended.finish_reasons) or None),
            ("gen_ai.request.stream", facts.stream),
            ("llmobs.outcome", facts.outcome),
            ("llmobs.kv_cache_hit", None if cached is None else cached > 0),
            ("llmobs.preemptions", facts.preemptions),
            ("llmobs.sequences", facts.sequences or None),
            ("llmobs.lora", facts.lora),
            ("llmobs.prompt_near_limit", facts.near_limit or None),
            ("llmobs.prompt_outlier", facts.outlier or None),
            *self._labels,
        )

    def _root_attributes(self, ended: Ended) -> Attributes:
        """Return the rest: what differs from one request to the next."""
        facts = ended.facts
        load = facts.load_at_arrival
        latency, ttft, queue, prefill = facts.latency, facts.time_to_first_token, facts.queue, facts.prefill
        decode, prompt, cached, completion = (
            facts.decode, facts.prompt_tokens, facts.cached_tokens, facts.completion_tokens,
        )  # fmt: skip
        after_first = (completion or 0) - facts.sequences
        first_chunk = facts.first_byte_at if facts.stream else None
        return {
            "gen_ai.response.time_to_first_chunk": None if first_chunk is None else first_chunk - facts.started_at,
            "gen_ai.usage.input_tokens": prompt,
            "gen_ai.usage.output_tokens": completion,
            "gen_ai.usage.cache_read.input_tokens": cached,
            "gen_ai.latency.time_to_first_token": ttft,
            "gen_ai.latency.e2e": latency,
            "gen_ai.latency.time_in_queue": queue,
            "gen_ai.latency.time_in_model_prefill": prefill,
            "gen_ai.latency.time_in_model_decode": decode,
            "gen_ai.latency.time_in_model_inference": None if prefill is None or decode is None else prefill + decode,
            "llmobs.request_id": facts.request_id,
            "llmobs.input_length": prompt,
            "llmobs.output_length": completion,
            "llmobs.cached_tokens": cached,
            "llmobs.kv_cache_usage_ratio": load.kv_cache_usage,
            "llmobs.queue_length": load.waiting,
            "llmobs.running": load.running,
            "llmobs.spec_acceptance_ratio": facts.spec_acceptance,
            "llmobs.e2e_us": _us(latency),
            "llmobs.ttft_us": _us(ttft),
            "llmobs.queue_us": _us(queue),
            "llmobs.prefill_us": _us(prefill),
            "llmobs.decode_us": _us(decode),
            "llmobs.time_per_output_token_us": _us(decode / after_first) if decode and after_first > 0 else None,
            **ended.request,
        }

    def _phases(self, ended: Ended) -> Sequence[_Phase]:
        """Return all of `names.PHASES`, in that order."""
        facts, detail = ended.facts, ended.detail
        parsed = ended.parsed_at or facts.body_at
        cached, first, last = facts.cached_tokens, facts.first_token_at, facts.last_token_at
        length = {"llmobs.input_length": facts.prompt_tokens, "llmobs.cached_tokens": cached}
        prefill: Attributes = {**length, "llmobs.kv_cache_hit": None if cached is None else cached > 0}
        decode = {**length, "llmobs.output_length": facts.completion_tokens, "llmobs.preemptions": facts.preemptions}
        if detail is not None:
            if detail.first is not None:
                prefill.update(self._token(detail.first), token_bucket=_bucket(detail.first))
            decode |= {"llmobs.detail": True, "llmobs.steps": detail.seen}
            decode["llmobs.tokens.dropped"] = detail.seen - detail.most
        # A stream is formatted piece by piece: what is left after its last token ends when the last piece was handed
        # over.
        formatted = ended.last_byte_at if facts.stream else facts.response_started_at
        return (
            _Phase(names.PARSE, facts.started_at, parsed, {}),
            _Phase(names.BUILD, parsed, facts.submitted_at, {}),
            _Phase(names.QUEUE, facts.submitted_at, facts.scheduled_at, length),
            _Phase(names.PREFILL, facts.scheduled_at, first, prefill),
            _Phase(names.DECODE, first, last if last != first else None, decode),
            _Phase(names.FORMAT, last, formatted, {}),
            _Phase(
                names.RESPONSE, facts.response_started_at, facts.ended_at, {"http.response.status_code": facts.status}
            ),
        )

    def _token(self, step: Step) -> Attributes:
        score, best = self._score
        return {"token_index": step.position, "token_id": step.token_ids[0], score: step.score, best: step.best}

    def _step(self, step: Step) -> Attributes:
        attributes = self._token(step)
        if len(step.token_ids) > 1:
            attributes["token_ids"] = list(step.token_ids)
        if step.slow:
            attributes["llmobs.slow"] = True
        return attributes

    def _step_common(self, step: Step) -> Common:
        bucket, hit = ("token_bucket", _bucket(step)), ("kv_cache_hit", not step.recomputed)
        if not self._speculative:
            return (bucket, hit)
        accepted = len(step.token_ids) - 1
        return (bucket, hit, ("speculative_accepted", accepted > 0), ("speculative_accepted_tokens", accepted))


def _bucket(step: Step) -> str:
    return TOKEN_BUCKETS[position_bucket(step.position)]


def _error(facts: RequestFacts) -> str | None:
    """Errors are what the server did not do; a refusal with 4xx is the caller's, as the HTTP conventions have it."""
    if facts.outcome == "failed" or (facts.status or 0) >= 500:
        return facts.error_message or facts.reason or ""
    return None


def _exception(ended: Ended, at: int) -> Sequence[Event]:
    facts = ended.facts
    if facts.reason is None:
        return ()
    attributes = {
        "exception.type": _error_type(ended.error),
        "exception.message": facts.error_message or facts.reason,
    }
    return (Event("exception", at, attributes),)


def _error_type(payload: bytes) -> str | None:
    """Return the type that vLLM gives the error in its answer."""
    try:
        document = json.loads(payload)
        kind = document.get("error", document).get("type")
    except (ValueError, RecursionError, AttributeError):  # no JSON, or not vLLM's
        return None
    return kind[:_TYPE_LENGTH] if isinstance(kind, str) and kind else None


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
