"""The ASGI middleware: it follows every request from arrival to the last byte, and answers `GET /stats`.

Use: ``--middleware llmobs.instrument.middleware.Middleware``; `llmobs instrument` and the plugin do it for you. It is
pure ASGI (Starlette's BaseHTTPMiddleware breaks back-pressure and cancellation), outermost, and never changes a body.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from llmobs.instrument import ids
from llmobs.instrument import record as records
from llmobs.instrument import runtime as runtimes
from llmobs.instrument.endpoints import OPERATIONS
from llmobs.instrument.guard import guard
from llmobs.instrument.outcome import error_frame
from llmobs.instrument.record import RequestRecord, parse_traceparent
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.settings import is_disabled
from llmobs.instrument.stats_page import answer

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Put into the scope, so that a second middleware of ours in the same application does nothing.
SEEN = "llmobs.request"

#: Bytes of an error response that are kept to read its message.
_ERROR_BYTES = 8192
_MAX_ID = 128


class Middleware:
    """Follows the requests of the endpoints in `endpoints.OPERATIONS`."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._hook = guard("http")
        self._disabled = is_disabled()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one connection; anything that is not ours goes straight to the application.

        No coroutine of its own, so that the event loop has one less to go through each time the request wakes up.
        """
        if scope["type"] != "http" or self._disabled:
            return self.app(scope, receive, send)
        path = scope["path"]
        if root := scope.get("root_path"):
            path = path.removeprefix(root)
        if path not in OPERATIONS:
            if path == "/stats" and scope["method"] in ("GET", "HEAD") and SEEN not in scope:
                return answer(scope, receive, send, self.app)
            return self.app(scope, receive, send)
        runtime = runtimes.get()
        if runtime is None or scope["method"] != "POST" or SEEN in scope:
            return self.app(scope, receive, send)
        begun = self._hook.run(_begin, runtime, scope, path)
        if begun is None:
            return self.app(scope, receive, send)
        record, inner = begun
        return self._follow(runtime, record, inner, receive, send)

    async def _follow(
        self, runtime: Runtime, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        run = self._hook.run

        async def receiving() -> Message:
            message = await receive()
            run(_received, record, message)
            return message

        async def sending(message: Message) -> None:
            run(_sending, record, message)
            await send(message)
            if record.ended_at is not None and record.disconnected_at is None:
                record.response_complete = True

        token = records.current.set(record)
        raised: BaseException | None = None
        try:
            await self.app(scope, receiving, sending)
        except BaseException as error:
            raised = error
            raise
        finally:
            records.current.reset(token)
            run(runtime.end, record, raised)


def _begin(runtime: Runtime, scope: Scope, path: str) -> tuple[RequestRecord, Scope]:
    headers = list(scope["headers"])
    given = dict(headers)
    if request_id := given.get(b"x-request-id"):
        identity = request_id[:_MAX_ID].decode("latin-1")
    else:
        # vLLM, which would make up an id of its own, sees ours: header, engine, logs, and trace agree.
        identity = ids.hexadecimal(32)
        headers.append((b"x-request-id", identity.encode()))
    record = RequestRecord(identity, path)
    record.scheme = scope.get("scheme")
    client: Any = given.get(runtime.settings.client_header)
    if client is None and (peer := scope.get("client")):
        client = peer[0]
    if client is not None:
        record.client = hash(client)
    if traceparent := given.get(b"traceparent"):
        record.trace = parse_traceparent(traceparent)
    runtime.begin(record, headers)
    return record, {**scope, "headers": headers, SEEN: record}


def _received(record: RequestRecord, message: Message) -> None:
    kind = message["type"]
    if kind == "http.request":
        if record.body_at is None:
            record.body_head = message.get("body", b"")
        if not message.get("more_body", False):
            record.body_at = time.monotonic()
    elif kind == "http.disconnect" and not record.response_complete and record.disconnected_at is None:
        record.disconnected_at = time.monotonic()


def _sending(record: RequestRecord, message: Message) -> None:
    if message["type"] == "http.response.start":
        if record.disconnected_at is not None:
            return  # what a server says to a client that has left is not an answer
        record.status = message["status"]
        record.response_started_at = time.monotonic()
        headers = list(message.get("headers", ()))
        names = dict(headers)  # in lower case, as ASGI has them
        record.stream = names.get(b"content-type", b"").startswith(b"text/event-stream")
        if b"x-request-id" not in names:
            headers.append((b"x-request-id", record.request_id.encode("latin-1")))
        if record.trace is not None:
            headers.append((b"x-trace-id", record.trace.trace_id.encode()))
            if record.trace.span_id is not None:
                flags = b"01" if record.trace.sampled else b"00"
                parent = f"00-{record.trace.trace_id}-{record.trace.span_id}-".encode() + flags
                headers.append((b"traceresponse", parent))
        message["headers"] = headers
    elif message["type"] == "http.response.body":
        now = time.monotonic()
        if not message.get("more_body", False):
            record.ended_at = now  # before it is sent: the client may have it before we are running again
        body = message.get("body", b"")
        if not body:
            return
        record.last_byte_at = now
        if record.first_byte_at is None:
            record.first_byte_at = now
        if record.stream:
            if not record.stream_error:
                record.stream_error = error_frame(body)
        elif record.status is not None and record.status >= 400 and len(record.error_body) < _ERROR_BYTES:
            record.error_body += bytes(body[:_ERROR_BYTES])


class Outermost:
    """Our middleware around an application's whole stack, if the application turns out to be vLLM's server.

    That is known only at the first request: the stack may be built before vLLM has filled the application's state.
    """

    def __init__(self, stack: App) -> None:
        self._stack = stack
        self._chosen: App | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass everything to the stack, through our middleware where that belongs."""
        chosen = self._chosen
        if chosen is None:
            chosen = self._stack
            if scope["type"] == "http":
                chosen = self._chosen = guard("http").run(self._choose, scope.get("app")) or self._stack
        return chosen(scope, receive, send)

    def _choose(self, app: Any) -> App:
        state = getattr(app, "state", None)
        return Middleware(self._stack) if hasattr(state, "engine_client") and hasattr(state, "args") else self._stack
