"""The daemon's web server. It only ever reads the last finished snapshots."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from llmobs.exporter import page as live_page
from llmobs.exporter.render import OPENMETRICS, TEXT, Page, exposition
from llmobs.exporter.state import state
from llmobs.exporter.webconfig import BasicAuth, WebConfig

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from llmobs.exporter.daemon import Daemon

COLLECTORS = ("engine", "gpu", "self")
_MAX_REQUEST_BYTES = 16 * 1024
_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_DAEMON: web.AppKey[Daemon] = web.AppKey("daemon")


def application(daemon: Daemon, config: WebConfig, *, max_requests: int) -> web.Application:
    """Return the application: pages, probes, metrics."""
    app = web.Application(
        client_max_size=_MAX_REQUEST_BYTES,
        middlewares=[_headers(config), _counted(daemon.requests), _bounded(max_requests), _authorised(config)],
    )
    app[_DAEMON] = daemon
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/probe", _probe)
    app.router.add_get("/api/v1/state", _state)
    app.router.add_get("/-/healthy", _healthy)
    app.router.add_get("/-/ready", _ready)
    app.router.add_post("/-/reload", _reload)
    app.router.add_put("/-/reload", _reload)
    for path, file in live_page.files().items():
        app.router.add_get(f"/{path}", _file(file))
    return app


def _headers(config: WebConfig) -> Middleware:
    @web.middleware
    async def headers(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update({**_SECURITY_HEADERS, **config.headers})
            raise
        response.headers.update({**_SECURITY_HEADERS, **config.headers})
        return response

    return headers


def _bounded(limit: int) -> Middleware:
    running = 0

    @web.middleware
    async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal running
        if running >= limit:
            return web.Response(status=503, text="Too many requests at once.\n", headers={"Retry-After": "1"})
        running += 1
        try:
            return await handler(request)
        finally:
            running -= 1

    return bounded


def _counted(requests: Counter[tuple[str, str]]) -> Middleware:
    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        # The route, never the path: a stranger's paths would become label values.
        name = resource.canonical if resource is not None else "other"
        try:
            response = await handler(request)
        except web.HTTPException as error:
            requests[name, str(error.status)] += 1
            raise
        requests[name, str(response.status)] += 1
        return response

    return counted


def _authorised(config: WebConfig) -> Middleware:
    auth = BasicAuth(config.users)

    @web.middleware
    async def authorised(request: web.Request, handler: Handler) -> web.StreamResponse:
        if await auth.allows(request.headers.get("Authorization")):
            return await handler(request)
        return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": 'Basic realm="llmobs"'})

    return authorised


async def _metrics(request: web.Request) -> web.StreamResponse:
    daemon = request.app[_DAEMON]
    collect, exclude = request.query.getall("collect[]", []), request.query.getall("exclude[]", [])
    if collect and exclude:
        raise web.HTTPBadRequest(text="collect[] and exclude[] exclude each other.\n")
    for name in (*collect, *exclude):
        if name not in COLLECTORS:
            raise web.HTTPBadRequest(text=f"No such collector; there are {', '.join(COLLECTORS)}.\n")
    wanted = [c for c in COLLECTORS if (c in collect if collect else c not in exclude)]
    pages: list[Page] = []
    if "engine" in wanted:
        pages.extend(w.page for w in daemon.watches.values())
    if "gpu" in wanted:
        pages.append(daemon.gpus.page)
    if "self" in wanted:
        pages.append(daemon.own_page())
    openmetrics = accepts_openmetrics(request.headers.get("Accept", ""))
    return _exposition(request, exposition(pages, openmetrics=openmetrics), openmetrics=openmetrics)


async def _probe(request: web.Request) -> web.StreamResponse:
    daemon = request.app[_DAEMON]
    name = request.query.get("target", "")
    # Only what is configured can be probed: a stranger must not choose where our credentials and requests go.
    watch = daemon.watches.get(name) or next((w for w in daemon.watches.values() if w.target.url == name), None)
    if watch is None:
        raise web.HTTPNotFound(text="No such target; /probe?target= takes the name or URL of a configured target.\n")
    openmetrics = accepts_openmetrics(request.headers.get("Accept", ""))
    pages = [watch.page, daemon.probe_page(watch)]
    return _exposition(request, exposition(pages, openmetrics=openmetrics), openmetrics=openmetrics)


def _exposition(request: web.Request, text: str, *, openmetrics: bool) -> web.Response:
    response = web.Response(body=text.encode(), headers={"Content-Type": OPENMETRICS if openmetrics else TEXT})
    _compress(request, response)
    return response


def _compress(request: web.Request, response: web.Response) -> None:
    if _qualities(request.headers.get("Accept-Encoding", "")).get("gzip", 0.0) > 0:
        response.enable_compression(web.ContentCoding.gzip)


def accepts_openmetrics(accept: str) -> bool:
    """Return whether OpenMetrics is preferred by an Accept header; anything else gets the text format."""
    best = _qualities(accept)
    wanted = best.get("application/openmetrics-text", 0.0)
    plain = next((best[kind] for kind in ("text/plain", "text/*", "*/*") if kind in best), 0.0)
    return wanted > 0 and wanted >= plain


def _qualities(header: str) -> dict[str, float]:
    """Return the values of a header such as Accept with their quality, the best where one comes twice."""
    best: dict[str, float] = {}
    for part in header.lower().split(","):
        kind, *parameters = (p.strip() for p in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if match := re.fullmatch(r"q=(\d(?:\.\d*)?)", parameter):
                quality = float(match[1])
        best[kind] = max(best.get(kind, 0.0), quality)
    return best


async def _state(request: web.Request) -> web.StreamResponse:
    daemon = request.app[_DAEMON]
    histories = set(request.query.getall("history")) if "history" in request.query else None
    document = state(
        daemon.watches.values(),
        daemon.gpus,
        window_seconds=daemon.settings.derive.window_seconds,
        histories=histories,
    )
    response = web.json_response(document, dumps=lambda d: json.dumps(d, allow_nan=False, separators=(",", ":")))
    response.headers["Cache-Control"] = "no-store"
    _compress(request, response)
    return response


async def _healthy(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text="OK\n")


async def _ready(request: web.Request) -> web.StreamResponse:
    problem = request.app[_DAEMON].not_ready()
    if problem:
        return web.Response(status=503, text=f"{problem}\n")
    return web.Response(text="Ready\n")


async def _reload(request: web.Request) -> web.StreamResponse:
    problem = await request.app[_DAEMON].reload()
    if problem:
        return web.Response(status=500, text=f"Not reloaded, the old configuration stays: {problem}\n")
    return web.Response(text="Reloaded\n")


def _file(file: live_page.File) -> Handler:
    headers = {
        "Content-Type": file.content_type,
        "ETag": file.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": live_page.CONTENT_SECURITY_POLICY,
    }

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers)

    return serve


async def start(app: web.Application, sockets: Sequence[socket.socket], config: WebConfig) -> web.AppRunner:
    """Start the server on bound sockets."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    for sock in sockets:
        await web.SockSite(runner, sock, ssl_context=config.tls).start()
    return runner
