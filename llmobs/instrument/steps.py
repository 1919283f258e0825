"""The messages of the engine core, kept for a moment and counted many at once.

Alone, each would find our code and its data fallen out of the processor's cache by vLLM's own work, and take nearly
twice as long. What the scheduler says of now is known at once all the same.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from llmobs.instrument.guard import guard
from llmobs.instrument.ledger import EngineLedger

#: So many are counted together; fewer with the next request that ends, tick or reader.
AT_ONCE = 32


class Step(NamedTuple):
    """One message of the engine core to be counted: vLLM's objects, None where it has none.

    `positions` are the token positions of its inter-token times, None where they are not seen; `at` is monotonic.
    """

    ledger: EngineLedger
    scheduler: Any
    iteration: Any
    positions: list[int] | None
    mm_cache: Any
    at: float


class Steps:
    """The messages that are not counted yet. On the event loop only."""

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()

    def add(self, step: Step) -> None:
        """Take over the gauges of a message, and keep the rest to be counted."""
        if step.scheduler is not None:
            step.ledger.hear(step.scheduler, step.at)
        self._waiting.append(step)
        if len(self._waiting) >= AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count all that are waiting; one that fails costs only itself."""
        hook, positions = guard("stat_logger"), guard("steps")
        while self._waiting:
            step = self._waiting.popleft()
            hook.run(_count, step)
            if step.iteration is not None:
                place = hook if step.positions is None else positions
                place.run(step.ledger.inter_token, step.iteration, step.positions)


def _count(step: Step) -> None:
    if step.scheduler is not None:
        step.ledger.scheduler(step.scheduler)
    if step.iteration is not None:
        step.ledger.iteration(step.iteration, step.at)
    if step.mm_cache is not None:
        step.ledger.mm_cache(step.mm_cache)
