"""GPUs that do what the simulated engines make them do: one per engine, for demonstrations and tests.

Utilisation is the share of time in engine steps, power follows from it and from how full the steps were, energy is the
integral of power, temperature follows power with a lag, memory is weights, workspace and KV cache of the process (and
what an event leaks). Everything is named as simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from llmobs.catalog.gpu import CLOCK_EVENT_REASONS, XID_CODES
from llmobs.simulate.engine import Engine
from llmobs.simulate.scenario import ModelSettings
from llmobs.simulate.server import SimulatedVllm
from llmobs.snapshot import GpuProcess, GpuSnapshot, GpuStats

#: Seconds in which a temperature moves most of the way to where its power takes it.
_THERMAL_LAG = 25.0
#: Memory that the driver takes without any process, and what a process takes before it loads anything.
_DRIVER_BYTES = 0.52e9
_CONTEXT_BYTES = 0.48e9


class _Gpu:
    """What one GPU remembers between two readings."""

    def __init__(self, ambient: float) -> None:
        self.engine: Engine | None = None
        self.busy = self.weight = 0.0
        self.utilization = self.load = 0.0
        self.energy = 0.0
        self.watts = 0.0
        self.temperature = ambient
        self.pcie = {"tx": 0.0, "rx": 0.0}
        self.nvlink = {"tx": 0.0, "rx": 0.0}


class SimulatedGpus:
    """The GPUs of a simulated server, as a source of `GpuSnapshot`s. Times of a reading are the reader's clocks."""

    def __init__(self, server: SimulatedVllm) -> None:
        self._server = server
        self._settings = server.scenario.gpu
        self._places = [(model, rank) for model in server.scenario.models for rank in range(model.engines)]
        self._gpus = [_Gpu(self._settings.ambient_celsius) for _ in self._places]
        self._read_at: float | None = None

    def watch(self, *, uuids: Collection[str] = (), ports: Collection[int] = ()) -> None:
        """Change nothing: simulated GPUs belong to the simulated engine."""

    def close(self) -> None:
        """Nothing to let go of; a real source has a driver."""

    def read(self) -> GpuSnapshot:
        """Return all GPUs as they are at the simulation's present moment."""
        server = self._server
        now = server.now
        elapsed = 0.0 if self._read_at is None else now - self._read_at
        self._read_at = now
        return GpuSnapshot(
            taken_at=time.monotonic(),
            wall_time=time.time(),
            available=True,
            driver_version="simulated",
            cuda_version="simulated",
            xid_listener_up=True,
            devices=tuple(
                self._device(index, model, rank, gpu, elapsed)
                for index, ((model, rank), gpu) in enumerate(zip(self._places, self._gpus))
            ),
        )

    def _device(self, index: int, model: ModelSettings, rank: int, gpu: _Gpu, elapsed: float) -> GpuStats:
        server, settings = self._server, self._settings
        engines = server.process.engines.get(model.name, ())
        engine = engines[rank] if rank < len(engines) and server.phase == "ready" else None
        throttled = any(e.kind == "gpu_throttle" and e.model in (None, model.name) for e in server.active)
        self._move(gpu, engine, elapsed, throttled=throttled)
        used = min(settings.memory_bytes - _DRIVER_BYTES, self._process_bytes(model))
        clock = 1980e6 * (0.55 if throttled else 1.0 if gpu.utilization else 0.17)
        xids = [(at, str(code)) for at, code in server.xids if index == 0]
        return GpuStats(
            uuid=f"GPU-51500000-0000-4000-8000-{index:012d}",
            index=index,
            up=True,
            name=settings.name,
            pci_bus_id=f"00000000:{0x17 + index:02X}:00.0",
            minor=index,
            watched=True,
            watched_proof="config",
            memory_total_bytes=settings.memory_bytes,
            memory_used_bytes=used,
            memory_free_bytes=settings.memory_bytes - _DRIVER_BYTES - used,
            memory_reserved_bytes=_DRIVER_BYTES,
            memory_unaccounted_bytes=0.0,
            processes=(GpuProcess(role="engine", proof="config", memory_bytes=used),) if used else (),
            utilization=gpu.utilization,
            memory_utilization=min(1.0, 0.8 * gpu.utilization),
            sm_active=0.9 * gpu.utilization,
            sm_occupancy=0.4 * gpu.utilization * (0.4 + 0.6 * gpu.load),
            tensor_active=min(1.0, gpu.load * gpu.utilization),
            dram_active=min(1.0, (0.35 + 0.4 * gpu.load) * gpu.utilization),
            power_watts=gpu.watts,
            power_limit_watts=settings.max_watts,
            energy_joules=gpu.energy,
            temperature_celsius=round(gpu.temperature, 1),
            memory_temperature_celsius=round(gpu.temperature + 9, 1),
            temperature_thresholds={"shutdown": 95.0, "slowdown": 89.0, "memory_max": 98.0, "gpu_max": 87.0},
            clocks_hertz={"graphics": clock, "sm": clock, "memory": 2619e6},
            clocks_max_hertz={"graphics": 1980e6, "sm": 1980e6, "memory": 2619e6},
            clock_event_reasons={
                **dict.fromkeys(CLOCK_EVENT_REASONS, 0.0),
                "idle": float(not gpu.utilization),
                "hw_thermal": float(throttled),
            },
            fan_ratio=min(1.0, max(0.3, (gpu.temperature - 25) / 70)),
            performance_state=0.0 if gpu.utilization else 8.0,
            ecc_errors={"corrected": 0.0, "uncorrected": 0.0},
            ecc_errors_lifetime={"corrected": 2.0, "uncorrected": 0.0},
            remapped_rows={"corrected": 0.0, "uncorrected": 0.0},
            row_remap_pending=False,
            row_remap_failed=False,
            retired_pages_pending=False,
            recovery_action=0.0,
            pcie_bytes=dict(gpu.pcie),
            pcie_replays=0.0,
            pcie_generation=5.0,
            pcie_generation_max=5.0,
            pcie_width=16.0,
            pcie_width_max=16.0,
            nvlink_bytes=dict(gpu.nvlink),
            xid_errors={
                **dict.fromkeys(XID_CODES, 0.0),
                **{code: float(sum(c == code for _, c in xids)) for _, code in xids},
            },
            xid_last_seen={code: server.wall(at) for at, code in xids},
            xid_listening=True,
        )

    def _move(self, gpu: _Gpu, engine: Engine | None, elapsed: float, *, throttled: bool) -> None:
        """Let `elapsed` seconds pass: what the engine did meanwhile becomes power, energy, heat and traffic."""
        settings = self._settings
        if engine is not gpu.engine:
            gpu.engine, gpu.busy, gpu.weight = engine, 0.0, 0.0
        busy, weight = (engine.busy_seconds, engine.step_weight) if engine is not None else (0.0, 0.0)
        stepped, weighed = busy - gpu.busy, weight - gpu.weight
        gpu.busy, gpu.weight = busy, weight
        if elapsed > 0:
            gpu.utilization = min(1.0, stepped / elapsed)
            gpu.load = min(1.0, weighed / stepped) if stepped > 0 else 0.0
        share = gpu.utilization * (0.35 + 0.65 * gpu.load) * (0.6 if throttled else 1.0)
        gpu.watts = settings.idle_watts + (settings.max_watts - settings.idle_watts) * share
        gpu.energy += gpu.watts * elapsed
        target = 88.0 if throttled else settings.ambient_celsius + 48 * gpu.watts / settings.max_watts
        gpu.temperature += (target - gpu.temperature) * (1 - math.exp(-elapsed / _THERMAL_LAG))
        gpu.pcie["rx"] += 2.1e8 * weighed + 4e5 * elapsed
        gpu.pcie["tx"] += 0.6e8 * weighed + 2e5 * elapsed
        gpu.nvlink["rx"] += 1.5e9 * weighed
        gpu.nvlink["tx"] += 1.5e9 * weighed

    def _process_bytes(self, model: ModelSettings) -> float:
        server, settings = self._server, self._settings
        if server.phase == "down":
            return 0.0
        kv = model.engine.kv_blocks * model.engine.block_size * model.engine.kv_bytes_per_token
        if server.phase == "loading":
            process = server.process
            part = (server.now - process.started_at) / max(process.ready_at - process.started_at, 1e-9)
            return _CONTEXT_BYTES + settings.weights_bytes * min(1.0, part)
        asleep = server.asleep
        if asleep:
            return _CONTEXT_BYTES + settings.workspace_bytes
        return _CONTEXT_BYTES + settings.weights_bytes + settings.workspace_bytes + kv + server.leaked_bytes
