"""The real web server around a daemon with known targets, and a client of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from llmobs.config import Settings, TargetSettings, WebSettings, complete
from llmobs.exporter import listen, web, webconfig
from llmobs.exporter.daemon import Daemon
from llmobs.exporter.watch import TargetWatch
from llmobs.gpu import GpuReader
from llmobs.snapshot import Exemplar
from tests.derive.conftest import engine, histogram, reading, run

Client = Callable[..., Awaitable[tuple[int, "aiohttp.typedefs.CIMultiDictProxy[str]", bytes]]]
NASTY = 'quote" backslash\\ newline\n {brace} # hash é'
EXEMPLAR = Exemplar("0123456789abcdef0123456789abcdef", 0.5, 1.7e9)


def daemon(max_requests: int = 40) -> Daemon:
    """A daemon with one target that was read twice, and one that never was."""
    ttft = histogram(4, 8, 9, total=12.5)
    ttft = type(ttft)(ttft.bounds, ttft.counts, ttft.sum, (EXEMPLAR, None, EXEMPLAR))
    said = [
        reading(at, engine(model_name=NASTY, running=1.0, generation_tokens=10.0 * at, time_to_first_token=ttft))
        for at in (1.0, 2.0)
    ]
    settings = Settings(web=WebSettings(max_requests=max_requests))
    made = Daemon(settings, gpu_source=GpuReader(enabled=False))
    for name, labels in (("a", {"canary": "yes", "version": NASTY}), ("b", {})):
        target = complete(TargetSettings(url=f"http://127.0.0.1:1/{name}", name=name, labels=labels), "targets[0]")
        made.watches[name] = TargetWatch(target, settings.derive)
    made.watches["a"].state = run(*said)
    made.watches["a"]._publish(None)
    return made


def with_server(
    test: Callable[[Client], Awaitable[Any]], made: Daemon | None = None, config: webconfig.WebConfig | None = None,
    tls: ssl.SSLContext | None = None,
) -> Any:  # fmt: skip
    """Run `test` with a client of a started server."""

    async def go() -> Any:
        served = made or daemon()
        conf = config or webconfig.WebConfig()
        sock = listen.bind("127.0.0.1:0")
        app = web.application(served, conf, max_requests=served.settings.web.max_requests)
        runner = await web.start(app, [sock], conf)
        base = listen.url(sock, tls=conf.tls is not None).rstrip("/")
        try:
            async with aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"}) as session:

                async def get(path: str, method: str = "GET", **options: Any) -> Any:
                    async with session.request(method, base + path, ssl=tls or True, **options) as response:
                        return response.status, response.headers, await response.read()

                return await test(get)
        finally:
            await runner.cleanup()

    return asyncio.run(go())


def fetch(path: str, made: Daemon | None = None, **options: Any) -> tuple[int, Any, bytes]:
    async def test(get: Client) -> Any:
        return await get(path, **options)

    found: tuple[int, Any, bytes] = with_server(test, made)
    return found
