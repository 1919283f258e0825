"""What the benchmarks share: figures of a process from /proc, and servers in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "tests" / "engine" / "pages" / "vllm-0.32-single.txt"
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


@contextlib.contextmanager
def served(serve: Callable[[Any], Any], *arguments: Any) -> Iterator[Any]:
    """Run the coroutine function ``serve(ready, *arguments)`` in a process; yield what it passes to `ready`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(serve, theirs, arguments), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join(5)


def _serve(serve: Any, pipe: Any, arguments: tuple[Any, ...]) -> None:
    asyncio.run(serve(pipe.send, *arguments))


async def page_server(ready: Callable[[int], None], page: bytes) -> None:
    """Serve `page` as a vLLM's /metrics, its counters as they are, for ever."""
    from aiohttp import web

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=page, content_type="text/plain", charset="utf-8")

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", health)
    app.router.add_get("/version", version)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready(site._server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()
