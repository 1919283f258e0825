"""States as `GET /api/v1/state` gives them, made up for the tests of the live page and for its pictures."""

from __future__ import annotations

import math
import random
import time
from typing import Any

State = dict[str, Any]
POINTS = 120
STEP = 5
GIB = 1024**3
REASONS = ("oom", "timeout", "abort", "error", "engine_dead", "rejected", "invalid", "context_length")
NO_GPU: State = {"available": False, "reason": "no_driver", "detail": "", "simulated": False, "devices": []}


def wave(middle: float, swing: float, *, seed: float = 0, low: float = 0, high: float = math.inf) -> list[float | None]:
    """Ten minutes of something that goes up and down around `middle`."""
    noise = random.Random(seed)
    return [
        min(high, max(low, middle + swing * (math.sin(i / 11 + seed) + 0.5 * noise.uniform(-1, 1))))
        for i in range(POINTS)
    ]


def history(now: float, **series: list[float | None]) -> State:
    return {"step_seconds": STEP, "end": now, "series": series}


def engine(now: float, *, seed: float = 1, load: float = 1.0, **changes: Any) -> State:
    """One busy, healthy engine."""
    decode = wave(2140 * load, 320 * load, seed=seed)
    running = [round(v or 0) for v in wave(41 * load, 9 * load, seed=seed + 1)]
    waiting = [max(0, round(v or 0)) for v in wave(2 * load, 6 * load, seed=seed + 2)]
    kv = wave(0.62, 0.16, seed=seed + 3, high=1)
    return {
        "model_name": "llama-3.1-70b-instruct", "engine": "0",
        "running": running[-1], "waiting": waiting[-1], "waiting_peak": max(waiting[-12:]), "max_running": 256,
        "kv_cache_usage_ratio": kv[-1], "kv_cache_capacity_tokens": 431_872, "cache_hit_rate": 0.713,
        "phase_ratio": {"queue": 0.042, "prefill": 0.127, "decode": 0.831},
        "ttft_seconds": {"p50": 0.184, "p95": 0.612}, "inter_token_seconds": {"p50": 0.0183, "p95": 0.0312},
        "e2e_seconds": {"p50": 6.42, "p95": 18.9}, "decode_tokens_per_second": decode[-1],
        "prefill_tokens_per_second": 8412.0, "preemptions_per_second": 0.0, "spec_acceptance_rate": 0.68,
        "failed": dict.fromkeys(REASONS, 0) | {"timeout": 3, "abort": 17}, "stalled": False,
        "history": history(
            now, running=running, waiting=waiting, kv_cache_usage_ratio=kv,
            cache_hit_rate=wave(0.7, 0.05, seed=seed + 4, high=1), ttft_p95=wave(0.55, 0.15, seed=seed + 5, low=0.1),
            inter_token_p95=wave(0.031, 0.004, seed=seed + 6), decode_tokens_per_second=decode,
            prefill_tokens_per_second=wave(8400, 2100, seed=seed + 7),
            failed_per_second=[0.2 if i in (31, 32, 77) else 0.0 for i in range(POINTS)],
        ),
    } | changes  # fmt: skip


def target(now: float, name: str = "chat-prod-a", **changes: Any) -> State:
    return {
        "name": name, "url": f"http://{name}.inference.svc:8000", "state": "ready", "state_age_seconds": 11_520.0,
        "error": None, "simulated": False, "version": "0.32.0", "source": "stats", "dialect": "llmobs.stats/v1",
        "interval_seconds": 1.0, "age_seconds": 0.4, "stale": False, "partial": False,
        "labels": {"model_id": "llama-70b", "canary": "false"}, "restarts": 0, "oom": {"cuda": 0, "host": 0},
        "engines": [engine(now)],
    } | changes  # fmt: skip


def gpu(now: float, index: int = 0, **changes: Any) -> State:
    used = 66.1 * GIB
    return {
        "uuid": f"GPU-5a1c{index:04d}-9a3e-4c57-b8f2-d14cc06b2e17", "index": index, "name": "NVIDIA H100 80GB HBM3",
        "up": True, "reason": None, "watched": True, "memory_total_bytes": 79.65 * GIB, "memory_used_bytes": used,
        "memory_reserved_bytes": 0.6 * GIB, "memory_free_bytes": 12.95 * GIB, "kv_budget_bytes": 26.4 * GIB,
        "reserve_bytes": 7.96 * GIB, "unaccounted_bytes": 0, "utilization": 0.94, "sm_active": 0.71,
        "power_watts": 612.0, "power_limit_watts": 700.0, "temperature_celsius": 66.0, "throttle": [], "xid": {},
        "xid_last_seen": {},
        "history": history(
            now, utilization=wave(0.9, 0.08, seed=index, high=1), memory_used_bytes=[used] * POINTS,
            power_watts=wave(600, 60, seed=index + 1), temperature_celsius=wave(65, 2, seed=index + 2),
        ),
    } | changes  # fmt: skip


def state(now: float, targets: list[State], gpus: State | None = None) -> State:
    devices = {"available": True, "reason": None, "detail": "", "simulated": False, "devices": [gpu(now)]}
    return {"time": now, "version": "0.1.0", "window_seconds": 60, "targets": targets, "gpus": gpus or devices}


def with_gpus(now: float, *devices: State, **changes: Any) -> State:
    return {
        "available": True,
        "reason": None,
        "detail": "",
        "simulated": False,
        "devices": list(devices) or [gpu(now)],
    } | changes


def healthy(now: float) -> State:
    return state(now, [target(now)], with_gpus(now, gpu(now, 0), gpu(now, 1)))


def stalled(now: float) -> State:
    """Work is there and nothing comes out; a GPU is throttled and reported an Xid."""
    stuck = engine(
        now, stalled=True, running=12, waiting=148, waiting_peak=148, kv_cache_usage_ratio=0.997,
        decode_tokens_per_second=0.0, prefill_tokens_per_second=0.0, inter_token_seconds={"p50": None, "p95": None},
        phase_ratio=None, failed=dict.fromkeys(REASONS, 0) | {"oom": 2, "timeout": 214, "engine_dead": 1},
        preemptions_per_second=3.4,
    )  # fmt: skip
    stuck["history"]["series"]["waiting"] = [0.0] * 90 + [i * 5.0 for i in range(30)]
    stuck["history"]["series"]["decode_tokens_per_second"][90:] = [0.0] * 30
    stuck["history"]["series"]["inter_token_p95"][90:] = [None] * 30
    bad = gpu(
        now, throttle=["hw_thermal", "sw_power_cap"], xid={"79": 1, "13": 4}, xid_last_seen={"79": now - 190},
        temperature_celsius=91.0, unaccounted_bytes=1.3 * GIB, memory_free_bytes=2.1 * GIB,
        memory_used_bytes=76.9 * GIB,
    )  # fmt: skip
    return state(
        now,
        [target(now, state="stalled", state_age_seconds=84.0, engines=[stuck], oom={"cuda": 2, "host": 0}, restarts=2)],
        with_gpus(now, bad, gpu(now, 1, up=False, reason="lost", watched=None)),
    )


def unreachable(now: float) -> State:
    """One target is gone, another one's numbers are old."""
    gone = target(
        now, "chat-prod-b", state="unreachable", state_age_seconds=37.0, engines=[], age_seconds=38.2, stale=True,
        error={"reason": "refused", "message": "chat-prod-b.inference.svc:8000 refused the connection; is vLLM up?"},
    )  # fmt: skip
    old = target(
        now, "embed-prod", stale=True, age_seconds=17.0, source="metrics", dialect="vllm-v1", interval_seconds=5.0,
        partial=True, error={"reason": "timeout", "message": "no answer within 3 s"}, engines=[engine(now - 20)],
    )  # fmt: skip
    return state(now, [gone, old], NO_GPU)


def unknown(now: float) -> State:
    """Nothing is known but the names: every number is null or absent."""
    bare = {
        "name": "old-vllm",
        "url": "http://old:8000",
        "state": "ready",
        "engines": [{"model_name": "m", "engine": "0"}],
    }
    nulls = target(now, "nulls", engines=[dict.fromkeys(engine(now)) | {"model_name": "m", "engine": "0"}],
                   version=None, restarts=None, oom=None, age_seconds=None, state_age_seconds=None)  # fmt: skip
    device = dict.fromkeys(gpu(now)) | {"uuid": "GPU-x", "index": 0, "up": True}
    return state(now, [bare, nulls], with_gpus(now, device))


def simulated(now: float) -> State:
    return state(
        now, [target(now, "simulated", url="http://127.0.0.1:8000", simulated=True)], with_gpus(now, simulated=True)
    )


def parallel(now: float) -> State:
    """Data parallel: two engines, one of them without a hit rate."""
    return state(
        now, [target(now, engines=[engine(now), engine(now, seed=5, engine="1", cache_hit_rate=None)])], NO_GPU
    )


def empty(now: float) -> State:
    return state(now, [], NO_GPU | {"reason": "no_library", "detail": "libnvidia-ml.so.1: cannot open"})


def hostile(now: float) -> State:
    """Strings that would run or break the page if they were ever taken for HTML."""
    evil = '<img src=x onerror="window.pwned=1">'
    script = "</script><script>window.pwned=1</script>"
    long = "x" * 400
    return state(
        now,
        [
            target(
                now, evil, url="javascript:window.pwned=1", version=script, dialect=evil, state=evil,
                labels={evil: script, "l": long}, error={"reason": evil, "message": script},
                engines=[engine(now, model_name=script + long, engine=evil, failed={evil: 3})],
            ),
            target(now, long),
            target(now, "__proto__", state="constructor"),
        ],
        with_gpus(now, gpu(now, name=evil, uuid=script, throttle=[evil], xid={evil: 1}, xid_last_seen={evil: now})),
    )  # fmt: skip


def fleet(now: float, size: int = 200) -> State:
    """Many targets, most of them fine."""
    states = {
        3: "stalled",
        17: "dead",
        40: "unreachable",
        41: "unreachable",
        77: "starting",
        90: "sleeping",
        120: "livelock",
    }
    targets = []
    for i in range(size):
        word = states.get(i, "ready")
        there = word not in ("unreachable", "starting", "dead")
        targets.append(
            target(
                now, f"vllm-{i:03d}", state=word, state_age_seconds=60.0 * (i + 1), labels={"pool": "ab"[i % 2]},
                engines=[engine(now, seed=i, load=0.4 + (i % 7) / 5)] if there else [], stale=word == "unreachable",
                error={"reason": "refused", "message": "refused the connection"} if word == "unreachable" else None,
            )
        )  # fmt: skip
    return state(now, targets, with_gpus(now, *(gpu(now, i) for i in range(8))))


ALL = {
    make.__name__: make for make in (healthy, stalled, unreachable, unknown, simulated, parallel, empty, hostile, fleet)
}


def now() -> float:
    return time.time()
