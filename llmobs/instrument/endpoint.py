"""The endpoint plugin (`vllm.endpoint_plugins`, vLLM 0.26+): the official way to `GET /stats`.

vLLM loads it only when `VLLM_PLUGINS` names it. Where our middleware is in place, that has answered already.
"""

from __future__ import annotations

from typing import Any

from llmobs.instrument.settings import is_disabled
from llmobs.instrument.stats_page import answer


class EndpointPlugin:
    """Adds the route `/stats`."""

    name = "llmobs"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        """Add the route; called before the server's state exists."""
        if is_disabled():
            return
        app.add_route("/stats", _Stats(), methods=["GET"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to do: the runtime is made by the stat logger, in the same process."""


class _Stats:
    """The route as an ASGI application, which Starlette takes in place of a function."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as the middleware does."""
        await answer(scope, receive, send, _not_found)


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b'{"detail":"Not Found"}'})
