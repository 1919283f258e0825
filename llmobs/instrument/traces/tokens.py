"""Token detail: what single decode steps of one sequence did, within a cap, told to the spans at the end."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Steps kept from the beginning, kept later by every k-th, and kept for being slow.
FIRST = 64
REGULAR = 128
OUTLIERS = 64
#: A step slower than this many times the mean of those before it is an outlier, from the tenth step on.
SLOW = 3.0
_SETTLED = 10


class Step(NamedTuple):
    """One decode step: `at` is its end on the engine's monotonic clock, `seconds` its length, None for the prefill.

    `position` is that of its first token in the answer. `score` is that token's, `best` the highest of its
    alternatives; both as vLLM's log-probability mode has it.
    """

    at: float
    seconds: float | None
    position: int
    token_ids: tuple[int, ...]
    recomputed: bool
    slow: bool
    score: float | None
    best: float | None


class Detail:
    """Callable for `SequenceRecord.detail`: keeps the first steps, every k-th later one, and slow ones."""

    __slots__ = ("_every", "_regular", "_slow", "_total", "first", "kept", "seen")

    def __init__(self, every: int) -> None:
        self._every = every
        self._total = 0.0
        self._regular: list[Step] = []
        self._slow: list[Step] = []
        self.first: Step | None = None  # the one whose token the prefill made
        self.kept: list[Step] = []
        self.seen = 0  # decode steps, without the prefill

    def __call__(self, output: Any, timestamp: float, latency: float | None, position: int) -> None:
        """Note one output of the engine core, in seconds of its monotonic clock."""
        if not output.new_token_ids:
            return
        if latency is None:
            if self.first is None:
                self.first = _step(output, timestamp, None, position, slow=False)
            return
        seen = self.seen = self.seen + 1
        slow = seen > _SETTLED and latency > SLOW * self._total / (seen - 1)
        self._total += latency
        if seen <= FIRST:
            self.kept.append(_step(output, timestamp, latency, position, slow=slow))
        elif slow and len(self._slow) < OUTLIERS:
            self._slow.append(_step(output, timestamp, latency, position, slow=True))
        elif seen % self._every == 0:
            self._regular.append(_step(output, timestamp, latency, position, slow=slow))
            if len(self._regular) >= REGULAR:  # a very long answer: keep half of them, and half as many from now on
                del self._regular[::2]
                self._every *= 2

    def steps(self) -> list[Step]:
        """Return what was kept, in order."""
        return sorted(self.kept + self._regular + self._slow)

    @property
    def most(self) -> int:
        """How many spans this makes."""
        return len(self.kept) + len(self._regular) + len(self._slow)


def _step(output: Any, timestamp: float, latency: float | None, position: int, *, slow: bool) -> Step:
    score = best = None
    lists = output.new_logprobs
    if lists is not None and len(lists.logprobs):
        row = lists.logprobs[0]  # the chosen token first, then the alternatives
        score = float(row[0])
        best = max(map(float, row)) if len(row) > 1 else None
    events = output.events  # almost always none, and a generator costs as much as all the rest
    recomputed = bool(events) and any(getattr(event.type, "name", "") == "PREEMPTED" for event in events)
    return Step(timestamp, latency, position, tuple(output.new_token_ids), recomputed, slow, score, best)
