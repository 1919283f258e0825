"""The failure journal: a file that outlives the process that failed.

`llmobs.instrument` appends one JSON object a line and fsyncs it before the process dies; the sidecar reads the file,
also after vLLM is gone. Both sides share only this module. A line is self-contained and below 16 KiB; a reader skips
what it cannot parse (a line may be cut by the crash). Text of prompts and completions never appears.

File: `journal.jsonl` in the state directory (`LLMOBS_STATE_DIR`), group-readable, rotated once to `journal.jsonl.1`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

FILE_NAME = "journal.jsonl"
MAX_LINE_BYTES = 16 * 1024

#: `oom`: memory ran out. `engine_dead`: the engine is gone for another reason. `requests_failed`: the API server's
#: account of the requests that were lost, written once per engine death with their number in `count`.
EVENTS = ("oom", "engine_dead", "requests_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line. `id` is unique and names the event, so that a reader counts it once however often it reads.

    Times are Unix seconds. `kind` is ``cuda`` or ``host`` for an oom. `requests` lists the batch as
    (request id, prompt tokens, output tokens) and is cut, with the number left out in `requests_left_out`, to keep the
    line below `MAX_LINE_BYTES`. `memory` holds allocator figures in bytes.
    """

    id: str
    event: str
    time: float
    process: str
    pid: int
    instance: str | None = None
    kind: str | None = None
    reason: str | None = None
    count: int | None = None
    #: With `requests_failed`: all requests of this instance that failed for `reason`, this event included. It lets a
    #: reader that also saw `/stats` of the same instance count each failure once.
    total: int | None = None
    model_name: str | None = None
    engine: str | None = None
    message: str = ""
    device: str | None = None
    step_tokens: int | None = None
    kv_cache_usage: float | None = None
    memory: dict[str, float] = field(default_factory=dict)
    requests: tuple[tuple[str, int, int], ...] = ()
    requests_left_out: int = 0


def to_line(entry: JournalEntry) -> bytes:
    """Return the entry as one line with its newline, at most `MAX_LINE_BYTES` long."""
    record = {"schema": "llmobs.journal/v1", **asdict(entry)}
    record["message"] = entry.message[:1024]
    requests = [[r[0][:128], r[1], r[2]] for r in entry.requests]
    while True:
        record["requests"] = requests
        record["requests_left_out"] = entry.requests_left_out + len(entry.requests) - len(requests)
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) <= MAX_LINE_BYTES or not requests:
            return line[:MAX_LINE_BYTES]
        requests = requests[: len(requests) // 2]


def from_line(line: bytes) -> JournalEntry | None:
    """Return the entry in `line`, or None when it is cut, foreign or malformed. Unknown fields are ignored."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        record: Any = json.loads(line)
        if record.get("schema") != "llmobs.journal/v1" or record["event"] not in EVENTS:
            return None
        return JournalEntry(
            id=str(record["id"])[:128],
            event=record["event"],
            time=float(record["time"]),
            process=str(record.get("process", ""))[:64],
            pid=int(record.get("pid", 0)),
            instance=_text(record.get("instance")),
            kind=_text(record.get("kind")),
            reason=_text(record.get("reason")),
            count=None if record.get("count") is None else max(0, int(record["count"])),
            total=None if record.get("total") is None else max(0, int(record["total"])),
            model_name=_text(record.get("model_name")),
            engine=_text(record.get("engine")),
            message=str(record.get("message", ""))[:1024],
            device=_text(record.get("device")),
            step_tokens=None if record.get("step_tokens") is None else int(record["step_tokens"]),
            kv_cache_usage=None if record.get("kv_cache_usage") is None else float(record["kv_cache_usage"]),
            memory={str(k): float(v) for k, v in (record.get("memory") or {}).items()},
            requests=tuple((str(r[0]), int(r[1]), int(r[2])) for r in record.get("requests") or ()),
            requests_left_out=int(record.get("requests_left_out", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    return value[:256] if isinstance(value, str) else None
