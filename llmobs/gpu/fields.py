"""Field values: many numbers with one call, each with its own return code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from llmobs.gpu.calls import Calls
from llmobs.gpu.nvml import ALL_LINKS, Meaning, clean, meaning

MEMORY_TEMPERATURE = 82
LINK_COUNT = 91
NVLINK_TX_KIB, NVLINK_RX_KIB = 138, 139
NVLINK_TX_BYTES, NVLINK_RX_BYTES = 202, 204
POWER_AVERAGE, POWER_INSTANT = 185, 186
TLIMIT_SHUTDOWN, TLIMIT_SLOWDOWN, TLIMIT_GPU_MAX = 193, 194, 196
PCIE_TX, PCIE_RX = 197, 198
RECOVERY_ACTION = 230

#: Values by (field id, scope).
Values: TypeAlias = Mapping[tuple[int, int], float]

#: Read in every cycle: (field id, scope).
CYCLE: tuple[tuple[int, int], ...] = (
    (MEMORY_TEMPERATURE, 0),
    (POWER_AVERAGE, 0),
    (POWER_INSTANT, 0),
    (PCIE_TX, 0),
    (PCIE_RX, 0),
    (NVLINK_TX_KIB, ALL_LINKS),
    (NVLINK_RX_KIB, ALL_LINKS),
    (NVLINK_TX_BYTES, ALL_LINKS),
    (NVLINK_RX_BYTES, ALL_LINKS),
    (RECOVERY_ACTION, 0),
)

#: The fact that a field is for.
_FACTS = {
    MEMORY_TEMPERATURE: "memory_temperature_celsius",
    POWER_AVERAGE: "power_watts",
    POWER_INSTANT: "power_watts",
    PCIE_TX: "pcie_bytes",
    PCIE_RX: "pcie_bytes",
    NVLINK_TX_KIB: "nvlink_bytes",
    NVLINK_RX_KIB: "nvlink_bytes",
    NVLINK_TX_BYTES: "nvlink_bytes",
    NVLINK_RX_BYTES: "nvlink_bytes",
    LINK_COUNT: "nvlink_bytes",
    TLIMIT_SHUTDOWN: "temperature_thresholds",
    TLIMIT_SLOWDOWN: "temperature_thresholds",
    TLIMIT_GPU_MAX: "temperature_thresholds",
    RECOVERY_ACTION: "recovery_action",
}
_SIGNED = frozenset({TLIMIT_SHUTDOWN, TLIMIT_SLOWDOWN, TLIMIT_GPU_MAX})
_MOST_LINKS = 64


def read(calls: Calls, handle: Any, wanted: Sequence[tuple[int, int]] = CYCLE) -> Values:
    """Return the wanted fields that this device answers, by (id, scope), in NVML's units.

    Fields it refuses are left out of the next calls for an hour.
    """
    asked = [field for field in wanted if not calls.refused(_FACTS[field[0]], field)]
    if not asked:
        return {}
    code, answer = calls.attempt("nvmlDeviceGetFieldValues", handle, asked)
    if code and len(asked) > 1 and meaning(code) in (Meaning.UNSUPPORTED, Meaning.UNKNOWN):
        # Some drivers refuse the whole list for one field that they do not know: find out which.
        return {key: value for field in asked for key, value in read(calls, handle, [field]).items()}
    if code:
        for field in asked:
            calls.failed(code, _FACTS[field[0]], field)
        return {}
    values: dict[tuple[int, int], float] = {}
    for field, entry in zip(asked, answer):
        if entry.nvmlReturn != 0:
            calls.failed(entry.nvmlReturn, _FACTS[field[0]], field)
        elif (value := _decode(entry)) is not None:
            values[field] = value
    return values


def nvlink_bytes(calls: Calls, handle: Any, values: Values) -> dict[str, float]:
    """Return cumulative data bytes over all NVLinks, `tx` and `rx`.

    From the KiB fields for all links together, or NVLink 5's byte fields, or link by link where the driver has no sum.
    """
    for tx, rx, factor in ((NVLINK_TX_KIB, NVLINK_RX_KIB, 1024.0), (NVLINK_TX_BYTES, NVLINK_RX_BYTES, 1.0)):
        sums = {"tx": values.get((tx, ALL_LINKS)), "rx": values.get((rx, ALL_LINKS))}
        if any(value is not None for value in sums.values()):
            return {way: value * factor for way, value in sums.items() if value is not None}
    links = read(calls, handle, [(LINK_COUNT, 0)]).get((LINK_COUNT, 0), 0)
    if not 0 < links <= _MOST_LINKS:
        return {}
    wanted = [(field, link) for field in (NVLINK_TX_KIB, NVLINK_RX_KIB) for link in range(int(links))]
    per_link = read(calls, handle, wanted)
    found = {}
    for way, field in (("tx", NVLINK_TX_KIB), ("rx", NVLINK_RX_KIB)):
        counts = [value for (known, _), value in per_link.items() if known == field]
        if counts:
            found[way] = sum(counts) * 1024.0
    return found


def _decode(entry: Any) -> float | None:
    """Return the value in the union member that the entry names; None for a sentinel."""
    value = entry.value
    if entry.fieldId in _SIGNED:
        return clean(value.siVal, low=-300, high=300)
    raw = {0: value.dVal, 1: value.uiVal, 2: value.ulVal, 3: value.ullVal, 4: value.sllVal, 5: value.siVal}
    return clean(raw.get(entry.valueType))
