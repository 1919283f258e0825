"""A daemon for the browser: serves the real page below a prefix, and canned states the test changes at will."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

from llmobs.exporter.page import CONTENT_SECURITY_POLICY, files

PREFIX = "/team/llmobs/"


class CannedDaemon:
    """Serves `make(now)` on a port of its own; `fault` makes it misbehave: down, hang, garbage, or an HTTP status."""

    def __init__(self) -> None:
        self.make: Callable[[float], dict[str, Any]] = lambda now: {}
        self.fault: str | int | None = None
        self.asked: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PREFIX}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get(PREFIX + "api/v1/state", self._state)
        app.router.add_get(PREFIX + "{path:.*}", self._file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _file(self, request: web.Request) -> web.Response:
        file = files().get(request.match_info["path"])
        if file is None:
            return web.Response(status=404)
        return web.Response(
            body=file.body,
            headers={
                "Content-Type": file.content_type,
                "ETag": file.etag,
                "Content-Security-Policy": CONTENT_SECURITY_POLICY,
                "X-Content-Type-Options": "nosniff",
            },
        )

    async def _state(self, request: web.Request) -> web.Response:
        from page_states import now

        self.asked.append(request.query_string)
        if self.fault == "down":
            assert request.transport is not None
            request.transport.abort()
        elif self.fault == "hang":
            await asyncio.sleep(30)
        elif self.fault == "garbage":
            return web.Response(text="<html>proxy</html>", content_type="text/html")
        elif self.fault:
            return web.Response(status=int(self.fault))
        answer = self.make(now())
        if "history" in request.query:
            for target in answer["targets"]:
                if target["name"] not in request.query.getall("history"):
                    for engine in target["engines"]:
                        del engine["history"]
        return web.json_response(answer)
