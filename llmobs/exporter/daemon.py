"""The daemon: which targets are watched, their loops, reloading, and what is published about llmobs itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp.web import AppRunner

from llmobs import log
from llmobs.config import Settings, TargetSettings
from llmobs.errors import ConfigError, LlmobsError
from llmobs.exporter import discovery, listen, otlp, own, web
from llmobs.exporter.gpus import GpuSource, GpuWatch
from llmobs.exporter.render import Page, Renderer
from llmobs.exporter.watch import TargetWatch
from llmobs.exporter.webconfig import WebConfig
from llmobs.exporter.webconfig import read as read_web_config
from llmobs.log import RateLimit

if TYPE_CHECKING:
    from llmobs.exporter.otlp_data import Group

#: Most targets read at the same moment; the others wait their turn.
PARALLEL_READS = 64


class Daemon:
    """Everything that runs in `llmobs run`. `load` reads the configuration again, for reloads."""

    def __init__(
        self,
        settings: Settings,
        *,
        load: Callable[[], Settings] | None = None,
        gpu_source: GpuSource,
        gpus_simulated: bool = False,
        log_limit: RateLimit | None = None,
    ) -> None:
        self.settings = settings
        self.watches: dict[str, TargetWatch] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.gpus = GpuWatch(gpu_source, settings.gpu, simulated=gpus_simulated)
        self._load = load or (lambda: settings)
        self._log_limit = log_limit
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(PARALLEL_READS)
        self._renderer = Renderer()
        self._found: dict[str, list[TargetSettings]] = {"file": [], "dns": []}
        self._pusher: otlp.Pusher | None = None
        self._reload_good = True
        self._reloaded_at = time.time()
        self._reloading = asyncio.Lock()
        self._log = log.get()

    # What readers ask for

    def not_ready(self) -> str | None:
        """Return why the daemon is not ready, or None: ready is a finished cycle younger than three intervals.

        A cycle that found the target down is finished too: as a sidecar llmobs must not wait for the engine it
        watches, nor take it out of service.
        """
        now = time.monotonic()
        if not self.watches:
            return None  # nothing to watch yet, and discovery may stay empty for long
        for watch in self.watches.values():
            if watch.finished_at is not None and now - watch.finished_at <= 3 * watch.interval + 1:
                return None
        return "no target has a finished cycle younger than three intervals"

    def own_page(self) -> Page:
        """Return llmobs' metrics about itself."""
        return self._renderer.render([*own.build(), *self._own(), *own.process()])

    def probe_page(self, watch: TargetWatch) -> Page:
        """Return what /probe adds to a target's page."""
        samples = [("llmobs_probe_success", (), float(bool(watch.cycles.success)))]
        if watch.finished_at is not None:
            samples.append(("llmobs_probe_age_seconds", (), time.monotonic() - watch.finished_at))
        return self._renderer.render(samples)

    def _own(self) -> Iterable[own.OwnSample]:
        derive = self.settings.derive
        yield "llmobs_window_seconds", (), derive.window_seconds
        yield "llmobs_peak_interval_seconds", (), derive.peak_seconds
        yield "llmobs_config_last_reload_successful", (), float(self._reload_good)
        yield "llmobs_config_last_reload_success_timestamp_seconds", (), self._reloaded_at
        if self._pusher is not None:
            for result, pushes in self._pusher.pushes.items():
                yield "llmobs_otlp_pushes_total", (result,), float(pushes)
        if self._log_limit is not None:
            yield "llmobs_log_messages_suppressed_total", (), float(self._log_limit.suppressed)
        for (handler, code), count in sorted(self.requests.items()):
            yield "llmobs_http_requests_total", (handler, code), float(count)
        for how in ("static", "file", "dns"):
            yield "llmobs_targets", (how,), float(sum(w.found_by == how for w in self.watches.values()))
        for name, watch in self.watches.items():
            yield from own.collector("engine", name, watch.interval, watch.cycles)
            yield "llmobs_dropped_label_sets_total", (name,), float(watch.cycles.dropped_label_sets)
        yield from own.collector("gpu", "", self.gpus.settings.interval_seconds, self.gpus.cycles)

    def _otlp_groups(self) -> list[Group]:
        """Return what is pushed by OTLP: the last finished samples of targets and GPUs, and those about llmobs."""
        groups: list[Group] = [(tuple(w.samples), w.target.labels) for w in self.watches.values()]
        return [*groups, (self.gpus.samples, {}), ((*own.build(), *self._own(), *own.process()), {})]

    # Running

    async def run(self, *, ready: Callable[[list[str]], None] | None = None) -> None:
        """Run until SIGTERM or SIGINT. `ready` is called with the addresses once the server listens.

        Raises LlmobsError when an address cannot be bound, ConfigError when the web configuration cannot be used.
        """
        config = read_web_config(Path(self.settings.web.config_file)) if self.settings.web.config_file else WebConfig()
        sockets = [listen.bind(address) for address in self.settings.web.listen]
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn("reload", self._reload_quietly()))
        app = web.application(self, config, max_requests=self.settings.web.max_requests)
        runner = await web.start(app, sockets, config)
        self._sync()
        self._spawn("discovery", self._discover())
        self._spawn("gpu", self.gpus.run())
        if self.settings.otlp.enabled:
            self._pusher = otlp.Pusher()
            self._spawn("otlp", self._pusher.run(self._otlp_groups, self.settings.otlp.interval_seconds))
        addresses = [listen.url(sock, tls=config.tls is not None) for sock in sockets]
        self._log.info("listening", addresses=addresses, targets=len(self.watches), once=True)
        if ready is not None:
            ready(addresses)
        await stop.wait()
        self._log.info("stopping", once=True)
        await self._stop(runner)

    async def _stop(self, runner: AppRunner) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        try:
            ending = asyncio.gather(*tasks, runner.cleanup(), self.gpus.close(), return_exceptions=True)
            await asyncio.wait_for(ending, 1.5)
        except (TimeoutError, asyncio.TimeoutError):
            self._log.warning("stopped_without_waiting", once=True)

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_failed", task=name, error=type(error).__name__, detail=str(error), once=True)

    # Targets and configuration

    async def reload(self) -> str | None:
        """Load the configuration again; return why it cannot be used, in which case nothing changes."""
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> str | None:
        try:
            settings = await asyncio.to_thread(self._load)
            found = await asyncio.to_thread(discovery.read_files, settings.discovery)
        except LlmobsError as error:
            self._reload_good = False
            self._log.error("reload_failed", detail=str(error), once=True)
            return str(error)
        for part in ("web", "log", "otlp"):
            if getattr(settings, part) != getattr(self.settings, part):
                self._log.warning("reload_needs_restart", settings=part, once=True)
        self.settings = settings
        self._found["file"] = found
        self.gpus.settings = settings.gpu
        self._sync()
        self._reload_good = True
        self._reloaded_at = time.time()
        self._log.info("reloaded", targets=len(self.watches), once=True)
        return None

    async def _reload_quietly(self) -> None:
        await self.reload()

    def _sync(self) -> None:
        """Make the watches fit the targets: start new ones, end those that are gone, leave the others alone."""
        wanted = {t.name: (how, t) for how, t in discovery.merge(self.settings.targets, self._found)}
        changed: dict[str, TargetWatch] = {}
        for name, watch in list(self.watches.items()):
            if name not in wanted or wanted[name][1] != watch.target:
                del self.watches[name]
                if name in wanted and wanted[name][1].url == watch.target.url:
                    changed[name] = watch
                if (task := self._tasks.pop(f"target {name}", None)) is not None:
                    task.cancel()
            else:
                watch.update(self.settings.derive)
                watch.found_by = wanted[name][0]
        for name, (how, target) in wanted.items():
            if name not in self.watches:
                watch = TargetWatch(
                    target, self.settings.derive, found_by=how, gpus=self.gpus.current, before=changed.get(name)
                )
                self.watches[name] = watch
                self._spawn(f"target {name}", watch.run(self._slots))
        self.watches = {name: self.watches[name] for name in wanted}
        self.gpus.follow([watch.target for watch in self.watches.values()])

    async def _discover(self) -> None:
        """Look for targets again and again; a source that fails keeps what it last gave."""
        while True:
            settings = self.settings.discovery
            before = {how: list(found) for how, found in self._found.items()}
            if settings.files:
                try:
                    self._found["file"] = await asyncio.to_thread(discovery.read_files, settings)
                except ConfigError as error:
                    self._log.warning("discovery_failed", target="file", detail=str(error))
            if settings.dns:
                found: list[TargetSettings] = []
                try:
                    for dns in settings.dns:
                        found.extend(await discovery.look_up(dns))
                    self._found["dns"] = found
                except ConfigError as error:
                    self._log.warning("discovery_failed", target="dns", detail=str(error))
            if self._found != before:
                self._sync()
            await asyncio.sleep(settings.refresh_seconds)
