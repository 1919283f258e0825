"""Watching the GPUs: cycles in a thread of their own, and the last finished result.

Whatever NVML does, it does it there: neither the web server nor the targets wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from urllib.parse import urlsplit

from llmobs import log
from llmobs.catalog import METRICS
from llmobs.config import GpuSettings, TargetSettings
from llmobs.exporter.history import History
from llmobs.exporter.render import Page, Renderer
from llmobs.exporter.watch import CycleStats
from llmobs.gpu.publish import samples
from llmobs.snapshot import GpuSnapshot, GpuStats

_SPARKLINES = ("utilization", "memory_used_bytes", "power_watts", "temperature_celsius")


class GpuSource(Protocol):
    """Where GPU snapshots come from: NVML, or the simulator."""

    def read(self) -> GpuSnapshot:
        """Return one snapshot; returns within its own timeout, also when the driver hangs."""

    def watch(self, *, uuids: Collection[str] = (), ports: Collection[int] = ()) -> None:
        """Say which GPUs, and who listens on which ports of this host, belong to the watched servers."""

    def close(self) -> None:
        """Let go of the driver."""


class GpuWatch:
    """The GPUs of this host being watched."""

    def __init__(self, source: GpuSource, settings: GpuSettings, *, simulated: bool = False) -> None:
        self.settings = settings
        self.simulated = simulated
        self.cycles = CycleStats()
        self.snapshot: GpuSnapshot | None = None
        self.page: Page = {}
        self.samples: tuple[tuple[str, tuple[str, ...], float], ...] = ()
        self.history: dict[str, History] = {}
        self._source = source
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llmobs-gpu")
        self._renderer = Renderer()
        self._monotonic = _Monotonic()
        self._log = log.get().bind(collector="gpu")

    def follow(self, targets: Collection[TargetSettings]) -> None:
        """Attribute GPUs to these targets from now on."""
        self._source.watch(uuids=[uuid for target in targets for uuid in target.gpus], ports=local_ports(targets))

    def current(self) -> GpuSnapshot | None:
        """Return the last snapshot unless it is too old to be joined with an engine's figures."""
        snapshot = self.snapshot
        if snapshot is None or time.monotonic() - snapshot.taken_at > 3 * self.settings.interval_seconds:
            return None
        return snapshot

    async def run(self) -> None:
        """Run cycles until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                await self.cycle()
                spent = loop.time() - started
                if spent > self.settings.interval_seconds:
                    self.cycles.overruns += 1
                await asyncio.sleep(max(0.0, self.settings.interval_seconds - spent))
        finally:
            # Not waited for: a thread inside a hung driver call never ends.
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def cycle(self) -> None:
        """Run one cycle."""
        started = time.perf_counter()
        before = self.snapshot
        try:
            snapshot = await asyncio.get_running_loop().run_in_executor(self._thread, self._source.read)
        except Exception:  # noqa: BLE001 (a defect here must not end the daemon)
            self.cycles.success = False
            self.page = {}
            self.samples = ()
            self.snapshot = None
            self._log.exception("cycle_failed")
            return
        self.snapshot = snapshot
        self.samples = tuple(self._monotonic.apply(samples(snapshot, reserve_ratio=self.settings.reserve_ratio)))
        self.page = self._renderer.render(self.samples)
        for gpu in snapshot.devices:
            self.history.setdefault(gpu.uuid, History(_SPARKLINES)).add(
                snapshot.taken_at, snapshot.wall_time, {name: getattr(gpu, name) for name in _SPARKLINES}
            )
        self.cycles.duration = time.perf_counter() - started
        self.cycles.success = snapshot.available
        if snapshot.available:
            self.cycles.last_success = snapshot.wall_time
        self._report(before, snapshot)

    async def close(self) -> None:
        """Let go of the driver, without waiting longer than a second for it."""
        closer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llmobs-gpu-close")
        try:
            await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(closer, self._source.close), 1.0)
        except (TimeoutError, asyncio.TimeoutError):
            self._log.warning("nvml_shutdown_abandoned")
        finally:
            closer.shutdown(wait=False, cancel_futures=True)

    def _report(self, before: GpuSnapshot | None, now: GpuSnapshot) -> None:
        if before is None or (before.available, before.reason) != (now.available, now.reason):
            if now.available:
                self._log.info("gpus_found", count=len(now.devices), driver=now.driver_version, once=True)
            else:
                self._log.warning("no_gpus", reason=now.reason, detail=now.detail, once=True)
        down_before = {d.uuid for d in before.devices if not d.up} if before else set[str]()
        for gpu in now.devices:
            if not gpu.up and gpu.uuid not in down_before:
                self._log.error("gpu_down", uuid=gpu.uuid, reason=gpu.reason, once=True)
            self._report_xids(before, gpu)

    def _report_xids(self, before: GpuSnapshot | None, gpu: GpuStats) -> None:
        earlier = {d.uuid: d.xid_errors for d in before.devices} if before else {}
        for code, count in gpu.xid_errors.items():
            if count > earlier.get(gpu.uuid, {}).get(code, 0.0):
                self._log.error("xid", uuid=gpu.uuid, xid=code, count=count, once=True)


def local_ports(targets: Iterable[TargetSettings]) -> list[int]:
    """Return the ports of targets on this host: who listens there is vLLM, which tells its processes and GPUs."""
    ports = []
    for target in targets:
        parts = urlsplit(target.url)
        if parts.hostname in ("localhost", "127.0.0.1", "::1"):
            ports.append(parts.port or (443 if parts.scheme == "https" else 80))
    return ports


class _Monotonic:
    """Counters of the driver start again when it is reloaded; what is published never goes down."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}
        self._offset: dict[tuple[str, tuple[str, ...]], float] = {}

    def apply(
        self, found: Iterable[tuple[str, tuple[str, ...], float]]
    ) -> Iterable[tuple[str, tuple[str, ...], float]]:
        for name, labels, value in found:
            if METRICS[name].kind != "counter":
                yield name, labels, value
                continue
            key = (name, labels)
            last = self._last.get(key, 0.0)
            if value < last:
                self._offset[key] = self._offset.get(key, 0.0) + last
            self._last[key] = value
            yield name, labels, value + self._offset.get(key, 0.0)
