"""Counters that the driver may keep in 32 bits."""

from __future__ import annotations

_WRAP = float(1 << 32)


class Unwrapped:
    """A byte counter of which the header says that it "can wrap", without saying where.

    It counts as 32 bits wide until a larger value was seen. Falling from the upper half of the range to the lower one
    is then a wrap and goes on growing; any other fall is a reset and is handed through. More than one wrap between two
    readings (4 GiB) cannot be noticed.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._wide = False
        self._offset = 0.0

    def __call__(self, raw: float) -> float:
        """Return the counter with its wraps undone."""
        self._wide = self._wide or raw >= _WRAP
        if self._last is not None and raw < self._last:
            wrapped = not self._wide and self._last >= _WRAP / 2 > raw
            self._offset = self._offset + _WRAP if wrapped else 0.0
        self._last = raw
        return self._offset + raw
