"""`GET /api/v1/state`: what the live page shows, as JSON. Unknown is null."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from llmobs import __version__
from llmobs.config import mask_url
from llmobs.derive import phases, queue, speculation, window
from llmobs.derive.failures import EngineKey
from llmobs.derive.target import engine_word, failed
from llmobs.exporter.gpus import GpuWatch
from llmobs.exporter.watch import TargetWatch, figures
from llmobs.gpu.publish import published
from llmobs.snapshot import GpuStats

_THROTTLES = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake", "sw_power_cap", "sync_boost")


def state(
    watches: Collection[TargetWatch],
    gpus: GpuWatch,
    *,
    window_seconds: float,
    histories: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the state of everything watched. `histories` names the targets whose histories are wanted; None is all."""
    return {
        "time": time.time(),
        "version": __version__,
        "window_seconds": window_seconds,
        "targets": [_target(w, with_history=histories is None or w.target.name in histories) for w in watches],
        "gpus": _gpus(gpus, _kv_budget(watches)),
    }


def _target(watch: TargetWatch, *, with_history: bool) -> dict[str, Any]:
    now = time.monotonic()
    current = watch.state
    last, reading = current.last, current.reading
    age = now - last.taken_at if last is not None else None
    error = None
    if reading is not None and reading.error_reason:
        error = {"reason": reading.error_reason, "message": reading.error_message}
    return {
        "name": watch.target.name,
        "url": mask_url(watch.target.url),
        "found_by": watch.found_by,
        "state": current.word,
        "state_age_seconds": now - current.entered_at,
        "error": error,
        "simulated": bool(last and last.simulated),
        "version": last.version if last else None,
        "source": last.source if last else None,
        "dialect": last.dialect if last else None,
        "interval_seconds": watch.interval,
        "age_seconds": age,
        "stale": age is None or age > 3 * watch.interval + 1,
        "partial": bool(last and last.partial),
        "labels": dict(watch.target.labels),
        "restarts": current.restarts,
        "oom": dict(current.ooms) or None,
        "engines": [_engine(watch, key, with_history=with_history) for key in sorted(current.known)],
    }


def _engine(watch: TargetWatch, key: EngineKey, *, with_history: bool) -> dict[str, Any]:
    current = watch.state
    engine = current.engines.get(key)
    seen = current.window(key)
    values = figures(current, key)
    peaks = [p.waiting for p in current.peaks.get(key, ()) if p.waiting is not None]
    out: dict[str, Any] = {
        "model_name": key[0],
        "engine": key[1],
        "running": values.get("running"),
        "waiting": values.get("waiting"),
        "waiting_peak": max(peaks, default=None),
        "max_running": engine.max_num_seqs if engine else None,
        "kv_cache_usage_ratio": values.get("kv_cache_usage_ratio"),
        "kv_cache_capacity_tokens": engine.kv_cache_tokens if engine else None,
        "cache_hit_rate": values.get("cache_hit_rate"),
        "phase_ratio": (phases.phase_ratio(seen) or None) if seen else None,
        "decode_tokens_per_second": values.get("decode_tokens_per_second"),
        "prefill_tokens_per_second": values.get("prefill_tokens_per_second"),
        "preemptions_per_second": queue.preemptions_per_second(seen) if seen else None,
        "spec_acceptance_rate": speculation.acceptance_rate(seen) if seen else None,
        "failed": failed(current, key),
        "stalled": engine_word(current, key, watch.limits) != "moving",
    }
    for name, fact in (
        ("ttft_seconds", "time_to_first_token"),
        ("inter_token_seconds", "inter_token_latency"),
        ("e2e_seconds", "e2e_latency"),
    ):
        histogram = seen.histogram(fact) if seen else None
        out[name] = {"p50": window.quantile(histogram, 0.5), "p95": window.quantile(histogram, 0.95)}
    if with_history and key in watch.history:
        out["history"] = watch.history[key].to_json()
    return out


def _kv_budget(watches: Collection[TargetWatch]) -> float | None:
    """Return the KV cache's bytes on each watched GPU; known only when a single engine is watched."""
    engines = [engine for watch in watches for engine in watch.state.engines.values()]
    return engines[0].kv_cache_bytes if len(engines) == 1 else None


def _gpus(gpus: GpuWatch, kv_budget: float | None) -> dict[str, Any]:
    snapshot = gpus.snapshot
    if snapshot is None:
        return {"available": False, "reason": None, "detail": "not read yet", "devices": []}
    return {
        "available": snapshot.available,
        "reason": snapshot.reason,
        "detail": snapshot.detail,
        "simulated": gpus.simulated,
        "age_seconds": time.monotonic() - snapshot.taken_at,
        "devices": [_device(gpus, device, kv_budget) for device in published(snapshot)],
    }


def _device(gpus: GpuWatch, device: GpuStats, kv_budget: float | None) -> dict[str, Any]:
    total = device.memory_total_bytes
    reasons = device.clock_event_reasons
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "up": device.up,
        "reason": device.reason,
        "watched": device.watched,
        "memory_total_bytes": total,
        "memory_used_bytes": device.memory_used_bytes,
        "memory_reserved_bytes": device.memory_reserved_bytes,
        "memory_free_bytes": device.memory_free_bytes,
        "kv_budget_bytes": kv_budget if device.watched else None,
        "reserve_bytes": None if total is None else gpus.settings.reserve_ratio * total,
        "unaccounted_bytes": device.memory_unaccounted_bytes,
        "utilization": device.utilization,
        "sm_active": device.sm_active,
        "power_watts": device.power_watts,
        "power_limit_watts": device.power_limit_watts,
        "temperature_celsius": device.temperature_celsius,
        # Not asked and nothing wrong are different answers.
        "throttle": [reason for reason in _THROTTLES if reasons.get(reason)] if reasons else None,
        "xid": {code: count for code, count in device.xid_errors.items() if count} if device.xid_errors else None,
        "xid_last_seen": dict(device.xid_last_seen),
        "history": gpus.history[device.uuid].to_json() if device.uuid in gpus.history else None,
    }
