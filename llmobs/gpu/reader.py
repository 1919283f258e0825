"""Reading all GPUs in one bounded time, whatever the driver does.

Every NVML call is made on a lane: one for the library as a whole, and one per GPU, so that a call that never returns
takes along its own GPU only. What is read from /proc is on a lane too: a process in trouble can block its readers.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import structlog

from llmobs.gpu.attribution import Attribution, Owners, Watch
from llmobs.gpu.calls import ErrorCounts
from llmobs.gpu.device import Device, Identity, Reading
from llmobs.gpu.lane import Lane, Task
from llmobs.gpu.nvml import NvmlDownError, address
from llmobs.gpu.procfs import Procfs
from llmobs.gpu.session import Down, Session, Up
from llmobs.gpu.visibility import Gpu
from llmobs.gpu.xid import XidListener
from llmobs.snapshot import GpuSnapshot, GpuStats

_log = structlog.get_logger("llmobs.gpu")

_HUNG = "a call to the NVIDIA driver does not return; it is tried again by itself as soon as it does"
_CLOSE_SECONDS = 1.5


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class GpuReader:
    """Reads NVML. `read` may be called from any thread, and never takes longer than `timeout` seconds.

    `watched_uuids` are GPUs that configuration names as vLLM's; `pids` are vLLM's server processes and `ports` the TCP
    ports it serves on here, where they are known: without them a single vLLM in /proc is taken for the watched one.
    `proc` is the /proc to look at. The clocks can be replaced: `monotonic` rules retries and GPM intervals, `wall` the
    times of Xid errors, `boottime` the comparison with processes' start times.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        watched_uuids: Collection[str] = (),
        pids: Collection[int] = (),
        ports: Collection[int] = (),
        proc: Path = Path("/proc"),
        timeout: float = 4.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        boottime: Callable[[], float] = _boottime,
    ) -> None:
        self._enabled = enabled
        self._timeout = timeout
        self._monotonic = monotonic
        self._wall = wall
        self._boottime = boottime
        self._lock = threading.Lock()
        self._errors = ErrorCounts()
        self._session = Session(self._errors, monotonic, self._release)
        self._xid = XidListener(self._errors, wall)
        self._attribution = Attribution(Procfs(proc), Watch())
        self._system = Lane("llmobs-nvml")
        self._proc = Lane("llmobs-proc")
        self._devices: dict[str, Device] = {}
        self._lanes: dict[str, Lane] = {}
        self._handles: dict[str, tuple[int, int | None]] = {}
        self._listened: object = None
        self._listen_again = False
        self._hung: set[str] = set()
        self._versions: tuple[str | None, str | None] = (None, None)
        self.watch(uuids=watched_uuids, pids=pids, ports=ports)

    def watch(self, *, uuids: Collection[str] = (), pids: Collection[int] = (), ports: Collection[int] = ()) -> None:
        """Replace what is known about the watched vLLM, from the next reading on."""
        self._attribution.watch = Watch(uuids=frozenset(uuids), pids=frozenset(pids), ports=frozenset(ports))

    def read(self) -> GpuSnapshot:
        """Return what all GPUs say now; without driver or GPU, `available` is False, with `reason` and `detail`."""
        with self._lock:
            taken_at, wall_time = self._monotonic(), self._wall()
            if not self._enabled:
                return GpuSnapshot(taken_at=taken_at, wall_time=wall_time, available=False, reason="disabled")
            ends = time.monotonic() + self._timeout
            state = self._on_system(self._prepare, ends)
            readings: dict[str, Reading] = {}
            if isinstance(state, Up):
                self._versions = (state.driver_version, state.cuda_version)
                readings, failure = self._read_devices(state, ends)
                if failure is not None:
                    cause = failure
                    state = self._on_system(lambda: self._session.fail(cause), ends)
            if isinstance(state, Down):
                reason = "hung" if state.reason == "hung" else "error"
                readings = {uuid: device.down(reason) for uuid, device in self._devices.items()}
            self._log_hung({u for u, r in readings.items() if r.stats.reason == "hung"})
            down = state if isinstance(state, Down) else None
            if down is None and readings and all(r.stats.reason == "hung" for r in readings.values()):
                down = Down("hung", _HUNG)
            owners = self._attribute(readings, ends)
            stats = [self._complete(reading, owners.get(uuid, Owners())) for uuid, reading in readings.items()]
            unknown = self._xid.errors(None)
            return GpuSnapshot(
                taken_at=taken_at,
                wall_time=wall_time,
                available=down is None,
                reason=None if down is None else down.reason,
                detail="" if down is None else down.detail,
                driver_version=self._versions[0],
                cuda_version=self._versions[1],
                xid_listener_up=self._xid.up,
                devices=tuple(sorted(stats, key=lambda s: (s.index, s.uuid))),
                unknown_xid_errors=unknown[0],
                unknown_xid_last_seen=unknown[1],
                nvml_errors=self._errors.snapshot(),
            )

    def close(self) -> None:
        """Stop listening and shut NVML down, in bounded time; what is stuck in the driver is left behind."""
        with self._lock:
            self._enabled = False
            if not self._system.stuck:
                self._system.start(self._session.close).wait(_CLOSE_SECONDS)
            for lane in (self._system, self._proc, *self._lanes.values()):
                lane.close()

    def _on_system(self, job: Callable[[], Up | Down], ends: float) -> Up | Down:
        """Run a job on the lane of the library; Down (hung) when it does not come back in time."""
        if self._system.stuck:
            return Down("hung", _HUNG)
        task = self._system.start(job)
        if not task.wait(ends - time.monotonic()):
            return Down("hung", _HUNG)
        if task.error is not None:
            _log.error("nvml_reading_failed", exc_info=task.error)
            return Down("error", f"unexpected {task.error!r}; please report it")
        assert task.result is not None
        return task.result

    def _prepare(self) -> Up | Down:
        """Bring NVML up, find the GPUs, and listen to them."""
        again = any(device.reason is not None and device.due for device in self._devices.values())
        state = self._session.ensure(look_again=again)
        if isinstance(state, Up):
            handles = {identity.uuid: handle for identity, handle in state.found}
            key = (state.session, {uuid: address(handle) for uuid, handle in handles.items()})
            if key != self._listened or self._listen_again:
                self._xid.start(state.nvml, handles)
                self._listened, self._listen_again = key, False
        return state

    def _release(self) -> bool:
        """Before a shutdown: end what uses NVML; return whether nothing does any more."""
        self._listened = None
        stopped = self._xid.stop()
        if any(lane.stuck for lane in self._lanes.values()):
            return False
        for device in self._devices.values():
            device.free()
        return stopped

    def _read_devices(self, state: Up, ends: float) -> tuple[dict[str, Reading], NvmlDownError | None]:
        """Read every GPU on its own lane; the error is the one with which NVML as a whole failed."""
        readings: dict[str, Reading] = {}
        tasks: dict[str, Task[Reading]] = {}
        were_down: set[str] = set()
        for identity, handle in state.found:
            device = self._devices.get(identity.uuid) or self._new(state.nvml, identity, handle)
            lane = self._lanes[identity.uuid]
            if lane.stuck:
                readings[identity.uuid] = device.down("hung")
                continue
            key = (state.session, address(handle))
            attach = self._handles.get(identity.uuid) != key
            self._handles[identity.uuid] = key
            if device.reason is not None:
                were_down.add(identity.uuid)
            tasks[identity.uuid] = lane.start(_job(device, identity, handle if attach else None, self._xid))
        failure: NvmlDownError | None = None
        for uuid, task in tasks.items():
            device = self._devices[uuid]
            if not task.wait(ends - time.monotonic()):
                readings[uuid] = device.down("hung")
            elif isinstance(task.error, NvmlDownError):
                failure = task.error
            elif task.error is not None or task.result is None:
                _log.error("gpu_reading_failed", gpu=uuid, exc_info=task.error)
                readings[uuid] = device.down("error")
            else:
                readings[uuid] = task.result
                # A GPU that comes back must be registered for events again.
                self._listen_again = self._listen_again or (uuid in were_down and task.result.stats.up)
        for identity, reason in state.lost:
            stats = GpuStats(**dataclasses.asdict(identity), up=False, reason=reason)
            readings[identity.uuid] = Reading(stats=stats, gpu=Gpu(uuid=identity.uuid, index=identity.index))
        for uuid in self._devices.keys() - {identity.uuid for identity, _ in state.found}:
            readings[uuid] = self._devices[uuid].down("lost")
        return readings, failure

    def _new(self, nvml: Any, identity: Identity, handle: Any) -> Device:
        device = Device(nvml, identity, handle, errors=self._errors, monotonic=self._monotonic, boottime=self._boottime)
        self._devices[identity.uuid] = device
        self._lanes[identity.uuid] = Lane(f"llmobs-gpu-{identity.index}")
        return device

    def _attribute(self, readings: Mapping[str, Reading], ends: float) -> dict[str, Owners]:
        if self._proc.stuck:
            return {}
        gpus = [reading.gpu for reading in readings.values()]
        lists = {uuid: r.processes for uuid, r in readings.items() if r.processes is not None}
        task = self._proc.start(lambda: self._attribution(gpus, lists, self._monotonic()))
        # A hung GPU may have used up the time; looking into /proc takes a few milliseconds.
        task.wait(max(0.25, ends - time.monotonic()))
        if task.error is not None:
            _log.error("gpu_attribution_failed", exc_info=task.error)
        return task.result or {}

    def _complete(self, reading: Reading, owners: Owners) -> GpuStats:
        stats = reading.stats
        used, owned = stats.memory_used_bytes, owners.owned_bytes
        # Where the reserved part is not told apart, it would be taken for a leak.
        known = used is not None and owned is not None and stats.memory_reserved_bytes is not None
        unaccounted = max(0.0, used - owned) if known else None  # type: ignore[operator]
        counts, last_seen = self._xid.errors(stats.uuid)
        return dataclasses.replace(
            stats,
            watched=owners.watched,
            watched_proof=owners.watched_proof,
            processes=owners.processes,
            memory_unaccounted_bytes=unaccounted,
            xid_errors=counts,
            xid_last_seen=last_seen,
            xid_listening=self._xid.listens(stats.uuid),
        )

    def _log_hung(self, hung: set[str]) -> None:
        for uuid in self._hung - hung:
            _log.info("gpu_back", gpu=uuid, was="hung", once=True)
        self._hung = hung


def _job(device: Device, identity: Identity, new_handle: Any, xid: XidListener) -> Callable[[], Reading]:
    def read() -> Reading:
        if new_handle is not None:
            device.attach(identity, new_handle)
        return device.read(mig_changed=xid.take_mig_change(identity.uuid))

    return read
