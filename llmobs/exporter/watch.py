"""Watching one target: a loop of read → derive → render, and the last finished result."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from llmobs import log
from llmobs.config import DeriveSettings, TargetSettings
from llmobs.derive import cache, phases, speculation, window
from llmobs.derive.failures import EngineKey
from llmobs.derive.publish import Sample, samples
from llmobs.derive.target import Limits, TargetState, advance, begin, failed
from llmobs.engine.evidence import EvidenceReader
from llmobs.engine.target import TargetReader
from llmobs.exporter.history import History
from llmobs.exporter.render import Page, Renderer
from llmobs.snapshot import Evidence, GpuSnapshot, Reading

_NO_EVIDENCE = Evidence()
_BAD = ("dead", "stalled", "livelock", "unreachable")
_SPARKLINES = (
    "running", "waiting", "kv_cache_usage_ratio", "cache_hit_rate", "ttft_p95", "inter_token_p95",
    "decode_tokens_per_second", "prefill_tokens_per_second", "failed_per_second",
)  # fmt: skip


@dataclass(slots=True)
class CycleStats:
    """How a collector's cycles went. Times in seconds; `last_success` is Unix time."""

    duration: float | None = None
    success: bool | None = None
    last_success: float | None = None
    overruns: int = 0
    dropped_label_sets: int = 0


class TargetWatch:
    """One target being watched. All of it runs on the event loop; readers see only finished cycles."""

    def __init__(
        self,
        target: TargetSettings,
        settings: DeriveSettings,
        *,
        found_by: str = "static",
        gpus: Callable[[], GpuSnapshot | None] = lambda: None,
        resolver: aiohttp.abc.AbstractResolver | None = None,
        before: TargetWatch | None = None,
    ) -> None:
        """Watch `target`; `before` watched the same server with other settings, and what it knows is kept."""
        self.target = target
        self.found_by = found_by
        self.limits = limits(settings)
        self.cycles = CycleStats()
        self.state: TargetState = before.state if before else begin(time.monotonic())
        self.page: Page = {}
        self.samples: list[Sample] = []
        self.history: dict[EngineKey, History] = before.history if before else {}
        self.finished_at: float | None = None
        self._max_label_values = settings.max_label_values
        self._gpus = gpus
        self._reader = TargetReader(target, resolver=resolver)
        wants_evidence = target.state_dir or target.log_file or target.cgroup
        self._evidence = EvidenceReader(target) if wants_evidence else None
        self._evidence_task: asyncio.Task[Evidence] | None = None
        self._problems: dict[str, str] = {}
        self._renderer = Renderer(target.labels)
        self._log = log.get().bind(target=target.name)
        self._publish(wall_time=None)

    @property
    def interval(self) -> float:
        """Seconds between cycles now."""
        return self._reader.interval

    def update(self, settings: DeriveSettings) -> None:
        """Take new derivation settings, keeping everything learnt about the target."""
        self.limits = limits(settings)
        self._max_label_values = settings.max_label_values

    async def run(self, slots: asyncio.Semaphore) -> None:
        """Run cycles until cancelled. The first starts after a random part of a second, against beating in step."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0, min(1.0, self.interval)))
        try:
            while True:
                started = loop.time()
                async with slots:
                    try:
                        await self.cycle()
                    except Exception:  # noqa: BLE001
                        # One target's defect must not end the others; it is shown and the next cycle tries again.
                        self._go_blind()
                        self._log.exception("cycle_failed")
                spent = loop.time() - started
                interval = self.interval * random.uniform(0.98, 1.02)
                if spent > interval:
                    self.cycles.overruns += 1
                await asyncio.sleep(max(0.0, interval - spent))
        finally:
            await self._reader.close()

    async def cycle(self) -> None:
        """Run one cycle: read, derive, render."""
        started = time.perf_counter()
        reading = await self._reader.read()
        evidence = await self._read_evidence()
        before = self.state
        self.state = advance(before, reading, evidence, self.limits, self._gpus())
        self._publish(reading.wall_time)
        self.finished_at = time.monotonic()
        self.cycles.duration = time.perf_counter() - started
        self.cycles.success = reading.snapshot is not None
        if reading.snapshot is not None:
            self.cycles.last_success = reading.wall_time
        self._report(before, reading)

    def _go_blind(self) -> None:
        """Publish only that nothing is known; what the last good cycle found is too old already."""
        self.cycles.success = False
        self.samples = [Sample("vllm_up", (self.target.name,), 0.0)]
        self.page = self._renderer.render(self.samples)

    async def close(self) -> None:
        """Close connections; for watches whose loop never ran."""
        await self._reader.close()

    async def _read_evidence(self) -> Evidence:
        if self._evidence is None:
            return _NO_EVIDENCE
        if self._evidence_task is None:
            self._evidence_task = asyncio.ensure_future(asyncio.to_thread(self._evidence.read))
        # A file system that hangs must not take the target along; its answer is taken when it comes.
        await asyncio.wait({self._evidence_task}, timeout=self.target.timeout_seconds)
        if not self._evidence_task.done():
            self._log.warning("evidence_unreadable", problem="the file system does not answer")
            return _NO_EVIDENCE
        task, self._evidence_task = self._evidence_task, None
        evidence = task.result()
        if self._evidence.problems != self._problems:
            for source, problem in self._evidence.problems.items():
                if self._problems.get(source) != problem:
                    self._log.warning("evidence_unreadable", source=source, problem=problem)
            self._problems = dict(self._evidence.problems)
        return evidence

    def _publish(self, wall_time: float | None) -> None:
        found, dropped = samples(self.state, self.target.name, self.limits, max_label_values=self._max_label_values)
        self.cycles.dropped_label_sets += dropped
        self.samples = found
        self.page = self._renderer.render(found)
        if wall_time is not None and self.state.reading is not None:
            for key in [key for key in self.history if key not in self.state.known]:
                del self.history[key]
            for key in self.state.known:
                self.history.setdefault(key, History(_SPARKLINES)).add(
                    self.state.reading.taken_at, wall_time, figures(self.state, key)
                )

    def _report(self, before: TargetState, reading: Reading) -> None:
        state = self.state
        if state.word != before.word or before.reading is None:
            level = (
                self._log.warning if state.word in ("dead", "stalled", "livelock", "unreachable") else self._log.info
            )
            details = {"reason": reading.error_reason, "detail": reading.error_message} if reading.error_reason else {}
            level("target_state", state=state.word, was=before.word, once=True, **details)
        elif reading.error_reason:
            self._log.warning("target_unreadable", reason=reading.error_reason, detail=reading.error_message)
        if state.restarts > before.restarts:
            self._log.warning("engine_restarted", restarts=state.restarts, once=True)
        if state.last is not None and (before.last is None or before.last.dialect != state.last.dialect):
            self._log.info(
                "target_read",
                source=state.last.source,
                dialect=state.last.dialect,
                version=state.last.version,
                simulated=state.last.simulated,
                unmapped_series=state.last.unmapped_series,
                once=True,
            )


def limits(settings: DeriveSettings) -> Limits:
    """Return the derivation's limits from the settings."""
    return Limits(
        window_seconds=settings.window_seconds,
        peak_seconds=settings.peak_seconds,
        stall_seconds=settings.stall_seconds,
        start_budget_seconds=settings.start_budget_seconds,
    )


def figures(state: TargetState, key: EngineKey) -> dict[str, float | None]:
    """Return the figures of one engine that the live page draws; all None while the target cannot be read."""
    engine, seen = state.engines.get(key), state.window(key)
    if engine is None:
        return {}
    values: dict[str, float | None] = {
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_cache_usage_ratio": cache.usage(engine),
    }
    if seen is not None:
        values.update(
            cache_hit_rate=cache.hit_rate(seen),
            ttft_p95=window.quantile(seen.histogram("time_to_first_token"), 0.95),
            inter_token_p95=window.quantile(seen.histogram("inter_token_latency"), 0.95),
            decode_tokens_per_second=phases.decode_tokens_per_second(seen),
            prefill_tokens_per_second=phases.prefill_tokens_per_second(seen),
            failed_per_second=_failed_per_second(state, key),
            spec_acceptance_rate=speculation.acceptance_rate(seen),
        )
    return values


def _failed_per_second(state: TargetState, key: EngineKey) -> float | None:
    first, last = state.history[0], state.history[-1]
    reasons = failed(state, key)
    if not reasons:
        return None
    grown = (last.failed.get((key, r), 0.0) - first.failed.get((key, r), 0.0) for r in reasons)
    return window.quotient(sum(grown), last.at - first.at)
