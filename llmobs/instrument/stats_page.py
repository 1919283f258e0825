"""`GET /stats`: the `llmobs.stats/v1` document, answered from memory. docs/stats.md describes it field by field."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from llmobs import stats
from llmobs.instrument import jsontext, share
from llmobs.instrument import runtime as runtimes
from llmobs.instrument.guard import guard
from llmobs.instrument.runtime import Runtime

_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_BROKEN = b'{"error":"llmobs could not make this page; vLLM is not affected"}'
_JSON = (b"content-type", b"application/json")


async def answer(scope: MutableMapping[str, Any], receive: Any, send: _Send, fallback: Any) -> None:
    """Answer one request; vLLM's own handler (a 404) gets it where there is nothing to answer with."""
    runtime = runtimes.get()
    hook = guard("stats_page")
    if runtime is None or not hook.active:
        await fallback(scope, receive, send)
        return
    allowed = hook.run(authorized, scope)
    if allowed is None:
        await _respond(send, scope, 500, _BROKEN, ())
        return
    if not allowed:
        body = b'{"error":"Unauthorized"}'
        await _respond(send, scope, 401, body, ((b"www-authenticate", b"Bearer"),))
        return
    if runtime.client_count > 1:
        # Reads the files of the other processes, which must not happen on the event loop.
        body = await asyncio.get_running_loop().run_in_executor(None, hook.run, render_shared, runtime)
    else:
        body = hook.run(render, runtime)
    if body is None:
        await _respond(send, scope, 500, _BROKEN, ())
        return
    await _respond(send, scope, 200, body, ((b"cache-control", b"no-store"),))


def render(runtime: Runtime) -> bytes:
    """Return the document of this process, at one instant."""
    runtime.count()
    return jsontext.encode(stats.encode(share.own(runtime)))


def render_shared(runtime: Runtime) -> bytes:
    """Return the document of all API server processes together."""
    return jsontext.encode(stats.encode(share.together(runtime)))


def authorized(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the request may see the page: always without an API key, else with one of vLLM's own keys.

    vLLM guards only its own path prefixes; the keys are `--api-key`, or `VLLM_API_KEY` without that flag.
    """
    arguments = getattr(getattr(scope.get("app"), "state", None), "args", None)
    keys = getattr(arguments, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    keys = [keys] if isinstance(keys, str) else [key for key in keys if key]
    if not keys:
        return True
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, token = given.partition(b" ")
    if kind.lower() != b"bearer":
        return False
    digest = hashlib.sha256(token).digest()
    allowed = False
    for key in keys:
        allowed |= secrets.compare_digest(digest, hashlib.sha256(key.encode()).digest())
    return allowed


async def _respond(
    send: _Send, scope: MutableMapping[str, Any], status: int, body: bytes, extra: tuple[tuple[bytes, bytes], ...]
) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
