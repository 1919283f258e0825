"""The last ten minutes of a few figures, for the sparklines of the live page."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

STEP_SECONDS = 5.0
POINTS = 120


class History:
    """Rings of `POINTS` values, `STEP_SECONDS` apart; NaN is "not known then" and stays a gap."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._series = {name: array("d", [math.nan]) * POINTS for name in names}
        self._slot: int | None = None
        self._end = 0.0

    def add(self, at: float, wall_time: float, values: Mapping[str, float | None]) -> None:
        """Add values read at `at` (monotonic seconds); several in one step: the last wins, gaps stay gaps."""
        slot = int(at // STEP_SECONDS)
        previous = self._slot
        for name, series in self._series.items():
            value = values.get(name)
            if previous is None or slot > previous:
                moved = POINTS if previous is None else min(slot - previous, POINTS)
                series[:] = series[moved:] + array("d", [math.nan]) * moved
            if slot >= (previous or slot):
                series[-1] = math.nan if value is None else value
        self._slot = slot if previous is None else max(slot, previous)
        self._end = wall_time

    def to_json(self) -> dict[str, Any]:
        """Return the series, oldest first, as the live page expects them. Leading gaps are cut."""
        first = min(
            (next((i for i, v in enumerate(s) if not math.isnan(v)), POINTS) for s in self._series.values()),
            default=POINTS,
        )
        series = {
            name: [None if math.isnan(v) else round(v, 6) for v in values[first:]]
            for name, values in self._series.items()
        }
        return {"step_seconds": STEP_SECONDS, "end": self._end, "series": series}
