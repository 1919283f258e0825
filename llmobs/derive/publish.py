"""What is known about one target → samples of the contract."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from llmobs.catalog.engine import ENGINE_METRICS, STATES, TARGET_ERRORS
from llmobs.derive import cache, joined, phases, queue, speculation
from llmobs.derive.failures import EngineKey
from llmobs.derive.target import Limits, TargetState, engine_word, failed, quiet_seconds
from llmobs.derive.window import Window, difference
from llmobs.snapshot import FACTS, OOM_KINDS, PHASES, EngineStats, Histogram


class Sample(NamedTuple):
    """One series: metric name, label values in the catalogue's order (the target's first), value."""

    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


# Metrics that are a fact of the engine unchanged: (metric, fact, split by a label, highest value that makes sense). The
# prefix-cache counters are not among them, because old versions count them in another unit.
_PASSED = tuple(
    (m.name, m.fact, FACTS[m.fact].by is not None, 1.0 if m.unit in ("ratio", "bool") else math.inf)
    for m in ENGINE_METRICS
    if m.fact is not None and m.fact not in ("prefix_queries", "prefix_hits", "kv_cache_usage")
)

_SERVER_COUNTS = (
    ("vllm_http_responses_total", "http_responses"),
    ("llmobs_hook_errors_total", "hook_errors"),
    ("llmobs_instrument_dropped_total", "dropped"),
)


def samples(state: TargetState, target: str, limits: Limits, *, max_label_values: int = 64) -> tuple[list[Sample], int]:
    """Return the samples of one target and the number of label sets left out by the cap on outside label values."""
    cap = _Cap(max_label_values)
    out = list(_status(state, target, cap))
    for (model, engine), stats in state.engines.items():
        labels = (target, model, engine)
        for name, fact, split, highest in _PASSED:
            value = getattr(stats, fact)
            if split:
                out.extend(
                    Sample(name, (*labels, key), part)
                    for key, part in cap(value)
                    if highest == math.inf or part <= highest
                )
            elif value is not None and (highest == math.inf or value <= highest):
                out.append(Sample(name, labels, value))
        out.extend(
            Sample(name, (*labels, *more), value)
            for name, more, value in _derived(state, (model, engine), stats, limits, cap)
        )
    out.extend(_joined(state, target))
    return out, cap.dropped


class _Cap:
    """Takes the first values, in order, of a label that comes from outside, and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.dropped = 0

    def __call__(self, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        self.dropped += max(0, len(values) - self._limit)
        return ((key, values[key]) for key in sorted(values)[: self._limit])


def _status(state: TargetState, target: str, cap: _Cap) -> Iterator[Sample]:
    reading = state.reading
    yield Sample("vllm_up", (target,), float(state.up))
    for word in STATES:
        yield Sample("vllm_engine_state", (target, word), float(word == state.word))
    if reading is not None:
        yield Sample("vllm_engine_state_age_seconds", (target,), max(0.0, reading.taken_at - state.entered_at))
        for reason in TARGET_ERRORS:
            yield Sample("vllm_target_error", (target, reason), float(reason == reading.error_reason))
        if reading.health is not None:
            yield Sample("vllm_health_status", (target,), float(reading.health == 200))
    yield Sample("vllm_engine_restarts_total", (target,), float(state.restarts))
    for kind in OOM_KINDS:
        if kind in state.ooms:
            yield Sample("vllm_oom_total", (target, kind), state.ooms[kind])
    for evidence, count in sorted(state.failures.oom_evidence.items()):
        yield Sample("vllm_oom_evidence_total", (target, evidence), count)
    for name, memory in zip(("vllm_host_memory_used_bytes", "vllm_host_memory_limit_bytes"), state.host_memory):
        if memory is not None:
            yield Sample(name, (target,), memory)
    # Failures are llmobs' own count and stay while the target is down: that is when they matter.
    for key in sorted({*state.known, *state.failures.lost}):
        for reason, count in failed(state, key).items():
            yield Sample("vllm_request_failed_total", (target, *key, reason), count)
    last = state.last
    if not state.up or last is None:
        return
    info = (target, last.version or "", last.source, last.dialect, str(last.simulated).lower())
    yield Sample("vllm_info", info, 1.0)
    if last.start_time is not None:
        yield Sample("vllm_start_time_seconds", (target,), last.start_time)
    yield Sample("llmobs_target_unmapped_series", (target,), float(last.unmapped_series))
    yield Sample("llmobs_target_partial", (target,), float(last.partial))
    for hook, active in cap(last.hook_active):
        yield Sample("llmobs_hook_active", (target, hook), float(active > 0))
    for name, counts in _SERVER_COUNTS:
        for kind, count in cap(state.server_counts.get(counts, {})):
            yield Sample(name, (target, kind), count)


_Derived = tuple[str, tuple[str, ...], "float | Histogram"]


def _derived(state: TargetState, key: EngineKey, stats: EngineStats, limits: Limits, cap: _Cap) -> Iterator[_Derived]:
    quiet = quiet_seconds(state, key)
    word = engine_word(state, key, limits)
    now: dict[str, float | None] = {
        "vllm_engine_stalled": float(word == "stalled"),
        "vllm_engine_livelock": float(word == "livelock"),
        "vllm_engine_seconds_since_progress": quiet,
        "vllm_engine_steps_total": stats.step_tokens.count if stats.step_tokens else None,
        "vllm_kv_cache_usage_ratio": cache.usage(stats),
        "vllm_kv_cache_free_ratio": cache.free_ratio(stats),
        "vllm_gpu_cache_hit_rate_since_start": cache.hit_rate_since_start(_this_run(state, key, stats)),
        "vllm_prefix_cache_queries_total": cache.in_tokens(stats, stats.prefix_queries),
        "vllm_prefix_cache_hits_total": cache.in_tokens(stats, stats.prefix_hits),
        **{name: state.counts.get((key, name)) for name in phases.counters(stats)},
        **_peaks(state, key),
    }
    for name, value in now.items():
        if value is not None:
            yield name, (), value
    seconds = phases.phase_seconds(stats)
    for phase in PHASES:
        if phase in seconds:
            yield "vllm_phase_seconds_total", (phase,), seconds[phase]
    if stats.config:
        config = stats.config
        labels = ("block_size", "cache_dtype", "gpu_memory_utilization", "prefix_caching")
        yield "vllm_config_info", tuple(config.get(name, "") for name in labels), 1.0
    window = state.window(key)
    if window is not None:
        yield from _windowed(window, cap)


def _this_run(state: TargetState, key: EngineKey, stats: EngineStats) -> EngineStats:
    """Return the engine with the prefix-cache counters of its present run."""
    raw = state.carries[key].last
    return replace(stats, prefix_queries=raw.get("prefix_queries"), prefix_hits=raw.get("prefix_hits"))


def _windowed(window: Window, cap: _Cap) -> Iterator[_Derived]:
    values = {
        "vllm_request_queue_drain_seconds": queue.drain_seconds(window),
        "vllm_preemptions_per_second": queue.preemptions_per_second(window),
        "vllm_mean_batch_tokens": queue.mean_batch_tokens(window),
        "vllm_kv_cache_fill_seconds": cache.fill_seconds(window),
        "vllm_gpu_cache_hit_rate": cache.hit_rate(window),
        "vllm_rescheduled_cache_hit_rate": cache.rescheduled_hit_rate(window),
        "vllm_external_cache_hit_rate": cache.external_hit_rate(window),
        "vllm_multimodal_cache_hit_rate": cache.multimodal_hit_rate(window),
        "vllm_request_overhead_ratio": phases.overhead_ratio(window),
        "vllm_decode_throughput_tokens_per_second": phases.decode_tokens_per_second(window),
        "vllm_prefill_throughput_tokens_per_second": phases.prefill_tokens_per_second(window),
        "vllm_spec_decode_acceptance_rate": speculation.acceptance_rate(window),
        "vllm_spec_decode_mean_accepted_length": speculation.mean_accepted_length(window),
    }
    for name, value in values.items():
        if value is not None:
            yield name, (), value
    shares = phases.phase_ratio(window)
    for phase in shares:
        yield "vllm_phase_ratio", (phase,), shares[phase]
    for position, rate in cap(speculation.acceptance_rate_per_position(window)):
        yield "vllm_spec_decode_acceptance_rate_per_position", (position,), rate


def _peaks(state: TargetState, key: EngineKey) -> Mapping[str, float | None]:
    kept = state.peaks.get(key, ())
    return {
        "vllm_request_waiting_queue_length_peak": max((p.waiting for p in kept if p.waiting is not None), default=None),
        "vllm_num_running_requests_peak": max((p.running for p in kept if p.running is not None), default=None),
        "vllm_kv_cache_usage_ratio_peak": max((p.usage for p in kept if p.usage is not None), default=None),
    }


def _joined(state: TargetState, target: str) -> Iterator[Sample]:
    if state.idle_seconds is not None:
        yield Sample("vllm_gpu_idle_while_waiting_seconds_total", (target,), state.idle_seconds)
    if not state.up or not state.history:
        return
    first, last = state.history[0], state.history[-1]
    gpus = joined.watched(last.gpus)
    joules = joined.energy(joined.watched(first.gpus), gpus)
    per_joule = joined.tokens_per_joule(_tokens(first.engines, last.engines), joules)
    if per_joule is not None:
        yield Sample("vllm_tokens_per_joule", (target,), per_joule)
    share = joined.kv_cache_share(state.engines.values(), gpus)
    if share is not None:
        yield Sample("vllm_kv_cache_share_of_gpu_memory_ratio", (target,), share)


def _tokens(before: Mapping[EngineKey, EngineStats], now: Mapping[EngineKey, EngineStats]) -> float | None:
    """Tokens computed and generated between two moments by all engines of a target; None unless all are known."""
    total = 0.0
    for key, engine in now.items():
        earlier = before.get(key)
        if earlier is None:
            return None
        computed = difference(phases.computed_prompt_tokens(earlier), phases.computed_prompt_tokens(engine))
        generated = difference(earlier.generation_tokens, engine.generation_tokens)
        if computed is None or generated is None:
            return None
        total += computed + generated
    return total
