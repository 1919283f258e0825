"""Intervals between outputs by token position."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from llmobs import stats
from llmobs.instrument.histogram import Accumulator
from llmobs.snapshot import TOKEN_BUCKETS, Histogram

#: Index into TOKEN_BUCKETS for token positions up to 501; later ones share the last bucket.
_LAST = 501
_UPPER = (0, 1, 5, 20, 50, 100, 500)
POSITION = bytes(bisect_left(_UPPER, position) for position in range(_LAST + 1))


def position_bucket(position: int) -> int:
    """Return the index into TOKEN_BUCKETS of a token's position in the output, counted from 0."""
    return POSITION[position] if position < _LAST else len(TOKEN_BUCKETS) - 1


class StepLatencies:
    """Intervals between outputs by token position, counted at the inter-token bounds.

    vLLM's inter-token histogram (all positions together) and the decode-step histogram (by position) are both read
    from here, so that one observation is counted once. `unplaced` counts those whose position is not known.
    """

    __slots__ = ("counts", "totals", "unplaced")

    def __init__(self) -> None:
        self.counts = [[0] * len(stats.INTER_TOKEN_BOUNDS) for _ in TOKEN_BUCKETS]
        self.totals = [0.0] * len(TOKEN_BUCKETS)
        self.unplaced = Accumulator(stats.INTER_TOKEN_BOUNDS)

    def first(self, seconds: float) -> None:
        """Count the step that made a sequence's token 0."""
        self.counts[0][bisect_left(stats.INTER_TOKEN_BOUNDS, seconds)] += 1
        self.totals[0] += seconds

    def later(self, positions: Sequence[int], intervals: Sequence[float]) -> None:
        """Count one step: ``intervals[i]`` seconds before the token at position ``positions[i]`` of its sequence.

        ValueError when the two do not belong together. All sequences of one step usually share one interval, which is
        then looked up once: this runs for every token.
        """
        if len(positions) != len(intervals):
            raise ValueError(f"{len(positions)} token positions for {len(intervals)} inter-token times")
        if not intervals:
            return
        counts, totals, place, end = self.counts, self.totals, POSITION, _LAST
        buckets = [place[position if position < end else end] for position in positions]
        first = intervals[0]
        if intervals.count(first) == len(intervals):
            index = bisect_left(stats.INTER_TOKEN_BOUNDS, first)
            for bucket in set(buckets):
                many = buckets.count(bucket)
                counts[bucket][index] += many
                totals[bucket] += many * first
            return
        for bucket, seconds in zip(buckets, intervals):
            counts[bucket][bisect_left(stats.INTER_TOKEN_BOUNDS, seconds)] += 1
            totals[bucket] += seconds

    def inter_token(self) -> Histogram:
        """Return all positions after the first together."""
        columns = [sum(column) for column in zip(self.unplaced.counts, *self.counts[1:])]
        total = self.unplaced.total + sum(self.totals[1:])
        return Histogram(stats.INTER_TOKEN_BOUNDS, tuple(accumulate(columns)), total)

    def by_position(self) -> dict[str, Histogram]:
        """Return one histogram per position bucket that has observations."""
        found = {}
        for index, name in enumerate(TOKEN_BUCKETS):
            if not any(self.counts[index]):
                continue
            cumulative = list(accumulate(self.counts[index]))
            counts = tuple(cumulative[i] for i in _STEP_INDEX)
            found[name] = Histogram(stats.DECODE_STEP_BOUNDS, counts, self.totals[index])
        return found


#: Where each decode-step bound stands among the inter-token bounds, which contain them all.
_STEP_INDEX = tuple(stats.INTER_TOKEN_BOUNDS.index(bound) for bound in stats.DECODE_STEP_BOUNDS)
