"""The endpoint plugin (`vllm.endpoint_plugins`, vLLM 0.26+): the official way to `GET /stats`.

vLLM loads it only when `VLLM_PLUGINS` names it. Where our middleware is in place, that has answered already.
"""

from __future__ import annotations

from typing import Any

from llmobs.instrument.settings import is_disabled


class EndpointPlugin:
    """Adds the route `/stats`."""

    name = "llmobs"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        """Add the route; called before the server's state exists."""
        if is_disabled():
            return
        from starlette.requests import Request
        from starlette.responses import Response

        from llmobs.instrument import runtime as runtimes
        from llmobs.instrument.stats_page import authorized, render, render_shared

        async def stats(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            runtime = runtimes.get()
            if runtime is None:
                return Response(b'{"error":"not ready"}', 503, media_type="application/json")
            if not authorized(request.scope):
                return Response(b'{"error":"Unauthorized"}', 401, media_type="application/json")
            several = runtime.client_count > 1
            body = await run_in_threadpool(render_shared, runtime) if several else render(runtime)
            return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

        app.add_route("/stats", stats, methods=["GET"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to do: the runtime is made by the stat logger, in the same process."""
