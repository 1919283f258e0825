"""From a `RequestRecord` that has ended to its `RequestFacts`. Pure, but for what `Clients` learns."""

from __future__ import annotations

import re
import time
from typing import Any

from llmobs.instrument.clients import Clients
from llmobs.instrument.outcome import Outcome
from llmobs.instrument.record import Load, RequestFacts, RequestRecord, SequenceRecord, worst_finish_reason

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,128})"')
_HEAD = 65536


def assemble(
    record: RequestRecord,
    outcome: Outcome,
    *,
    model: str | None,
    load_at_arrival: Load,
    load: Load,
    max_prompt: float,
    offset: float,
    clients: Clients,
) -> RequestFacts:
    """Return the facts. `offset` is added to the engine's times, `max_prompt` is in tokens."""
    sequences = record.sequences
    prompts = sequences
    if len(sequences) > 1:  # those with the same parent share one prompt
        prompts = list({id(getattr(s.state, "parent_req", None) or s): s for s in reversed(sequences)}.values())
    stats = [s.stats for s in sequences if s.stats is not None]
    first = _first_scheduled(stats)
    lengths = [s.state.prompt_len or 0 for s in prompts]
    longest = max(lengths, default=0)
    outlier = False
    if lengths and record.client is not None:
        outlier = clients.judge(record.client, longest)
    stream, asked = record.stream, None
    if outcome.kind != "completed" and not stream:
        stream = _STREAM.search(record.body_head, 0, _HEAD) is not None
        found = None if sequences else _MODEL.search(record.body_head, 0, _HEAD)
        asked = found.group(1).decode("utf-8", "replace") if found else None
    return RequestFacts(
        request_id=record.request_id,
        trace=record.trace,
        outcome=outcome.kind,
        reason=outcome.reason,
        error_code=outcome.code,
        error_message=outcome.message,
        model=asked or model,
        lora=getattr(sequences[0].state, "lora_name", None) if sequences else None,
        endpoint=record.endpoint,
        stream=stream,
        status=record.status,
        finish_reason=worst_finish_reason([s.finish_reason for s in sequences if s.finish_reason is not None]),
        sequences=len(sequences),
        prompt_tokens=sum(lengths) if lengths else None,
        completion_tokens=sum([s.num_generation_tokens for s in stats]) if stats else None,
        cached_tokens=sum([getattr(s.state, "num_cached_tokens", None) or 0 for s in prompts]) if first else None,
        preemptions=_preemptions(stats),
        spec_acceptance=_acceptance(sequences),
        wall_offset=time.time() - time.monotonic(),
        started_at=record.started,
        body_at=record.body_at,
        submitted_at=sequences[0].submitted_at if sequences else None,
        queued_at=_at(first, "queued_ts", offset),
        scheduled_at=_at(first, "scheduled_ts", offset),
        first_token_at=_extreme(min, stats, "first_token_ts", offset),
        last_token_at=_extreme(max, stats, "last_token_ts", offset),
        response_started_at=record.response_started_at,
        first_byte_at=record.first_byte_at,
        ended_at=record.ended_at or record.left_at,
        load_at_arrival=load_at_arrival,
        load=load,
        near_limit=longest > max_prompt,
        outlier=outlier,
    )


def _first_scheduled(stats: list[Any]) -> Any:
    if len(stats) == 1:
        return stats[0] if stats[0].scheduled_ts else None
    scheduled = [s for s in stats if s.scheduled_ts]
    return min(scheduled, key=lambda s: s.scheduled_ts) if scheduled else None


def _at(stats: Any, name: str, offset: float) -> float | None:
    value = getattr(stats, name, 0.0)
    return value + offset if value else None


def _extreme(choose: Any, stats: list[Any], name: str, offset: float) -> float | None:
    values = [value for s in stats if (value := getattr(s, name))]
    return choose(values) + offset if values else None


def _preemptions(stats: list[Any]) -> int | None:
    counts = [count for s in stats if (count := getattr(s, "num_preemptions", None)) is not None]
    return sum(counts) if counts else None


def _acceptance(sequences: list[SequenceRecord]) -> float | None:
    accepted = drafted = 0
    for sequence in sequences:
        metrics = getattr(sequence.state, "spec_decode_metrics", None)
        if metrics is not None:
            drafted += metrics.num_draft_tokens
            accepted += sum(count * tokens for count, tokens in enumerate(metrics.histogram))
    return accepted / drafted if drafted else None
