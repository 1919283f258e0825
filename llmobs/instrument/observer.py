"""Who hears of a request, and how they are called."""

from __future__ import annotations

from collections.abc import Callable

from llmobs.instrument.guard import Guard, guard
from llmobs.instrument.record import RequestFacts, RequestRecord, SequenceRecord

_Calls = list[tuple[Guard, Callable[..., None]]]


class Observer:
    """Somebody who follows requests, spans for example. Called inside a guard of that name, if it has the method."""

    name: str

    def started(self, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        """A request arrived. May set `record.trace`, `wants_detail`, and change `headers`, which vLLM will see."""

    def submitted(self, record: RequestRecord, sequence: SequenceRecord) -> None:
        """A sequence of a request with `wants_detail` went to the engine. May set `sequence.detail`."""

    def finished(self, record: RequestRecord, facts: RequestFacts) -> None:
        """It has ended, however it ended; called exactly once."""


class Observers:
    """The observers of a process, by what they want to hear: (guard, method), in the order in which they are called."""

    def __init__(self) -> None:
        self.started: _Calls = []
        self.submitted: _Calls = []
        self.finished: _Calls = []

    def add(self, observer: Observer) -> None:
        """Let `observer` hear of all requests, before those that were added earlier.

        A method that it does not have itself is never called: in a busy server even a call that does nothing takes a
        microsecond.
        """
        hook = guard(observer.name)
        for name, calls in (("started", self.started), ("submitted", self.submitted), ("finished", self.finished)):
            if getattr(type(observer), name) is not getattr(Observer, name):
                calls.insert(0, (hook, getattr(observer, name)))
