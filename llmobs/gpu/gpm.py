"""GPU performance monitoring: how busy SMs, tensor cores and memory were between two readings (Hopper and newer)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llmobs.gpu.calls import Calls

SM_ACTIVE, SM_OCCUPANCY, TENSOR_ACTIVE, DRAM_ACTIVE = 2, 3, 5, 10
METRICS = (SM_ACTIVE, SM_OCCUPANCY, TENSOR_ACTIVE, DRAM_ACTIVE)
_VERSION = 1

#: Seconds between two samples that make a trustworthy mean.
SHORTEST, LONGEST = 1.0, 600.0

#: NVML utilisation above which an SM activity of exactly 0 contradicts it (seen after Xid 31).
BUSY = 0.5


def request(nvml: Any) -> Any:
    """Return the struct for `Gpm.read`: 19 kB that are filled once and used again and again."""
    made = nvml.c_nvmlGpmMetricsGet_t()
    made.version = _VERSION
    made.numMetrics = len(METRICS)
    for i, metric in enumerate(METRICS):
        made.metrics[i].metricId = metric
    return made


class Gpm:
    """The two samples of one GPU, or of one GPU instance, and the means between them.

    The samples are allocated once and take turns; values are means over the time since the sample before, so that
    one sample per cycle leaves no gap.
    """

    def __init__(self, calls: Calls, field: str, take: Callable[[Any], tuple[Any, ...]]) -> None:
        """`take` turns a sample into the call that fills it; `field` is the name under which refusals are kept."""
        self._calls = calls
        self._field = field
        self._take = take
        self._samples: list[Any] = []
        self._taken_at: float | None = None

    def read(self, question: Any, now: float) -> dict[int, float]:
        """Take a sample at `now` and return ratios 0–1 by metric id; empty on the first one and on bad spacing.

        `question` comes from `request`; one is enough for all users of a thread.
        """
        if self._taken_at is not None and now - self._taken_at < SHORTEST:
            return {}
        while len(self._samples) < 2:
            sample = self._calls.get(self._field, ("nvmlGpmSampleAlloc",))
            if sample is None:
                return {}
            self._samples.append(sample)
        newer, older = self._samples[0], self._samples[1]
        if self._calls.get(self._field, self._take(newer)) is None:
            self._taken_at = None
            return {}
        before, self._taken_at = self._taken_at, now
        self._samples.reverse()
        if before is None or now - before > LONGEST:
            return {}
        return self._compare(question, older, newer)

    def reseed(self) -> None:
        """Forget the last sample: what happened since is not comparable with it."""
        self._taken_at = None

    def free(self) -> None:
        """Give the samples back to NVML; they are void after a shutdown."""
        for sample in self._samples:
            self._calls.attempt("nvmlGpmSampleFree", sample)
        self._samples.clear()
        self._taken_at = None

    def _compare(self, question: Any, older: Any, newer: Any) -> dict[int, float]:
        question.sample1, question.sample2 = older, newer
        if self._calls.get(self._field, ("nvmlGpmMetricsGet", question)) is None:
            self.reseed()
            return {}
        found = {}
        for i, metric in enumerate(METRICS):
            entry = question.metrics[i]
            if entry.nvmlReturn == 0 and not math.isnan(entry.value) and 0 <= entry.value <= 101:
                # Counter skew lets a saturated unit read a little above 100 %.
                found[metric] = min(1.0, entry.value / 100)
        return found


def contradicts(activity: dict[int, float], utilization: float | None) -> bool:
    """Return whether GPM says that nothing runs while NVML says that something does."""
    return activity.get(SM_ACTIVE) == 0.0 and utilization is not None and utilization > BUSY
