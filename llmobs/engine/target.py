"""Reading one target: which source speaks, which version it is, and one `Reading` per cycle."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from llmobs.config import TargetSettings
from llmobs.engine.http import Answer, HttpClient, deadline
from llmobs.engine.page import PageReader
from llmobs.errors import TargetError
from llmobs.snapshot import EngineSnapshot, Reading
from llmobs.stats import decode

#: Default seconds between readings by source: /stats costs vLLM next to nothing, rendering /metrics occupies its
#: event loop for some 5–20 ms each time (docs/performance.md).
INTERVALS = {"stats": 1.0, "metrics": 5.0}

#: Pages above this size are parsed in a thread, so that a huge one does not hold up the other targets.
_THREAD_BYTES = 512 * 1024
#: Seconds after which a target that fell back to /metrics is asked for /stats again, and its version once more.
_RETRY_STATS = 60.0
_RETRY_VERSION = 300.0
_PAGE = "text/plain; version=0.0.4; q=1, application/openmetrics-text; q=0.5"
_SMALL = 64 * 1024


@dataclass(slots=True)
class _Memory:
    """What was learnt about the target, forgotten when it stops answering."""

    source: str | None = None
    stats_asked_at: float = float("-inf")
    asking_stats: bool = False
    start_time: float | None = None
    version: str | None = None
    version_asked_at: float = float("-inf")
    model: str | None = None


class TargetReader:
    """Reads one target, one cycle after another. `read` never raises for what the peer does."""

    def __init__(
        self,
        target: TargetSettings,
        *,
        resolver: aiohttp.abc.AbstractResolver | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.target = target
        self._http = HttpClient(target, resolver)
        self._page = PageReader()
        self._memory = _Memory()
        self._monotonic = monotonic
        self._wall = wall

    @property
    def interval(self) -> float:
        """Seconds between readings: as configured, else by the source that last answered."""
        if self.target.interval_seconds is not None:
            return self.target.interval_seconds
        return INTERVALS[self._memory.source or ("stats" if self.target.source == "stats" else "metrics")]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def read(self) -> Reading:
        """Return one reading: a snapshot, or the reason why there is none; and what /health said."""
        health = asyncio.ensure_future(self._health())
        try:
            # Every request has its own deadline; together they must not exceed it either.
            async with deadline(self.target.timeout_seconds):
                snapshot = await self._snapshot()
            error = None
        except TargetError as failure:
            snapshot, error = None, failure
            self._forget(failure.reason)
        except (TimeoutError, asyncio.TimeoutError):
            snapshot = None
            error = TargetError("timeout", f"no complete reading within {self.target.timeout_seconds:g} s")
            self._forget("timeout")
        except BaseException:
            health.cancel()
            raise
        return Reading(
            taken_at=self._monotonic(),
            wall_time=self._wall(),
            snapshot=snapshot,
            error_reason=error.reason if error else None,
            error_message=str(error) if error else "",
            health=await health,
        )

    def _forget(self, reason: str) -> None:
        """Forget what was learnt, but for one thing: a /stats that alone does harm must not hide a good /metrics."""
        memory = self._memory
        harmful = memory.asking_stats and memory.source != "stats" and reason not in ("refused", "dns", "tls")
        self._memory = _Memory(stats_asked_at=memory.stats_asked_at) if harmful else _Memory()
        # A thread may still be reading a huge page with the old one.
        self._page = PageReader()

    async def _snapshot(self) -> EngineSnapshot:
        memory = self._memory
        now = self._monotonic()
        wants = self.target.source
        ask_stats = memory.source == "stats" or now - memory.stats_asked_at >= _RETRY_STATS
        if wants == "stats" or (wants == "auto" and ask_stats):
            memory.stats_asked_at = now
            memory.asking_stats = True
            snapshot = await self._stats(required=wants == "stats")
            memory.asking_stats = False
            if snapshot is not None:
                memory.source = "stats"
                return snapshot
        snapshot = await self._metrics()
        memory.source = "metrics"
        return snapshot

    async def _stats(self, *, required: bool) -> EngineSnapshot | None:
        answer = await self._ask("/stats", accept="application/json")
        if answer.status != 200 or "json" not in answer.content_type:
            if not required:
                return None  # no plugin there, or it wants a key that /metrics does not
            if answer.status == 404:
                raise TargetError(
                    "http", "GET /stats is not there; run vLLM with llmobs' plugin or set source: metrics"
                )
            _check(answer, "/stats")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise TargetError("parse", "GET /stats did not answer with JSON") from None
        try:
            return decode(document, taken_at=self._monotonic(), wall_time=self._wall())
        except TargetError:
            if required:
                raise
            return None  # somebody else's /stats

    async def _metrics(self) -> EngineSnapshot:
        version = await self._version()
        answer = await self._ask("/metrics", accept=_PAGE)
        _check(answer, "/metrics")
        page = answer.body.decode("utf-8", errors="replace")
        reader = self._page

        def parse() -> EngineSnapshot:
            return reader.read(page, taken_at=self._monotonic(), wall_time=self._wall(), version=version)

        snapshot = await asyncio.to_thread(parse) if len(page) > _THREAD_BYTES else parse()
        memory = self._memory
        if memory.start_time is not None and snapshot.start_time != memory.start_time:
            memory.version_asked_at = float("-inf")  # another process: it may be another version
            memory.version = None
            snapshot = dataclasses.replace(snapshot, version=await self._version())
        memory.start_time = snapshot.start_time
        return await self._with_model(snapshot)

    async def _version(self) -> str | None:
        memory = self._memory
        now = self._monotonic()
        # A server that does not know /version is asked again rarely.
        if memory.version is None and now - memory.version_asked_at >= _RETRY_VERSION:
            memory.version_asked_at = now
            memory.version = await self._quietly("/version", _version)
        return memory.version

    async def _with_model(self, snapshot: EngineSnapshot) -> EngineSnapshot:
        """Fill a missing model label in from /v1/models, when exactly one model is served."""
        if all(e.model_name for e in snapshot.engines):
            return snapshot
        if self._memory.model is None:
            self._memory.model = await self._quietly("/v1/models", _model) or ""
        engines = tuple(
            e if e.model_name else dataclasses.replace(e, model_name=self._memory.model) for e in snapshot.engines
        )
        return dataclasses.replace(snapshot, engines=engines)

    async def _quietly(self, path: str, extract: Callable[[object], str | None]) -> str | None:
        try:
            answer = await self._ask(path, accept="application/json", max_bytes=_SMALL * 16)
            return extract(json.loads(answer.body)) if answer.status == 200 else None
        except (TargetError, ValueError, RecursionError):
            return None

    async def _health(self) -> int | None:
        try:
            answer = await self._http.get("/health", timeout=self.target.health_timeout_seconds, max_bytes=_SMALL)
        except TargetError:
            return None
        return answer.status

    def _ask(self, path: str, **options: object) -> Awaitable[Answer]:
        return self._http.get(path, timeout=self.target.timeout_seconds, **options)  # type: ignore[arg-type]


def _check(answer: Answer, path: str) -> None:
    if answer.status in (401, 403):
        raise TargetError("auth", f"GET {path} answered {answer.status}; set api_key_file or api_key_env")
    if answer.status != 200:
        raise TargetError("http", f"GET {path} answered {answer.status}")


def _version(document: object) -> str | None:
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,64}", version) else None


def _model(document: object) -> str | None:
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], dict):
        return None
    name = models[0].get("id")
    return name[:256] if isinstance(name, str) else None
