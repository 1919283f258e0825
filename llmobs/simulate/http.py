"""The HTTP server around a simulated vLLM: same endpoints, same answers, and a socket that really closes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from aiohttp import web

from llmobs import stats
from llmobs.errors import ConfigError
from llmobs.simulate import facts, render
from llmobs.simulate.dialects import Dialect, dialect
from llmobs.simulate.files import DEFAULT, load
from llmobs.simulate.gpus import SimulatedGpus
from llmobs.simulate.journaling import Diary
from llmobs.simulate.scenario import Scenario
from llmobs.simulate.server import SimulatedVllm

#: Longest pause between two looks at what the simulation has done meanwhile, in real seconds.
_TICK = 0.1


class SimulatedServer:
    """A simulated vLLM that answers on a port, for use as ``async with SimulatedServer("demo") as server``.

    `scenario` is one, or the name or file of one. `dialect_name` is as `--dialect`, default the scenario's version.
    `speed` is how many seconds of the simulation pass in a real one. With `state_dir`, an engine death leaves the
    journal entries that llmobs inside vLLM would write; with `log_file`, the lines that vLLM would log. Raises
    ConfigError when the scenario cannot be used, or the address is taken.
    """

    def __init__(
        self,
        scenario: Scenario | str = DEFAULT,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        dialect_name: str | None = None,
        serve_stats: bool = True,
        speed: float = 1.0,
        state_dir: Path | None = None,
        log_file: Path | None = None,
    ) -> None:
        if not speed > 0:
            raise ConfigError(f"speed: {speed} must be above 0")
        self.scenario = load(scenario) if isinstance(scenario, str) else scenario
        self.dialect: Dialect = dialect(dialect_name or self.scenario.version)
        self.host, self.port, self.speed = host, port, speed
        self._serve_stats = serve_stats
        self._began = time.monotonic()
        self._began_wall = time.time()
        diary = Diary(state_dir, log_file, self._wall) if state_dir or log_file else None
        self.vllm = SimulatedVllm(self.scenario, wall=self._wall, on_death=diary.died if diary else None)
        self.gpus = SimulatedGpus(self.vllm)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base URL, once the server was entered."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def pages(self) -> tuple[str, ...]:
        """Paths of the pages with facts."""
        return ("/metrics", "/stats") if self._serve_stats else ("/metrics",)

    async def __aenter__(self) -> SimulatedServer:
        self._began, self._began_wall = time.monotonic(), time.time()
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.get("/load", self._load),
            ]
        )
        if self.dialect.version >= (0, 7, 0):
            app.router.add_get("/ping", self._health)
            app.router.add_post("/ping", self._health)
        if self._serve_stats:
            app.router.add_get("/stats", self._stats)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            # Also when the scenario begins with loading: the port must be known from the start.
            await self._open()
            await self._sync()
        except BaseException:
            await self._runner.cleanup()
            raise
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._runner is not None:
            await self._runner.cleanup()

    # Time

    def _wall(self, at: float) -> float:
        return self._began_wall + at / self.speed

    def _advance(self) -> None:
        self.vllm.advance((time.monotonic() - self._began) * self.speed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._advance()
            await self._sync()

    async def _sync(self) -> None:
        """Open or close the socket as the life of the simulated process demands."""
        if self.vllm.listening and self._site is None:
            with contextlib.suppress(ConfigError):  # somebody took the port meanwhile: try again at the next tick
                await self._open()
        elif not self.vllm.listening and self._site is not None:
            site, self._site = self._site, None
            await site.stop()
            self._drop_connections()

    async def _open(self) -> None:
        assert self._runner is not None
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"{self.host}:{self.port}: cannot listen ({error.strerror or error}); choose another --port"
            ) from None
        self._site = site
        if self.port == 0:
            assert self._runner.addresses
            self.port = self._runner.addresses[0][1]

    def _drop_connections(self) -> None:
        """A process that is gone takes its kept-alive connections along."""
        assert self._runner is not None
        if self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                connection.force_close()
                if connection.transport is not None:
                    connection.transport.abort()

    # Answers

    async def _health(self, _: web.Request) -> web.Response:
        self._advance()
        return web.Response(status=200 if self.vllm.phase == "ready" else self.dialect.dead_status)

    async def _stats(self, _: web.Request) -> web.Response:
        self._advance()
        document = stats.encode(facts.snapshot(self.vllm, taken_at=time.monotonic()))
        document["version"] = self.dialect.text
        return web.json_response(document, dumps=_compact)

    async def _metrics(self, _: web.Request) -> web.Response:
        self._advance()
        snapshot = facts.snapshot(self.vllm, taken_at=time.monotonic())
        response = web.Response(body=render.page(self.vllm, snapshot, self.dialect).encode())
        # From 0.8.3 to 0.8.5 vLLM forgot to say what it sends.
        broken = (0, 8, 3) <= self.dialect.version < (0, 9, 0)
        response.headers["Content-Type"] = "application/json" if broken else "text/plain; version=0.0.4; charset=utf-8"
        return response

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.dialect.text})

    async def _models(self, _: web.Request) -> web.Response:
        created = int(self._wall(self.vllm.process.started_at))
        data = [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": model.name,
                "parent": None if name == model.name else model.name,
                "max_model_len": model.engine.max_model_len,
            }
            for model in self.scenario.models
            for name in (model.name, *model.traffic.adapters)
        ]
        return web.json_response({"object": "list", "data": data})

    async def _load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})  # as vLLM without --enable-server-load-tracking


_compact = functools.partial(json.dumps, separators=(",", ":"))


async def serve(make: Callable[[str, int], SimulatedServer], name: str, port: int, say: Callable[[str], None]) -> None:
    """Run the scenario `name`, and its canary where it has one, until SIGINT or SIGTERM.

    `make` builds the server of a scenario on a port; the canary gets the next port, or a free one when `port` is 0.
    `say` is given the lines a user should see.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        following: str | None = name
        while following is not None:
            server = await stack.enter_async_context(make(following, port))
            what, following, port = server.scenario, server.scenario.canary, port and port + 1
            say(f"simulated vLLM {server.dialect.text}, scenario {what.name}: {what.description}")
            say("  " + "  ".join(server.url + path for path in server.pages))
        await stop.wait()
