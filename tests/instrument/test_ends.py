"""What follows from the end of a request, and when: on a clock and an event loop of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmobs.instrument import ends
from llmobs.instrument.ends import LATEST, QUIET, Ends
from llmobs.instrument.guard import guard
from llmobs.instrument.observer import Observer, Observers
from llmobs.instrument.record import RequestFacts, RequestRecord


class _Loop:
    """Holds what was asked of it until the test runs it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._asked: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, work: Callable[..., None], *arguments: Any) -> None:
        self._asked.append((self.now + delay, work, arguments))

    def call_soon(self, work: Callable[..., None], *arguments: Any) -> None:
        self.call_later(0.0, work, *arguments)

    @property
    def idle(self) -> bool:
        return not self._asked

    def step(self) -> None:
        """Run what is due next, at its time."""
        at, work, arguments = self._asked.pop(0)
        self.now = max(self.now, at)
        work(*arguments)


class _Seen(Observer):
    name = "request_log"

    def __init__(self) -> None:
        self.told: list[str] = []

    def finished(self, record: RequestRecord, facts: RequestFacts) -> None:
        self.told.append(record.request_id)


class _Case:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = _Loop()
        monkeypatch.setattr(ends.asyncio, "get_running_loop", lambda: self.loop)
        monkeypatch.setattr(ends.time, "monotonic", lambda: self.loop.now)
        self.counted: list[str] = []
        self.seen = _Seen()
        observers = Observers()
        observers.add(self.seen)
        self.ends = Ends(self._conclude, observers)

    def _conclude(self, record: RequestRecord) -> Any:
        if record.request_id == "broken":
            raise ValueError("no facts")
        self.counted.append(record.request_id)
        return record  # facts that nobody here reads

    def end(self, name: str) -> None:
        record = RequestRecord(name, None)
        record.left_at = self.loop.now
        self.ends.add(record)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> _Case:
    return _Case(monkeypatch)


def test_it_waits_until_no_request_comes_or_goes(case: _Case) -> None:
    """Counted and told once it is quiet, and then nothing is left to wake up for."""
    case.end("a")
    case.loop.now = QUIET / 2
    case.end("b")
    case.loop.step()
    assert (case.counted, case.seen.told) == ([], [])
    while not case.loop.idle:
        case.loop.step()
    assert case.counted == case.seen.told == ["a", "b"]
    assert case.loop.now < LATEST


def test_traffic_without_a_pause_holds_it_up_only_so_long(case: _Case) -> None:
    """Requests that come all the time do not keep an end from being told."""
    case.end("a")
    while not case.seen.told:
        case.ends.moved = case.loop.now + QUIET  # just before it looks again
        case.loop.step()
    assert LATEST <= case.loop.now <= LATEST + QUIET


def test_a_reader_finds_all_counted_and_the_rest_follows_later(case: _Case) -> None:
    """Counts are complete for whoever reads; lines and spans keep to their time, and come once."""
    case.end("a")
    case.ends.count()
    assert (case.counted, case.seen.told) == (["a"], [])
    while not case.loop.idle:
        case.loop.step()
    assert case.counted == case.seen.told == ["a"]


def test_a_few_at_once_and_a_new_request_goes_first(case: _Case) -> None:
    """Between two pieces a request that arrives is noticed, and the rest waits for the next pause."""
    names = [str(number) for number in range(20)]
    for name in names:
        case.end(name)
    case.loop.step()
    assert case.seen.told == names[:8]
    case.ends.moved = case.loop.now
    case.loop.step()
    assert case.seen.told == names[:8]
    while not case.loop.idle:
        case.loop.step()
    assert case.counted == case.seen.told == names


def test_an_end_that_cannot_be_counted_costs_only_itself(case: _Case) -> None:
    """The others are counted and told."""
    hook = guard("http")
    try:
        for name in ("a", "broken", "b"):
            case.end(name)
        while not case.loop.idle:
            case.loop.step()
        assert hook.errors == 1
    finally:
        hook.errors, hook.active = 0, True
    assert case.counted == case.seen.told == ["a", "b"]


def test_the_end_of_the_server_waits_for_nothing(case: _Case) -> None:
    """All are told at once, and the timer that is left finds nothing to do."""
    for name in ("a", "b"):
        case.end(name)
    case.ends.settle()
    assert case.seen.told == ["a", "b"]
    while not case.loop.idle:
        case.loop.step()
    assert case.seen.told == ["a", "b"]
