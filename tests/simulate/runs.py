"""Runs of the model that several tests look at."""

from __future__ import annotations

from functools import lru_cache

from llmobs.simulate import SimulatedVllm, facts, load
from llmobs.snapshot import EngineSnapshot, EngineStats

#: Where the Unix time of the simulation's second 0 is put.
ORIGIN = 1_800_000_000.0


def wall(at: float) -> float:
    """Map the simulation's seconds to Unix time."""
    return ORIGIN + at


class Run:
    """A scenario run to its end, with a snapshot every `every` seconds (None while nothing listens)."""

    def __init__(self, name: str, until: float, every: float) -> None:
        self.server = SimulatedVllm(load(name), wall=wall)
        self.moments: list[tuple[float, str, EngineSnapshot | None]] = []
        at = 0.0
        while at < until:
            at += every
            self.server.advance(at)
            snapshot = facts.snapshot(self.server, taken_at=at) if self.server.listening else None
            self.moments.append((at, self.server.phase, snapshot))

    def at(self, second: float) -> EngineStats:
        """Return the first engine's facts at the first moment not before `second`."""
        return next(s.engines[0] for t, _, s in self.moments if t >= second and s is not None)

    def phases(self) -> list[str]:
        """Return the phases in the order in which they came."""
        found: list[str] = []
        for _, phase, _ in self.moments:
            if not found or found[-1] != phase:
                found.append(phase)
        return found

    @property
    def last(self) -> EngineStats:
        """The first engine's facts at the end."""
        snapshot = self.moments[-1][2]
        assert snapshot is not None
        return snapshot.engines[0]


@lru_cache
def run(name: str, until: float = 180, every: float = 1.0) -> Run:
    """Return the run of a packaged scenario; each is made once."""
    return Run(name, until, every)
