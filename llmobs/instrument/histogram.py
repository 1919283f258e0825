"""A histogram that is observed in well under a microsecond, with the latest exemplar of each bucket."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from llmobs.snapshot import Exemplar, Histogram


class Accumulator:
    """Counts observations per bucket. `bounds` ends with +Inf; a value equal to a bound lies in that bound's bucket."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.total = 0.0
        self.exemplars: dict[int, tuple[str, float, float]] = {}  # by bucket: trace id, value, Unix time

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def exemplify(self, value: float, trace_id: str, timestamp: float) -> None:
        """Keep `value`, which is observed separately, as its bucket's exemplar. `timestamp` is Unix time."""
        self.exemplars[bisect_left(self.bounds, value)] = trace_id, value, timestamp

    def snapshot(self) -> Histogram:
        """Return the cumulative histogram as it is now."""
        exemplars: tuple[Exemplar | None, ...] = ()
        if kept := self.exemplars:
            exemplars = tuple(Exemplar(*kept[i]) if i in kept else None for i in range(len(self.bounds)))
        return Histogram(self.bounds, tuple(accumulate(self.counts)), self.total, exemplars)
