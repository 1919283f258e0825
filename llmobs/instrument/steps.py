"""The messages of the engine core, kept for a moment and counted many at once.

Alone, each would find our code and its data fallen out of the processor's cache by vLLM's own work, and take nearly
twice as long. What the scheduler says of now is known at once all the same.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from llmobs.instrument.guard import guard
from llmobs.instrument.ledger import EngineLedger

#: So many are counted together; fewer with the next tick or reader.
AT_ONCE = 32

#: The arguments of `Steps.add`, and when (monotonic).
_Step = tuple[EngineLedger, Any, Any, list[int] | None, Any, float]


class Steps:
    """The messages that are not counted yet. On the event loop only."""

    def __init__(self) -> None:
        self._waiting: deque[_Step] = deque()

    def add(
        self, ledger: EngineLedger, scheduler: Any, iteration: Any, positions: list[int] | None, mm_cache: Any = None
    ) -> None:
        """Take over the gauges of one message of the engine core, and keep the rest to be counted.

        `scheduler`, `iteration` and `mm_cache` are vLLM's statistics, None where the message has none; `positions` are
        the token positions of its inter-token times, None where they are not seen.
        """
        now = time.monotonic()
        if scheduler is not None:
            ledger.latest, ledger.load_at = scheduler, now
        self._waiting.append((ledger, scheduler, iteration, positions, mm_cache, now))
        if len(self._waiting) >= AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count all that are waiting; one that fails costs only itself."""
        hook, positions = guard("stat_logger"), guard("steps")
        while self._waiting:
            step = self._waiting.popleft()
            hook.run(_count, *step)
            ledger, _, iteration, seen, _, _ = step
            if iteration is not None:
                place = hook if seen is None else positions
                place.run(ledger.inter_token, iteration, seen)


def _count(ledger: EngineLedger, scheduler: Any, iteration: Any, _positions: Any, mm_cache: Any, at: float) -> None:
    if scheduler is not None:
        ledger.scheduler(scheduler)
    if iteration is not None:
        ledger.iteration(iteration, at)
    if mm_cache is not None:
        ledger.mm_cache(mm_cache)
