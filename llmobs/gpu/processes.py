"""The processes that NVML lists on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmobs.gpu.calls import Calls
from llmobs.gpu.nvml import clean, exports

_LISTS = (
    ("processes", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics_processes", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps_processes", "nvmlDeviceGetMPSComputeRunningProcesses"),
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One process on one GPU: its bytes, or None where the driver does not tell."""

    pid: int
    memory_bytes: float | None


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The processes of one GPU. `asked_at` is the time since boot in seconds, taken before the driver was asked.

    `complete` is False when a part of the list could not be read.
    """

    entries: tuple[Listed, ...]
    asked_at: float
    complete: bool


def shifted(nvml: Any) -> bool:
    """Return whether this driver's list has another layout than pynvml reads (535.43 to 535.98).

    It would give wrong pids and memory; those drivers are known by having the one function and not yet the other
    (pynvml issue 50, go-nvml issue 75).
    """
    return exports(nvml, "nvmlDeviceGetConfComputeMemSizeInfo") and not exports(
        nvml, "nvmlDeviceGetRunningProcessDetailList"
    )


def read(calls: Calls, handles: Sequence[Any], boottime: Callable[[], float]) -> ProcessList | None:
    """Return the processes on the given handles (a GPU, or its MIG devices); None when they cannot be listed."""
    asked_at = boottime()
    complete = True
    memory: dict[tuple[int, int], float | None] = {}
    for handle in handles:
        for field, function in _LISTS:
            found = calls.get(field, (function, handle))
            if found is None:
                reason = calls.absent.get(field)
                if field == "processes" and reason is not None:
                    return None
                # A GPU without graphics or MPS has no such processes; any other refusal hides some.
                complete = complete and reason in (None, "unsupported")
                continue
            for process in found:
                # A process with graphics and compute is in both lists, with the same figure.
                key = (int(process.pid), int(process.gpuInstanceId))
                used = clean(process.usedGpuMemory)
                memory[key] = used if memory.get(key) is None else max(memory[key] or 0.0, used or 0.0)
    by_pid: dict[int, list[float | None]] = {}
    for (pid, _), used in memory.items():
        by_pid.setdefault(pid, []).append(used)
    entries = [
        Listed(pid, None if None in parts else sum(part for part in parts if part is not None))
        for pid, parts in sorted(by_pid.items())
    ]
    return ProcessList(tuple(entries), asked_at, complete)
