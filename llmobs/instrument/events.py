"""The log events of requests and of the engine. docs/logs.md describes every field, and a test holds it to that."""

from __future__ import annotations

import time
from typing import Any

from llmobs.instrument.observer import Observer
from llmobs.instrument.record import RequestFacts, RequestRecord
from llmobs.instrument.runtime import Runtime

_LEVELS = {"completed": "info", "rejected": "warning", "failed": "error"}


class RequestLog(Observer):
    """Logs one line per request that has ended."""

    name = "request_log"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def finished(self, record: RequestRecord, facts: RequestFacts) -> None:
        """Queue the line."""
        log = self._runtime.log
        if not log.enabled:
            return
        settings = self._runtime.settings
        content = content_of(record, settings.capture_max_chars) if settings.capture_content else {}
        now = facts.wall(facts.ended_at)
        level = "warning" if facts.reason in ("abort", "timeout") else _LEVELS[facts.outcome]
        log.put(level, f"request_{facts.outcome}", lambda: fields(facts) | content, now)
        for event, marked in (("prompt_near_limit", facts.near_limit), ("prompt_outlier", facts.outlier)):
            if marked:
                log.put("warning", event, lambda: _prompt_fields(facts, self._runtime.max_model_len), now)


def fields(facts: RequestFacts) -> dict[str, Any]:
    """Return the fields of a request's line, except event, timestamp and level."""
    prompt, completion = facts.prompt_tokens, facts.completion_tokens
    load = facts.load
    return {
        "request_id": facts.request_id,
        "trace_id": facts.trace.trace_id if facts.trace else None,
        "span_id": facts.trace.span_id if facts.trace else None,
        "model": facts.model,
        "lora": facts.lora,
        "endpoint": facts.endpoint,
        "stream": facts.stream,
        "http_status": facts.status,
        "finish_reason": facts.finish_reason,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": None if prompt is None else prompt + (completion or 0),
        "cached_tokens": facts.cached_tokens,
        "latency_ms": _ms(facts.latency),
        "queue_ms": _ms(facts.queue),
        "ttft_ms": _ms(facts.time_to_first_token),
        "prefill_latency_ms": _ms(facts.prefill),
        "decode_latency_ms": _ms(facts.decode),
        "num_prompt_tokens_per_sec": _rounded(facts.prompt_rate, 1),
        "num_generation_tokens_per_sec": _rounded(facts.generation_rate, 1),
        "kv_cache_usage_ratio": _rounded(load.kv_cache_usage, 4),
        "num_requests_waiting": load.waiting,
        "num_requests_running": load.running,
        "num_preemptions": facts.preemptions,
        "spec_acceptance_rate": _rounded(facts.spec_acceptance, 4),
        "prompt_near_limit": facts.near_limit,
        "prompt_outlier": facts.outlier,
        "failure_reason": facts.reason,
        "error_code": facts.error_code,
        "error_msg": facts.error_message,
    }


def content_of(record: RequestRecord, limit: int) -> dict[str, Any]:
    """Return prompt and completion text, each cut to `limit` characters. Only where the operator asked for it."""
    if not record.sequences:
        return {}
    state = record.sequences[0].state
    detokenizers = [getattr(s.state, "detokenizer", None) for s in record.sequences]
    prompt = getattr(state, "prompt", None)
    return {
        "prompt": prompt[:limit] if isinstance(prompt, str) else None,
        "completion": [str(getattr(d, "output_text", ""))[:limit] for d in detokenizers if d is not None],
    }


def engine_stats(runtime: Runtime) -> None:
    """Queue one engine_stats line per engine."""
    wall, now = time.time(), time.monotonic()
    for index, ledger in runtime.ledgers.items():
        counters = ledger.counters
        values = {
            "engine": str(index),
            "model": ledger.model_name,
            "num_requests_running": ledger.load.running,
            "num_requests_waiting": ledger.load.waiting,
            "kv_cache_usage_ratio": _rounded(ledger.load.kv_cache_usage, 4),
            "prompt_tokens_total": counters["prompt_tokens"],
            "generation_tokens_total": counters["generation_tokens"],
            "preemptions_total": counters["preemptions"],
            "prefix_cache_queries_total": counters["prefix_queries"],
            "prefix_cache_hits_total": counters["prefix_hits"],
            "requests_in_flight": len(runtime.active),
            "requests_completed_total": runtime.completed,
            "requests_failed_total": {k: v for k, v in runtime.failed.items() if v},
            "seconds_since_progress": _rounded(_since(runtime, index, now), 3),
            "log_lines_dropped_total": runtime.log.dropped,
        }
        runtime.log.put("info", "engine_stats", values, wall)


def _since(runtime: Runtime, engine: int, now: float) -> float | None:
    busy = runtime.busy_since(engine)
    if busy is None:
        return None
    return max(0.0, now - max(busy, runtime.ledgers[engine].progress_at or busy))


def _prompt_fields(facts: RequestFacts, max_model_len: int) -> dict[str, Any]:
    return {
        "request_id": facts.request_id,
        "trace_id": facts.trace.trace_id if facts.trace else None,
        "model": facts.model,
        "endpoint": facts.endpoint,
        "prompt_tokens": facts.prompt_tokens,
        "max_model_len": max_model_len,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
