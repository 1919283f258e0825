"""Reading one GPU: its state over time, and one cycle of everything it can say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import structlog

from llmobs.gpu import gpm, processes
from llmobs.gpu.calls import Calls, ErrorCounts
from llmobs.gpu.facts import Facts
from llmobs.gpu.mig import Mig
from llmobs.gpu.nvml import NOT_SUPPORTED, DeviceGoneError
from llmobs.gpu.visibility import Gpu
from llmobs.snapshot import GpuStats

_log = structlog.get_logger("llmobs.gpu")

#: Seconds between two tries to reach a GPU that is gone or refuses everything.
RETRY_GONE = 30.0

#: Names under which refusals are kept, where they are not a field of `GpuStats` → the field that is then missing.
_MISSING = {"memory": "memory_total_bytes", "gpm": "sm_active", "processes": "processes"}
_FIELDS = frozenset(field.name for field in dataclasses.fields(GpuStats))
#: Facts that are no measurement: a GPU that gives only these cannot be read.
_NO_MEASUREMENT = frozenset(
    {"uuid", "index", "up", "reason", "name", "pci_bus_id", "minor", "watched", "watched_proof", "unsupported"}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What names a GPU; it outlives NVML sessions."""

    uuid: str
    index: int
    name: str | None = None
    pci_bus_id: str | None = None
    minor: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one GPU said in one cycle, before its processes are attributed."""

    stats: GpuStats
    gpu: Gpu
    processes: processes.ProcessList | None = None


class Device:
    """One GPU, known by its UUID over re-initialisations of NVML. Only one thread may use it at a time."""

    def __init__(
        self,
        nvml: Any,
        identity: Identity,
        handle: Any,
        *,
        errors: ErrorCounts,
        monotonic: Callable[[], float],
        boottime: Callable[[], float],
    ) -> None:
        self.identity = identity
        self.reason: str | None = None
        self._nvml = nvml
        self._monotonic = monotonic
        self._boottime = boottime
        self._calls = Calls(nvml, identity.uuid, errors, monotonic)
        self._facts = Facts(self._calls, handle, monotonic)
        self._request: Any = None
        self._retry_at = 0.0
        self._open(handle)

    def attach(self, identity: Identity, handle: Any) -> None:
        """Use another handle; what NVML allocated for the last one is given back."""
        self.free()
        self.identity = identity
        self._calls.forget()
        self._facts.attach(handle)
        self._retry_at = 0.0
        self._open(handle)

    def free(self) -> None:
        """Give back what NVML allocated; call it before a shutdown."""
        self._gpm.free()
        self._mig.free()

    @property
    def due(self) -> bool:
        """Whether the GPU answers, or is to be tried again."""
        return self.reason is None or self._monotonic() >= self._retry_at

    def down(self, reason: str) -> Reading:
        """Return the record of a GPU that does not answer: its identity and the reason."""
        stats = GpuStats(**dataclasses.asdict(self.identity), up=False, reason=reason)
        return Reading(stats=stats, gpu=self._gpu())

    def read(self, *, mig_changed: bool = False) -> Reading:
        """Read everything. A lost GPU is a record with `up` False. Raises NvmlDownError when NVML is down."""
        if not self.due:
            return self.down(self.reason or "error")
        self._calls.begin()
        if mig_changed:
            self._gpm.reseed()
            self._mig.free()
        try:
            reading = self._read()
        except DeviceGoneError as error:
            return self._gone(error.reason)
        if not any(getattr(reading.stats, name) not in (None, {}, ()) for name in _FIELDS - _NO_MEASUREMENT):
            self._calls.forget()
            return self._gone("unreadable")
        if self.reason is not None:
            _log.info("gpu_back", gpu=self.identity.uuid, was=self.reason, once=True)
            self.reason = None
        return reading

    def _open(self, handle: Any) -> None:
        self._handle = handle
        self._gpm = gpm.Gpm(self._calls, "gpm", lambda sample: ("nvmlGpmSampleGet", handle, sample))
        self._mig = Mig(self._calls, handle)

    def _gpu(self) -> Gpu:
        identity = self.identity
        return Gpu(
            uuid=identity.uuid,
            index=identity.index,
            name=identity.name,
            minor=identity.minor,
            mig_uuids=self._mig.uuids,
        )

    def _gone(self, reason: str) -> Reading:
        self.reason = reason
        self._retry_at = self._monotonic() + RETRY_GONE
        self._gpm.reseed()
        self._mig.reseed()
        return self.down(reason)

    def _read(self) -> Reading:
        slots = self._mig.slots()
        values = self._facts.read()
        request = self._gpm_request()
        now = self._monotonic()
        if request is not None:
            values.update(self._activity(request, values.get("utilization"), now))
        values["mig_instances"] = self._mig.read(slots, request, now)
        listed = None
        if processes.shifted(self._nvml):
            self._calls.absent["processes"] = "unsupported"
        else:
            handles = [slot.handle for slot in slots] or [self._handle]
            listed = processes.read(self._calls, handles, self._boottime)
        stats = GpuStats(**dataclasses.asdict(self.identity), up=True, **values)
        return Reading(
            stats=dataclasses.replace(stats, unsupported=self._unsupported(stats)), gpu=self._gpu(), processes=listed
        )

    def _gpm_request(self) -> Any:
        """Return the struct for GPM questions, or None where GPM is not supported."""
        if self._request is None:
            support = self._calls.get("gpm", ("nvmlGpmQueryDeviceSupport", self._handle))
            if support is None:
                return None
            if not support.isSupportedDevice:
                self._calls.failed(NOT_SUPPORTED, "gpm", ("nvmlGpmQueryDeviceSupport",))
                return None
            self._request = gpm.request(self._nvml)
        return self._request

    def _activity(self, request: Any, utilization: float | None, now: float) -> dict[str, float | None]:
        found = self._gpm.read(request, now)
        if gpm.contradicts(found, utilization):
            self._calls.absent["gpm"] = "suspect"
            self._gpm.reseed()
            return {}
        return {
            "sm_active": found.get(gpm.SM_ACTIVE),
            "sm_occupancy": found.get(gpm.SM_OCCUPANCY),
            "tensor_active": found.get(gpm.TENSOR_ACTIVE),
            "dram_active": found.get(gpm.DRAM_ACTIVE),
        }

    def _unsupported(self, stats: GpuStats) -> dict[str, str]:
        """Return what was refused and has no value from another source either."""
        return {
            field: reason
            for field, reason in sorted(self._calls.absent.items())
            if (fact := _MISSING.get(field, field)) in _FIELDS and getattr(stats, fact) in (None, {}, ())
        }
