"""How a request ended: completed, failed, or rejected, and for which of the closed set of reasons. Pure functions."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from llmobs.instrument.record import RequestRecord

#: Most characters of an error message that are kept.
MAX_MESSAGE = 512

#: vLLM's words for "does not fit the model's context", over all versions read (0.5 to 0.33).
_CONTEXT = re.compile(
    r"maximum context length|max_model_len|maximum model length|longer than the maximum"
    r"|maximum input length|maximum allowed length|input length \(?\d+\)? exceeds",
    re.IGNORECASE,
)
_STATUS_WORDS = {401: "unauthorized", 403: "forbidden", 404: "not found", 413: "body too large"}


class Outcome(NamedTuple):
    """`kind` is completed, failed or rejected. `reason` is one of `snapshot.FAILURE_REASONS`; None when completed."""

    kind: str
    reason: str | None
    code: int | None
    message: str | None


COMPLETED = Outcome("completed", None, None, None)


def classify(record: RequestRecord, *, timeout: float, raised: BaseException | None, dead: str | None) -> Outcome:
    """Return how `record` ended. `timeout` is in seconds.

    `raised` is what left the application, `dead` why the engine is dead ("oom", "engine_dead") or None. The death of
    the engine explains whatever follows it; then a client that left explains a response that was never finished; then
    the status speaks.
    """
    status = record.status
    code, message = error_of(record)
    if record.death_reason is not None and not _finished(record):
        text = (
            message or "the engine ran out of memory" if record.death_reason == "oom" else message or "engine is dead"
        )
        return Outcome("failed", record.death_reason, code or status or 500, text)
    if record.disconnected_at is not None and not record.response_complete:
        waited = record.disconnected_at - record.started
        reason = "timeout" if waited >= timeout else "abort"
        return Outcome("failed", reason, 499, f"the client closed the connection after {waited:.3f} s")
    if record.rejection is not None:
        return Outcome("rejected", "rejected", code or status, message or f"queue limit {record.rejection} reached")
    if record.stream_error:
        return Outcome("failed", dead or "error", code or 500, message)
    if status is not None and status >= 400:
        return _by_status(status, code, message, dead)
    if raised is not None:
        return Outcome("failed", dead or "error", 500, f"{type(raised).__name__}: {raised}"[:MAX_MESSAGE])
    if record.http and not record.response_complete:
        return Outcome("failed", dead or "error", status, "the response was not finished")
    reasons = {s.finish_reason for s in record.sequences}
    if "error" in reasons:
        return Outcome("failed", "error", status, "the engine finished a sequence with an error")
    if "abort" in reasons:
        return Outcome("failed", "abort", status, "the engine aborted a sequence")
    return COMPLETED


def error_of(record: RequestRecord) -> tuple[int | None, str | None]:
    """Return code and message of the error vLLM sent, from the response body or the error frame of a stream."""
    payload = record.stream_error or record.error_body
    if not payload:
        return None, None
    try:
        document: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(document, dict):
        return None, None
    error = document.get("error", document)
    if isinstance(error, str):
        return None, error[:MAX_MESSAGE]
    if not isinstance(error, dict):
        return None, None
    code, message = error.get("code"), error.get("message")
    return code if isinstance(code, int) else None, str(message)[:MAX_MESSAGE] if message is not None else None


def error_frame(chunk: bytes) -> bytes:
    """Return the JSON of an error frame in a piece of an SSE stream, or nothing.

    vLLM sends whole frames, and a line break inside JSON text is escaped, so that generated text can't look like one.
    """
    start = 0 if chunk.startswith(b'data: {"error"') else chunk.find(b'\ndata: {"error"') + 1
    if start == 0 and not chunk.startswith(b'data: {"error"'):
        if not chunk.startswith((b"event: error", b"event: response.failed")):
            return b""
        start = chunk.find(b"data: ")
        if start < 0:
            return b"{}"
    line = chunk[start + len(b"data: ") :].split(b"\n", 1)[0]
    return line[:8192] or b"{}"


def _by_status(status: int, code: int | None, message: str | None, dead: str | None) -> Outcome:
    message = message or _STATUS_WORDS.get(status)
    if status in (408, 504):
        return Outcome("failed", "timeout", code or status, message)
    if status in (429, 503) and dead is None:
        return Outcome("rejected", "rejected", code or status, message)
    if status >= 500:
        return Outcome("failed", dead or "error", code or status, message)
    reason = "context_length" if message and _CONTEXT.search(message) else "invalid"
    return Outcome("rejected", reason, code or status, message)


def _finished(record: RequestRecord) -> bool:
    """Whether the whole answer was sent before the death could touch it."""
    return record.response_complete and not record.stream_error and (record.status or 500) < 500
