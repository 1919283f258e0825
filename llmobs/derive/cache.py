"""KV cache and prefix cache: how full, how useful."""

from __future__ import annotations

from llmobs.derive.window import Window, quotient, ratio
from llmobs.snapshot import EngineStats


def hit_rate(window: Window) -> float | None:
    """``Δ prefix hits ÷ Δ prefix queries``, local cache, tokens, 0–1.

    The share of looked-up prompt tokens that need not be computed. The unit cancels, so versions that count blocks
    give the same ratio. None when nothing was looked up.
    """
    return window.share("prefix_hits", "prefix_queries")


def hit_rate_since_start(engine: EngineStats) -> float | None:
    """``prefix hits ÷ prefix queries`` since the engine started, 0–1; for V0 engines their own gauge."""
    if engine.prefix_queries is not None:
        return ratio(engine.prefix_hits, engine.prefix_queries)
    value = engine.prefix_hit_rate_lifetime
    return value if value is not None and 0 <= value <= 1 else None


def rescheduled_hit_rate(window: Window) -> float | None:
    """``Δ preempted hits ÷ Δ preempted queries``, 0–1: how much a preempted request finds again when it comes back."""
    return window.share("prefix_preempted_hits", "prefix_preempted_queries")


def external_hit_rate(window: Window) -> float | None:
    """``Δ external hits ÷ Δ external queries``, tokens, 0–1: the cache behind the KV connector."""
    return window.share("external_hits", "external_queries")


def multimodal_hit_rate(window: Window) -> float | None:
    """``Δ hits ÷ Δ queries`` of the multi-modal processor cache, items, 0–1."""
    return window.share("mm_hits", "mm_queries")


def usage(engine: EngineStats) -> float | None:
    """Used KV blocks ÷ all KV blocks, 0–1; None when the source gave something else."""
    value = engine.kv_cache_usage
    return value if value is not None and 0 <= value <= 1 else None


def free_ratio(engine: EngineStats) -> float | None:
    """``1 − usage``, 0–1. Not a hit rate."""
    used = usage(engine)
    return None if used is None else 1 - used


def fill_seconds(window: Window) -> float | None:
    """``(1 − usage) ÷ (Δ usage ÷ Δ time)``, seconds until the KV cache is full at the window's growth.

    None when it does not grow.
    """
    before, now = usage(window.before), usage(window.now)
    if before is None or now is None or now <= before:
        return None
    return quotient((1 - now) * window.seconds, now - before)


def in_tokens(engine: EngineStats, value: float | None) -> float | None:
    """A prefix-cache counter in tokens; None when the source counts blocks of unknown size."""
    return value if engine.prefix_cache_unit == "tokens" else None
