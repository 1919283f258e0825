"""Speculative decoding: whether the draft model still fits the traffic."""

from __future__ import annotations

from collections.abc import Mapping

from llmobs.derive.window import Window, quotient, ratio


def acceptance_rate(window: Window) -> float | None:
    """``Δ accepted ÷ Δ draft tokens``, 0–1; a drop means that the draft model no longer fits."""
    return window.share("spec_accepted_tokens", "spec_draft_tokens")


def acceptance_rate_per_position(window: Window) -> Mapping[str, float]:
    """``Δ accepted at a position ÷ Δ drafts``, 0–1, by position in the draft."""
    drafts = window.delta("spec_drafts")
    rates = {
        p: ratio(window.delta("spec_accepted_per_position", p), drafts) for p in window.now.spec_accepted_per_position
    }
    return {position: rate for position, rate in rates.items() if rate is not None}


def mean_accepted_length(window: Window) -> float | None:
    """``1 + Δ accepted ÷ Δ drafts``, tokens per draft with the target model's own; 1 is no gain at all."""
    gained = quotient(window.delta("spec_accepted_tokens"), window.delta("spec_drafts"))
    return None if gained is None else 1 + gained
