"""How a request's end is named."""

from __future__ import annotations

import pytest

from llmobs.instrument.outcome import classify, error_frame
from llmobs.instrument.record import RequestRecord


def _record(**values: object) -> RequestRecord:
    record = RequestRecord("id", "/v1/completions")
    record.status, record.response_complete = 200, True
    for name, value in values.items():
        setattr(record, name, value)
    return record


def _left_after(seconds: float) -> dict[str, object]:
    probe = RequestRecord("x", None)
    return {"started": probe.started, "disconnected_at": probe.started + seconds, "response_complete": False}


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ({}, "completed", None),
        ({"status": 400, "error_body": b'{"error":{"message":"bad","code":400}}'}, "rejected", "invalid"),
        (
            {"status": 400, "error_body": b'{"error":{"message":"maximum context length is 1024 tokens","code":400}}'},
            "rejected",
            "context_length",
        ),
        ({"status": 404}, "rejected", "invalid"),
        ({"status": 503}, "rejected", "rejected"),
        ({"status": 429}, "rejected", "rejected"),
        ({"status": 503, "rejection": "max_num_queued_reqs"}, "rejected", "rejected"),
        ({"status": 408}, "failed", "timeout"),
        ({"status": 504}, "failed", "timeout"),
        ({"status": 500}, "failed", "error"),
        ({"stream_error": b'{"error":{"message":"x","code":500}}'}, "failed", "error"),
        ({"response_complete": False}, "failed", "error"),
        (_left_after(0.5), "failed", "abort"),
        (_left_after(31.0), "failed", "timeout"),
        ({"status": 500, "death_reason": "oom"}, "failed", "oom"),
        ({"death_reason": "oom", "stream_error": b"{}"}, "failed", "oom"),
        (_left_after(0.5) | {"death_reason": "engine_dead"}, "failed", "engine_dead"),
        ({"death_reason": "oom"}, "completed", None),  # the whole answer was out before the death
    ],
)
def test_every_end_has_one_outcome(values: dict[str, object], kind: str, reason: str | None) -> None:
    """Each combination of what was seen gives one outcome with one reason of the closed set."""
    outcome = classify(_record(**values), timeout=30.0, raised=None, dead=None)
    assert (outcome.kind, outcome.reason) == (kind, reason)


def test_a_request_after_the_death_is_not_in_flight_at_it() -> None:
    """A request that arrives when the engine is dead fails with the death, not as an unknown error."""
    outcome = classify(_record(status=500), timeout=30.0, raised=None, dead="engine_dead")
    assert outcome.reason == "engine_dead"


@pytest.mark.parametrize(
    ("chunk", "found"),
    [
        (b'data: {"error": {"message": "x"}}\n\n', b'{"error": {"message": "x"}}'),
        (b'data: {"id":1}\n\ndata: {"error": {"code": 500}}\n\ndata: [DONE]\n\n', b'{"error": {"code": 500}}'),
        (b'event: error\ndata: {"type":"error"}\n\n', b'{"type":"error"}'),
        (b'data: {"choices":[{"text":"\\ndata: {\\"error\\""}]}\n\n', b""),
        (b"data: [DONE]\n\n", b""),
    ],
)
def test_only_a_real_error_frame_is_one(chunk: bytes, found: bytes) -> None:
    """Generated text that looks like an error frame is escaped inside JSON and is not taken for one."""
    assert error_frame(chunk) == found
