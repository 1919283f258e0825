"""Which trace a request belongs to, and whether it is recorded."""

from __future__ import annotations

import os

from llmobs.instrument import ids
from llmobs.instrument.record import TraceContext
from llmobs.instrument.traces.settings import TraceSettings

_LOW = (1 << 64) - 1

#: New traces made at once: one by one they would be made while the engine waits for the request, by code that is not in
#: the processor's cache then.
_LOT = 64


def new_span_ids(count: int) -> list[bytes]:
    """Return random span ids. One of zeros, which would not be valid, comes once in 2**64."""
    fresh = ids.octets(8 * count)
    return [fresh[at : at + 8] for at in range(0, 8 * count, 8)]


def new_trace_id() -> bytes:
    """Return a random trace id."""
    return ids.octets(16)


class Sampler:
    """Decides by the rules of the OpenTelemetry specification: parent-based or not, by a share of trace ids."""

    def __init__(self, settings: TraceSettings) -> None:
        self._parent_based = settings.parent_based
        # TraceIdRatioBased: the lower 64 bits of the trace id, below the share of their range.
        self._bound = round(settings.ratio * (_LOW + 1))
        self._fresh: list[TraceContext] = []
        os.register_at_fork(after_in_child=self._fresh.clear)

    def root(self, parent: TraceContext | None, state: str = "", *, forced: bool = False) -> TraceContext:
        """Return the context of our root span under `parent`, the caller's, or in a new trace."""
        if not self._fresh:
            self._fresh.extend(self._new() for _ in range(_LOT))
        new = self._fresh.pop()
        if parent is None:
            return new if not forced else new._replace(sampled=True)
        sampled = parent.sampled if self._parent_based else int(parent.trace_id[16:], 16) < self._bound
        return TraceContext(parent.trace_id, new.span_id, forced or sampled, parent.parent_id, state)

    def _new(self) -> TraceContext:
        digits = ids.hexadecimal(48)
        return TraceContext(digits[16:], digits[:16], int(digits[32:], 16) < self._bound)


class Share:
    """A share of traces, independent of the sampler's: by the upper 32 bits of the trace id."""

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * (1 << 32))
        self.any = self._bound > 0

    def has(self, trace_id: str) -> bool:
        """Return whether this trace belongs to the share."""
        return int(trace_id[:8], 16) < self._bound
