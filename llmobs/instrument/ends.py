"""The requests that have ended, until each is counted, logged and traced.

Requests of one batch tend to end together, and until their answers are out and the next ones in, the engine waits for
the event loop. So what follows from an end is done when no request has come or gone for a moment, or, under traffic
without such pauses, a while later; and for a few at once, so that a request that comes then does not wait long. In
between the processor is offered to others: engine core and workers look for each other's messages in loops that never
sleep, and where cores are few, they would find theirs taken by us for a whole time slice.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable

from llmobs.instrument.guard import guard
from llmobs.instrument.observer import Observers
from llmobs.instrument.record import RequestFacts, RequestRecord

#: Seconds without a request that came or went; seconds after its end at which one is dealt with all the same.
QUIET = 0.05
LATEST = 0.25
_AT_ONCE = 8

_offer_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Ends:
    """A queue in two parts: those to be counted by `conclude`, and the counted ones that observers wait for."""

    def __init__(self, conclude: Callable[[RequestRecord], RequestFacts], observers: Observers) -> None:
        self.moved = 0.0  # when a request came or went last, monotonic
        self._conclude = conclude
        self._observers = observers
        self._ended: deque[RequestRecord] = deque()
        self._counted: deque[tuple[RequestRecord, RequestFacts]] = deque()
        self._waiting = False

    def add(self, record: RequestRecord) -> None:
        """Take over a request that has ended. Without an event loop everything is done at once."""
        self.moved = record.left_at
        self._ended.append(record)
        if self._waiting:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.settle()
            return
        self._waiting = True
        loop.call_later(QUIET, self._work, loop)

    def count(self) -> None:
        """Count all, for a reader."""
        self._count(len(self._ended))

    def settle(self) -> None:
        """Count, log and trace all."""
        self.count()
        self._tell(len(self._counted))

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest = self._counted[0][0] if self._counted else self._ended[0] if self._ended else None
        if oldest is None:
            self._waiting = False
            return
        now = time.monotonic()
        if now - self.moved < QUIET and now - oldest.left_at < LATEST:
            loop.call_later(QUIET, self._work, loop)
            return
        self._count(_AT_ONCE - len(self._counted))
        _offer_processor()
        self._tell(_AT_ONCE)
        loop.call_soon(self._work, loop)

    def _count(self, most: int) -> None:
        hook = guard("http")
        for _ in range(min(most, len(self._ended))):
            record = self._ended.popleft()
            facts = hook.run(self._conclude, record)
            if facts is not None:
                self._counted.append((record, facts))

    def _tell(self, most: int) -> None:
        """Do one thing after the other for all of them: what one needs is then in the cache for the next."""
        told = [self._counted.popleft() for _ in range(min(most, len(self._counted)))]
        for hook, finished in self._observers.finished:
            for record, facts in told:
                hook.run(finished, record, facts)
            _offer_processor()
        for record, _ in told:
            # Request and sequences refer to each other, and an exception to the frames it came through: left so, only
            # the garbage collector would free them, and what vLLM keeps of them with it.
            record.sequences.clear()
            record.raised = None
