"""Whether the engine moves. A hung engine answers /health with 200 for ever: progress is judged by its counters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmobs.snapshot import EngineStats


@dataclass(frozen=True, slots=True)
class Progress:
    """What must be remembered to judge progress. Times are the reader's monotonic seconds.

    `marker` is (steps, generated tokens). `since` is when the marker last changed or work last appeared; None while
    there is no work. `quiet` counts what moved although no token came: preemptions, and cache look-ups by an unchanged
    set of requests.
    """

    marker: tuple[float | None, float | None] = (None, None)
    since: float | None = None
    churn_marker: tuple[float | None, float | None, float | None] = (None, None, None)
    in_system: float | None = None
    churn: int = 0


def advance(progress: Progress, engine: EngineStats, at: float) -> Progress:
    """Return the judgement's state after one more reading of the engine, taken at `at`."""
    marker = (engine.step_tokens.count if engine.step_tokens else None, engine.generation_tokens)
    in_system = (engine.running or 0.0) + (engine.waiting or 0.0)
    churn_marker = (engine.preemptions, engine.prefix_preempted_queries, engine.prefix_queries)
    moved = marker != progress.marker
    if moved or in_system == 0:
        return Progress(marker, at if in_system else None, churn_marker, in_system, 0)
    churned = churn_marker[:2] != progress.churn_marker[:2] or (
        # The same requests looked their prefix up again: they were thrown out and scheduled once more.
        churn_marker[2] != progress.churn_marker[2] and in_system == progress.in_system
    )
    return replace(
        progress,
        since=at if progress.since is None else progress.since,
        churn_marker=churn_marker,
        in_system=in_system,
        churn=progress.churn + churned,
    )


def seconds_since(progress: Progress, engine: EngineStats, at: float) -> float | None:
    """Seconds without progress while there is work; None without work. The source's own figure wins."""
    if engine.seconds_since_progress is not None:
        return engine.seconds_since_progress
    return None if progress.since is None else max(0.0, at - progress.since)


def stalled(quiet_seconds: float | None, limit: float) -> bool:
    """Return whether work has been there for `limit` seconds without any progress."""
    return quiet_seconds is not None and quiet_seconds >= limit


def livelocked(progress: Progress, quiet_seconds: float | None, limit: float) -> bool:
    """Return whether a stalled engine is busy for nothing: at least two rounds of churn without one token."""
    return stalled(quiet_seconds, limit) and progress.churn >= 2
