"""The temperatures at which a GPU acts."""

from __future__ import annotations

from typing import Any

from llmobs.gpu import fields
from llmobs.gpu.calls import Calls
from llmobs.gpu.nvml import clean

_BY_CALL = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
_BY_FIELD = {
    "shutdown": (fields.TLIMIT_SHUTDOWN, 0),
    "slowdown": (fields.TLIMIT_SLOWDOWN, 0),
    "gpu_max": (fields.TLIMIT_GPU_MAX, 0),
}
_FACT = "temperature_thresholds"


def read(calls: Calls, handle: Any, temperature: float | None) -> dict[str, float]:
    """Return thresholds in °C by name.

    Ada, Hopper and newer may give them only against "T.Limit", which falls to 0 as the GPU gets to its highest
    operating temperature: ``threshold = temperature + margin − offset``, with the margin of
    nvmlDeviceGetMarginTemperature and the (mostly negative) offsets of fields 193, 194 and 196. The memory's limit
    has a margin of its own, which NVML does not give.
    """
    found = {}
    for name, which in _BY_CALL.items():
        degrees = calls.get(_FACT, ("nvmlDeviceGetTemperatureThreshold", handle, which))
        if (limit := clean(degrees, low=1, high=200)) is not None:
            found[name] = limit
    if "slowdown" in found or temperature is None:
        return found
    margin = calls.get(_FACT, ("nvmlDeviceGetMarginTemperature", handle))
    if margin is None:
        return found
    offsets = fields.read(calls, handle, tuple(_BY_FIELD.values()))
    for name, field in _BY_FIELD.items():
        if name not in found and field in offsets:
            found[name] = temperature + margin - offsets[field]
    return found
