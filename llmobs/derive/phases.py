"""Where the time and the tokens of requests go: queue, prefill, decode."""

from __future__ import annotations

from collections.abc import Mapping

from llmobs.derive.cache import in_tokens
from llmobs.derive.window import Window, difference, quotient
from llmobs.snapshot import PHASES, EngineStats

_HISTOGRAMS = {"queue": "queue_time", "prefill": "prefill_time", "decode": "decode_time"}


def phase_seconds(engine: EngineStats) -> dict[str, float]:
    """Seconds that finished sequences spent in each phase, cumulative: the sums of vLLM's phase histograms.

    Queue is waiting to be scheduled first, prefill from there to the first token, decode from the first to the last.
    """
    found = {phase: getattr(engine, fact) for phase, fact in _HISTOGRAMS.items()}
    return {phase: histogram.sum for phase, histogram in found.items() if histogram is not None}


def phase_ratio(window: Window) -> Mapping[str, float]:
    """``Δ seconds of a phase ÷ Σ Δ seconds``, 0–1, summing to 1; empty when no sequence finished or one phase lacks."""
    before, now = phase_seconds(window.before), phase_seconds(window.now)
    grown = [difference(before.get(phase), now.get(phase)) for phase in PHASES]
    known = [value for value in grown if value is not None]
    whole = sum(known)
    if len(known) < len(PHASES) or not whole > 0:
        return {}
    return {phase: value / whole for phase, value in zip(PHASES, known)}


def overhead_ratio(window: Window) -> float | None:
    """``1 − Σ Δ phase seconds ÷ Δ e2e seconds``, 0–1: the share of end-to-end latency outside every phase.

    End to end is the API server's clock from arrival to the last output processed there, the phases are the engine's
    own; between them lie tokenisation, IPC, detokenisation and the event loop. None unless all four histograms saw
    the same number of sequences.
    """
    found = [window.histogram(fact) for fact in ("e2e_latency", *_HISTOGRAMS.values())]
    known = [histogram for histogram in found if histogram is not None]
    if len(known) < len(found) or len({histogram.count for histogram in known}) != 1:
        return None
    whole, *parts = (histogram.sum for histogram in known)
    inside = quotient(sum(parts), whole)
    return None if inside is None else min(1.0, max(0.0, 1 - inside))


def computed_prompt_tokens(engine: EngineStats) -> float | None:
    """Prompt tokens that had to be computed, cumulative.

    From ``prompt tokens by source: local_compute`` (vLLM 0.16+); before that ``prompt tokens − prefix hits − external
    hits`` in tokens, never below 0. None when the source gives neither.
    """
    if engine.prompt_tokens_by_source:
        return engine.prompt_tokens_by_source.get("local_compute")
    cached = cached_prompt_tokens(engine)
    if engine.prompt_tokens is None or cached is None:
        return None
    return max(0.0, engine.prompt_tokens - cached)


def cached_prompt_tokens(engine: EngineStats) -> float | None:
    """Prompt tokens that came from a cache or another engine, cumulative; see `computed_prompt_tokens`."""
    if engine.prompt_tokens_by_source:
        return sum(v for source, v in engine.prompt_tokens_by_source.items() if source != "local_compute")
    local = in_tokens(engine, engine.prefix_hits)
    return None if local is None else local + (engine.external_hits or 0.0)


def counters(engine: EngineStats) -> dict[str, float]:
    """Counters of the contract that are computed from several of the source's: metric → value; may fall for a moment.

    Prompt tokens are counted at the first token and cache hits when scheduled, so that their difference can shrink.
    """
    found = {
        "vllm_prefill_tokens_computed_total": computed_prompt_tokens(engine),
        "vllm_prefill_tokens_cached_total": cached_prompt_tokens(engine),
    }
    return {name: value for name, value in found.items() if value is not None}


def prefill_tokens_per_second(window: Window) -> float | None:
    """``Δ computed prompt tokens ÷ Δ time``."""
    grown = difference(computed_prompt_tokens(window.before), computed_prompt_tokens(window.now))
    return quotient(grown, window.seconds)


def decode_tokens_per_second(window: Window) -> float | None:
    """``Δ generated tokens ÷ Δ time``."""
    return window.rate("generation_tokens")
