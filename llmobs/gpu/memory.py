"""Device memory, with the driver's reserved part kept apart where the driver tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmobs.gpu.calls import Calls
from llmobs.gpu.nvml import clean


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; total = used + free + reserved. `used` includes the reserved part when `reserved` is None (version 1)."""

    total: float | None = None
    used: float | None = None
    free: float | None = None
    reserved: float | None = None


def read(calls: Calls, handle: Any, field: str = "memory") -> Memory:
    """Return the memory of a GPU or a MIG device: version 2 of the call, else version 1 (older drivers, WSL2)."""
    version_2 = ("nvmlDeviceGetMemoryInfo", handle, calls.nvml.nvmlMemory_v2)
    info = calls.get(field, version_2, ("nvmlDeviceGetMemoryInfo", handle))
    if info is None:
        return Memory()
    total = clean(info.total, low=1)
    if total is None:  # 0 or a sentinel: a device without memory of its own
        return Memory()
    return Memory(
        total=total,
        used=clean(info.used, high=total),
        free=clean(info.free, high=total),
        reserved=clean(getattr(info, "reserved", None), high=total),
    )
