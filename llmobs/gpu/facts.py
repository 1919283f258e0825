"""The measurements of one GPU, group by group: NVML's answers in base units, ready for `GpuStats`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmobs.catalog.gpu import CLOCK_EVENT_REASONS
from llmobs.gpu import fields, memory, thresholds
from llmobs.gpu.calls import Calls
from llmobs.gpu.counters import Unwrapped
from llmobs.gpu.nvml import clean, scaled

#: Seconds for which values that hardly ever change are kept.
KEEP = 3600.0

_WATTS, _JOULES, _HERTZ, _RATIO = 1e-3, 1e-3, 1e6, 1e-2
_SEVERITIES = ("corrected", "uncorrected")
_CLOCK_IDS = {"graphics": 0, "sm": 1, "memory": 2}
#: nvmlPstates_t: 0 to 15, and 32 for unknown.
_SLOWEST_STATE = 15


class Facts:
    """Reads the groups one after another through `calls`; what is refused is simply not in the answer."""

    def __init__(self, calls: Calls, handle: Any, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._handle = handle
        self._clock = clock
        self._kept: dict[str, tuple[float, Any]] = {}
        self._unwrapped = {"tx": Unwrapped(), "rx": Unwrapped()}

    def attach(self, handle: Any) -> None:
        """Use the handle of a new NVML session."""
        self._handle = handle

    def read(self) -> dict[str, Any]:
        """Return every measurement that one call or field gives, by its name in `GpuStats`."""
        values = fields.read(self._calls, self._handle)
        return {
            **self._memory(),
            **self._utilization(),
            **self._power(values),
            **self._heat(values),
            **self._clocks(),
            **self._health(values),
            **self._links(values),
        }

    def _get(self, field: str, function: str, *arguments: Any) -> Any:
        return self._calls.get(field, (function, self._handle, *arguments))

    def _keep(self, field: str, read: Callable[[], Any]) -> Any:
        """Return a value that is read again after an hour, or in the next cycle while it is missing."""
        until, value = self._kept.get(field, (0.0, None))
        if not value or self._clock() >= until:
            value = read()
            self._kept[field] = (self._clock() + KEEP, value)
        return value

    def _memory(self) -> dict[str, Any]:
        found = memory.read(self._calls, self._handle)
        return {
            "memory_total_bytes": found.total,
            "memory_used_bytes": found.used,
            "memory_free_bytes": found.free,
            "memory_reserved_bytes": found.reserved,
        }

    def _utilization(self) -> dict[str, Any]:
        rates = self._get("utilization", "nvmlDeviceGetUtilizationRates")
        if rates is None:
            return {}
        return {
            "utilization": scaled(rates.gpu, _RATIO, high=100),
            "memory_utilization": scaled(rates.memory, _RATIO, high=100),
        }

    def _power(self, values: fields.Values) -> dict[str, Any]:
        milliwatts = values.get((fields.POWER_AVERAGE, 0), values.get((fields.POWER_INSTANT, 0)))
        if milliwatts is None:
            milliwatts = self._get("power_watts", "nvmlDeviceGetPowerUsage")
        limit = self._get("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit")
        energy = self._get("energy_joules", "nvmlDeviceGetTotalEnergyConsumption")
        return {
            "power_watts": scaled(milliwatts, _WATTS, high=1e8),
            "power_limit_watts": scaled(limit, _WATTS, high=1e8),
            "energy_joules": scaled(energy, _JOULES),
        }

    def _heat(self, values: fields.Values) -> dict[str, Any]:
        degrees = self._calls.get(
            "temperature_celsius",
            ("nvmlDeviceGetTemperatureV", self._handle, 0),
            ("nvmlDeviceGetTemperature", self._handle, 0),
        )
        temperature = clean(degrees, low=-50, high=200)
        return {
            "temperature_celsius": temperature,
            # 0 is what a GPU without the sensor says.
            "memory_temperature_celsius": clean(values.get((fields.MEMORY_TEMPERATURE, 0)), low=1, high=200),
            "temperature_thresholds": self._keep(
                "temperature_thresholds", lambda: thresholds.read(self._calls, self._handle, temperature)
            ),
            "fan_ratio": scaled(self._get("fan_ratio", "nvmlDeviceGetFanSpeed"), _RATIO, high=200),
        }

    def _clocks(self) -> dict[str, Any]:
        bits = self._calls.get(
            "clock_event_reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons", self._handle),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle),
        )
        reasons = {} if bits is None else {name: float(bits >> n & 1) for n, name in enumerate(CLOCK_EVENT_REASONS)}
        state = self._get("performance_state", "nvmlDeviceGetPerformanceState")
        return {
            "clocks_hertz": self._by_clock("clocks_hertz", "nvmlDeviceGetClockInfo"),
            "clocks_max_hertz": self._keep(
                "clocks_max_hertz", lambda: self._by_clock("clocks_max_hertz", "nvmlDeviceGetMaxClockInfo")
            ),
            "clock_event_reasons": reasons,
            "performance_state": clean(state, high=_SLOWEST_STATE),
        }

    def _by_clock(self, field: str, function: str) -> dict[str, float]:
        found = {
            name: scaled(self._get(field, function, which), _HERTZ, high=1e5) for name, which in _CLOCK_IDS.items()
        }
        return {name: hertz for name, hertz in found.items() if hertz is not None}

    def _health(self, values: fields.Values) -> dict[str, Any]:
        rows = self._get("remapped_rows", "nvmlDeviceGetRemappedRows")
        retired = self._get("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus")
        return {
            "ecc_errors": self._ecc("ecc_errors", 0),
            "ecc_errors_lifetime": self._ecc("ecc_errors_lifetime", 1),
            "remapped_rows": {} if rows is None else dict(zip(_SEVERITIES, (float(rows[0]), float(rows[1])))),
            "row_remap_pending": None if rows is None else bool(rows[2]),
            "row_remap_failed": None if rows is None else bool(rows[3]),
            "retired_pages_pending": None if retired is None else retired == 1,
            "recovery_action": clean(values.get((fields.RECOVERY_ACTION, 0)), high=255),
        }

    def _ecc(self, field: str, life: int) -> dict[str, float]:
        counts = {
            severity: clean(self._get(field, "nvmlDeviceGetTotalEccErrors", kind, life))
            for kind, severity in enumerate(_SEVERITIES)
        }
        return {severity: count for severity, count in counts.items() if count is not None}

    def _links(self, values: fields.Values) -> dict[str, Any]:
        # nvmlDeviceGetPcieThroughput would give rates, but keeps the driver busy for 20 ms each time.
        pcie = {"tx": values.get((fields.PCIE_TX, 0)), "rx": values.get((fields.PCIE_RX, 0))}
        return {
            "pcie_bytes": {way: self._unwrapped[way](raw) for way, raw in pcie.items() if raw is not None},
            "pcie_replays": clean(self._get("pcie_replays", "nvmlDeviceGetPcieReplayCounter")),
            "pcie_generation": self._link("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self._link("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_generation_max": self._keep(
                "pcie_generation_max", lambda: self._link("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration")
            ),
            "pcie_width_max": self._keep(
                "pcie_width_max", lambda: self._link("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
            ),
            "nvlink_bytes": fields.nvlink_bytes(self._calls, self._handle, values),
        }

    def _link(self, field: str, function: str) -> float | None:
        return clean(self._get(field, function), low=1, high=64)
