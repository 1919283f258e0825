"""Which trace a request belongs to, and whether it is recorded."""

from __future__ import annotations

from llmobs.instrument import ids
from llmobs.instrument.record import TraceContext
from llmobs.instrument.traces.settings import TraceSettings

_LOW = (1 << 64) - 1


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

    def root(self, parent: TraceContext | None, state: str = "", *, forced: bool = False) -> TraceContext:
        """Return the context of our root span under `parent`, the caller's, or in a new trace."""
        fresh = ids.hexadecimal(48)
        span_id = fresh[:16]
        if parent is None:
            return TraceContext(fresh[16:], span_id, forced or int(fresh[32:], 16) < self._bound)
        sampled = parent.sampled if self._parent_based else int(parent.trace_id[16:], 16) < self._bound
        return TraceContext(parent.trace_id, span_id, forced or sampled, parent.parent_id, state)


class Share:
    """A share of traces, independent of the sampler's: by the upper 32 bits of the trace id."""

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * (1 << 32))
        self.any = self._bound > 0

    def has(self, trace_id: str) -> bool:
        """Return whether this trace belongs to the share."""
        return int(trace_id[:8], 16) < self._bound
