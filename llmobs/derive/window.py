"""The sliding window: two snapshots of one engine, and what happened between them.

Every windowed figure is a difference of monotonic counters divided by another difference or by the time between the
two snapshots. What cannot be computed (a fact is missing, nothing happened, the denominator is 0) is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmobs.snapshot import EngineStats, Histogram


@dataclass(frozen=True, slots=True)
class Window:
    """Two states of one engine with monotonic counters, `seconds` apart."""

    before: EngineStats
    now: EngineStats
    seconds: float

    def delta(self, fact: str, key: str | None = None) -> float | None:
        """Growth of a counter in its own unit, never negative; None when either side lacks it."""
        return difference(_number(self.before, fact, key), _number(self.now, fact, key))

    def rate(self, fact: str, key: str | None = None) -> float | None:
        """Growth of a counter per second; None without elapsed time."""
        return quotient(self.delta(fact, key), self.seconds)

    def share(self, part: str, whole: str) -> float | None:
        """Δ part ÷ Δ whole, 0 to 1; None when the whole did not grow."""
        return ratio(self.delta(part), self.delta(whole))

    def histogram(self, fact: str) -> Histogram | None:
        """Observations made during the window; None when either side lacks the histogram or its buckets changed."""
        before, now = getattr(self.before, fact), getattr(self.now, fact)
        if before is None or now is None or before.bounds != now.bounds:
            return None
        return histogram_difference(before, now)


def difference(before: float | None, now: float | None) -> float | None:
    """``now − before``, or None when one is missing, not finite, or the counter went back."""
    if before is None or now is None:
        return None
    grown = now - before
    return grown if grown >= 0 and math.isfinite(grown) else None


def quotient(part: float | None, whole: float | None) -> float | None:
    """``part ÷ whole``, or None when one is missing or the whole is not positive."""
    if part is None or whole is None or not whole > 0:
        return None
    value = part / whole
    return value if math.isfinite(value) else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part ÷ whole`` if it is a ratio between 0 and 1, else None: a source that contradicts itself is not shown."""
    value = quotient(part, whole)
    return value if value is not None and 0 <= value <= 1 else None


def histogram_difference(before: Histogram, now: Histogram) -> Histogram | None:
    """Observations between two states of one cumulative histogram; None when it went back."""
    counts = tuple(b - a for a, b in zip(before.counts, now.counts))
    if len(before.counts) != len(now.counts) or any(c < 0 for c in counts):
        return None
    return Histogram(now.bounds, counts, max(0.0, now.sum - before.sum))


def quantile(histogram: Histogram | None, q: float) -> float | None:
    """Estimate the `q`-quantile (0–1) by linear interpolation inside its bucket, as PromQL's histogram_quantile does.

    None without observations, and when the quantile lies in the last, open bucket: its upper end is not known.
    """
    if histogram is None or not histogram.count > 0:
        return None
    rank = q * histogram.count
    lower, below = 0.0, 0.0
    for bound, count in zip(histogram.bounds, histogram.counts):
        if count >= rank and count > below:
            return None if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return None


def _number(engine: EngineStats, fact: str, key: str | None) -> float | None:
    value = getattr(engine, fact)
    if key is not None:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, (int, float)) else None
