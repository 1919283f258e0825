"""MIG: the GPU instances of one GPU. Memory belongs to the GPU instance, however many compute instances share it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from llmobs.gpu.calls import Calls
from llmobs.gpu.gpm import DRAM_ACTIVE, SM_ACTIVE, TENSOR_ACTIVE, Gpm
from llmobs.gpu.memory import read as read_memory
from llmobs.snapshot import MigInstance

_COMPUTE_PREFIX = re.compile(r"^\d+c\.")


@dataclass(frozen=True, slots=True)
class Slot:
    """One MIG device: a compute instance in a GPU instance."""

    handle: Any
    uuid: str
    gpu_instance: int
    profile: str


class Mig:
    """The MIG devices of one GPU, found anew in each cycle: a reconfiguration gives them new UUIDs."""

    def __init__(self, calls: Calls, handle: Any) -> None:
        self._calls = calls
        self._handle = handle
        self._known: dict[str, Slot] = {}
        self._gpm: dict[int, Gpm] = {}

    @property
    def uuids(self) -> frozenset[str]:
        """UUIDs of the MIG devices found last."""
        return frozenset(self._known)

    def slots(self) -> tuple[Slot, ...]:
        """Return the MIG devices there are now; empty when MIG is off."""
        mode = self._calls.get("mig_instances", ("nvmlDeviceGetMigMode", self._handle))
        most = 0
        if mode is not None and mode[0] == 1:
            most = self._calls.get("mig_instances", ("nvmlDeviceGetMaxMigDeviceCount", self._handle)) or 0
        found: dict[str, Slot] = {}
        for index in range(most):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, index)
            uuid = None if handle is None else self._ask("nvmlDeviceGetUUID", handle)
            if uuid and (slot := self._identify(handle, uuid)):
                found[uuid] = slot
        if found.keys() != self._known.keys():
            self.free()
            self._calls.forget()
        self._known = found
        return tuple(found.values())

    def read(self, slots: tuple[Slot, ...], request: Any | None, now: float) -> tuple[MigInstance, ...]:
        """Return one record per GPU instance; activity only where `request` (the GPM struct) is given."""
        first: dict[int, Slot] = {}
        for slot in slots:
            first.setdefault(slot.gpu_instance, slot)
        return tuple(self._instance(slot, request, now) for _, slot in sorted(first.items()))

    def reseed(self) -> None:
        """Make the next GPM samples the first ones."""
        for gpm in self._gpm.values():
            gpm.reseed()

    def free(self) -> None:
        """Give back what NVML allocated for the instances."""
        for gpm in self._gpm.values():
            gpm.free()
        self._gpm.clear()

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Make a call that any moment of a reconfiguration can spoil: a failure holds for this cycle only."""
        code, value = self._calls.attempt(function, *arguments)
        # NotFound and InvalidArgument mean that the slot is empty.
        if code not in (0, 2, 6):
            self._calls.failed(code, "mig_instances", function)
        return value

    def _identify(self, handle: Any, uuid: str) -> Slot | None:
        if known := self._known.get(uuid):
            return replace(known, handle=handle)
        instance = self._ask("nvmlDeviceGetGpuInstanceId", handle)
        if instance is None:
            return None
        name = self._ask("nvmlDeviceGetName", handle) or ""
        # "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb" is a compute instance in the GPU instance 3g.40gb.
        profile = _COMPUTE_PREFIX.sub("", name.partition(" MIG ")[2])
        return Slot(handle, uuid, int(instance), profile)

    def _instance(self, slot: Slot, request: Any | None, now: float) -> MigInstance:
        memory = read_memory(self._calls, slot.handle, field=f"mig_memory_{slot.uuid}")
        activity: dict[int, float] = {}
        if request is not None:
            activity = self._sampler(slot.gpu_instance).read(request, now)
        return MigInstance(
            gpu_instance=str(slot.gpu_instance),
            profile=slot.profile,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            sm_active=activity.get(SM_ACTIVE),
            tensor_active=activity.get(TENSOR_ACTIVE),
            dram_active=activity.get(DRAM_ACTIVE),
        )

    def _sampler(self, instance: int) -> Gpm:
        if instance not in self._gpm:
            self._gpm[instance] = Gpm(
                self._calls,
                f"mig_gpm_{instance}",
                lambda sample: ("nvmlGpmMigSampleGet", self._handle, instance, sample),
            )
        return self._gpm[instance]
