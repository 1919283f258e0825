"""One request, followed: what is collected while it lives, and the facts that remain when it has ended.

`RequestRecord` is filled by the middleware (HTTP side) and the hooks in `frontend` (engine side). `facts()` turns it
into `RequestFacts`, once, which nobody changes; ledger, log, and spans all read those and nothing else.

Clocks: `started` and every `*_at` are this process's monotonic clock in seconds (`time.monotonic`), which on one host
is also the engine core's. `RequestFacts.wall(t)` converts to Unix time.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

#: The request whose code is running; inherited by the tasks it starts.
current: ContextVar[RequestRecord | None] = ContextVar("llmobs_request", default=None)

#: Finish reasons, worst first: the one shown for a request with several sequences.
_WORST = ("error", "abort", "length", "repetition", "stop")


class TraceContext(NamedTuple):
    """The trace a request belongs to: ids as lower-case hex (32 and 16 digits).

    `span_id` is that of our root span, None when nobody makes spans here; `parent_id` is the caller's.
    """

    trace_id: str
    span_id: str | None
    sampled: bool
    parent_id: str | None = None
    state: str = ""


_HEX = frozenset(b"0123456789abcdef")


def parse_traceparent(value: bytes) -> TraceContext | None:
    """Return the caller's context from a W3C `traceparent` header, or None when it is not a valid one."""
    parts = value.strip().split(b"-")
    if len(parts) < 4 or [len(p) for p in parts[:4]] != [2, 32, 16, 2] or (parts[0] == b"00" and len(parts) != 4):
        return None
    version, trace_id, parent_id, flags = parts[:4]
    if not all(_HEX.issuperset(p) for p in parts[:4]) or version == b"ff":
        return None
    if trace_id == b"0" * 32 or parent_id == b"0" * 16:
        return None
    return TraceContext(trace_id.decode(), None, bool(int(flags, 16) & 1), parent_id.decode())


class Load(NamedTuple):
    """What the scheduler said last: requests running and waiting, and used KV blocks / all KV blocks (0–1)."""

    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None


class SequenceRecord:
    """One sequence of a request in the engine. `state` is vLLM's RequestState, `stats` its RequestStateStats or None.

    `detail` is None unless somebody wants every output of this sequence: then it is called at each step, before vLLM
    applies the output, with (EngineCoreOutput, engine timestamp, seconds since this sequence's last output or None for
    the first, index of the first new token).
    """

    ended_at: float | None = None
    reason: Any = None  # vLLM's FinishReason, or our text
    detail: Any = None

    def __init__(self, request: RequestRecord, state: Any, submitted_at: float, params: Any = None) -> None:
        self.request = request
        self.state = state
        self.stats = getattr(state, "stats", None)
        self.submitted_at = submitted_at
        self.params = params  # vLLM's SamplingParams

    @property
    def finish_reason(self) -> str | None:
        """Why it has ended, None before."""
        return None if self.reason is None else str(self.reason)


class RequestRecord:
    """Everything seen of one request so far."""

    # Class attributes, so that a new record sets only what it has: one is made while the engine waits for the request.
    trace: TraceContext | None = None
    client: int | None = None  # hash of the header that names the client
    heard: Any = None  # `Runtime.heard()` at arrival
    scheme: str | None = None  # http or https
    body_at: float | None = None  # last piece of the request's body received
    body_head = b""  # first piece of it, kept only while the request lives
    status: int | None = None
    stream = False
    response_started_at: float | None = None  # status line sent
    first_byte_at: float | None = None  # first piece of the response's body sent
    last_byte_at: float | None = None  # last piece of it, so far
    response_complete = False
    disconnected_at: float | None = None
    error_body = b""
    stream_error = b""
    rejection: str | None = None  # vLLM's admission control refused it, with this reason
    death_reason: str | None = None  # the engine died while this was in flight: oom or engine_dead
    ended_at: float | None = None  # last byte handed over
    parsed_at: float | None = None  # body read and validated, the endpoint is about to run
    wants_detail = False  # the tracer wants every step of its first sequence
    detail: Any = None  # and collects them here
    # What follows is set once, when it has left us (`Runtime.end`).
    left_at = 0.0
    raised: BaseException | None = None  # what left the application
    heard_at_end: Any = None
    engine_death: str | None = None  # why the engine was dead then

    def __init__(self, request_id: str, endpoint: str | None, *, http: bool = True) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.http = http
        self.started = time.monotonic()
        self.sequences: list[SequenceRecord] = []

    @property
    def unfinished(self) -> bool:
        """Whether a sequence of it is still in the engine."""
        return any(s.reason is None for s in self.sequences)


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: that alone would double the time to make one
class RequestFacts:
    """What is known about a request that has ended. Times in seconds, absent ones are None.

    `outcome` is completed, failed or rejected; `reason` one of `snapshot.FAILURE_REASONS`, or None when completed.
    Prompt tokens are counted once per prompt (n sequences share it), completion tokens over all sequences. `*_at` are
    on the monotonic clock; with `wall_offset` they are Unix time. `queue`, `prefill` and `decode` are those of the
    first sequence that was scheduled.
    """

    request_id: str
    trace: TraceContext | None
    outcome: str
    reason: str | None
    error_code: int | None
    error_message: str | None
    model: str | None
    lora: str | None
    endpoint: str | None
    stream: bool
    status: int | None
    finish_reason: str | None
    sequences: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    preemptions: int | None
    spec_acceptance: float | None
    wall_offset: float
    started_at: float
    body_at: float | None
    submitted_at: float | None
    queued_at: float | None
    scheduled_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    response_started_at: float | None
    first_byte_at: float | None
    ended_at: float
    load_at_arrival: Load
    load: Load
    near_limit: bool
    outlier: bool

    @property
    def latency(self) -> float:
        """Arrival to the last byte handed to the server, in seconds."""
        return max(0.0, self.ended_at - self.started_at)

    @property
    def queue(self) -> float | None:
        """First QUEUED to first SCHEDULED in the engine core."""
        return _interval(self.queued_at, self.scheduled_at)

    @property
    def time_to_first_token(self) -> float | None:
        """Arrival of the HTTP request to the first token in the engine core."""
        return _interval(self.started_at, self.first_token_at)

    @property
    def prefill(self) -> float | None:
        """First SCHEDULED to the first token."""
        return _interval(self.scheduled_at, self.first_token_at)

    @property
    def decode(self) -> float | None:
        """First to last token; 0 for a single token."""
        return _interval(self.first_token_at, self.last_token_at)

    @property
    def prompt_rate(self) -> float | None:
        """Prompt tokens computed (not taken from the cache) per second of prefill."""
        seconds = self.prefill
        if not seconds or self.prompt_tokens is None:
            return None
        return max(0, self.prompt_tokens - (self.cached_tokens or 0)) / seconds

    @property
    def generation_rate(self) -> float | None:
        """Tokens after the first of each sequence, per second of decode."""
        seconds = self.decode
        if not seconds or self.completion_tokens is None:
            return None
        return max(0, self.completion_tokens - self.sequences) / seconds

    def wall(self, at: float) -> float:
        """Return the Unix time of a moment on the monotonic clock."""
        return at + self.wall_offset


def worst_finish_reason(reasons: list[str]) -> str | None:
    """Return the one that says most about what went wrong, or None without any."""
    for reason in _WORST:
        if reason in reasons:
            return reason
    return reasons[0] if reasons else None


def _interval(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    return max(0.0, end - start)  # a resumable request is scheduled before it is queued again: clamped
