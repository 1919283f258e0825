"""The waiting queue and the batch."""

from __future__ import annotations

from llmobs.derive.window import Window, quotient


def completions_per_second(window: Window) -> float | None:
    """``Σ Δ finished ÷ Δ time``: sequences that left the engine per second, whatever the reason."""
    now, before = window.now.finished, window.before.finished
    if not now:
        return None
    # A reason appears with its first event where the source shows only what moved.
    grown = sum(max(0.0, value - before.get(reason, 0.0)) for reason, value in now.items())
    return quotient(grown, window.seconds)


def drain_seconds(window: Window) -> float | None:
    """``waiting ÷ completions per second``: when the queue would be empty if nothing arrived.

    0 with an empty queue; None when requests wait and none completes.
    """
    waiting = window.now.waiting
    if waiting is None or waiting < 0:
        return None
    return 0.0 if waiting == 0 else quotient(waiting, completions_per_second(window))


def preemptions_per_second(window: Window) -> float | None:
    """``Δ preemptions ÷ Δ time``."""
    return window.rate("preemptions")


def mean_batch_tokens(window: Window) -> float | None:
    """``Δ sum ÷ Δ count`` of tokens per engine step; None when no step was made."""
    steps = window.histogram("step_tokens")
    return None if steps is None else quotient(steps.sum, steps.count)
