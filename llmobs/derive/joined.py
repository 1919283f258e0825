"""Facts that need engine and GPU together."""

from __future__ import annotations

from collections.abc import Iterable

from llmobs.derive.window import difference, quotient, ratio
from llmobs.snapshot import EngineStats, GpuSnapshot, GpuStats

#: Below this utilisation a GPU counts as idle.
IDLE_UTILIZATION = 0.05


def watched(snapshot: GpuSnapshot | None) -> tuple[GpuStats, ...]:
    """GPUs that the watched vLLM is known to run on."""
    return tuple(d for d in snapshot.devices if d.watched) if snapshot is not None else ()


def energy(before: Iterable[GpuStats], now: Iterable[GpuStats]) -> float | None:
    """Joules that the given GPUs used between two readings; None unless every one of them gave both."""
    earlier = {d.uuid: d.energy_joules for d in before}
    used = [difference(earlier.get(d.uuid), d.energy_joules) for d in now]
    known = [joules for joules in used if joules is not None]
    return sum(known) if known and len(known) == len(used) else None


def tokens_per_joule(tokens: float | None, joules: float | None) -> float | None:
    """``(Δ computed prompt tokens + Δ generated tokens) ÷ Δ energy``."""
    return quotient(tokens, joules)


def idle_while_waiting(waiting: float | None, gpus: Iterable[GpuStats]) -> bool | None:
    """Return whether requests wait while every GPU idles; None when queue or a utilisation is unknown."""
    utilizations = [d.utilization for d in gpus]
    known = [u for u in utilizations if u is not None]
    if waiting is None or not known or len(known) != len(utilizations):
        return None
    return waiting > 0 and all(u < IDLE_UTILIZATION for u in known)


def kv_cache_share(engines: Iterable[EngineStats], gpus: Iterable[GpuStats]) -> float | None:
    """``KV cache bytes of a worker ÷ memory of its GPU``, 0–1.

    The source gives the bytes of one worker, and each worker has a GPU of its own; so this is known for one engine
    whose GPUs are all of one size, and None otherwise.
    """
    sizes = {d.memory_total_bytes for d in gpus}
    bytes_ = [e.kv_cache_bytes for e in engines]
    return ratio(bytes_[0], sizes.pop()) if len(bytes_) == 1 and len(sizes) == 1 else None
