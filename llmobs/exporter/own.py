"""llmobs' metrics about itself."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from llmobs import __version__
from llmobs.exporter.watch import CycleStats

_STARTED = time.time()
_PAGE = os.sysconf("SC_PAGE_SIZE")

OwnSample = tuple[str, tuple[str, ...], float]


def process() -> Iterator[OwnSample]:
    """Yield the process metrics that Prometheus' own libraries publish, under their names."""
    times = os.times()
    yield "process_cpu_seconds_total", (), times.user + times.system
    yield "process_start_time_seconds", (), _STARTED
    try:
        yield "process_resident_memory_bytes", (), float(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
        yield "process_open_fds", (), float(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 (twice as fast)
    except OSError:
        pass  # no /proc: absent
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY:
        yield "process_max_fds", (), float(limit)


def build() -> Iterator[OwnSample]:
    """Yield version and watchdog."""
    yield "llmobs_build_info", (__version__, platform.python_version()), 1.0
    yield "llmobs_watchdog", (), 1.0


def collector(name: str, target: str, interval: float, cycles: CycleStats) -> Iterator[OwnSample]:
    """Yield how the cycles of one collector went."""
    labels = (name, target)
    yield "llmobs_collector_interval_seconds", labels, interval
    yield "llmobs_cycle_overruns_total", labels, float(cycles.overruns)
    if cycles.duration is not None:
        yield "llmobs_collector_duration_seconds", labels, cycles.duration
    if cycles.success is not None:
        yield "llmobs_collector_success", labels, float(cycles.success)
    if cycles.last_success is not None:
        yield "llmobs_collector_last_success_timestamp_seconds", labels, cycles.last_success
