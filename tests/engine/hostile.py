"""Servers on loopback that misbehave, each in one way, and a healthy one beside them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]

GOOD_PAGE = (
    'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
    'vllm:generation_tokens_total{engine="0",model_name="m"} 30.0\n'
)


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """Return an HTTP answer that closes its connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(*parts: bytes) -> Handler:
    """Answer /metrics and all else with the same bytes, then close."""

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        if path in ("/stats", "/version", "/v1/models"):
            writer.write(answer(status="404 Not Found"))
        elif path == "/health":
            writer.write(answer())
        else:
            for part in parts:
                writer.write(part)
                await writer.drain()

    return handle


def page(text: str) -> Handler:
    return says(answer(text.encode(), Content_Type="text/plain"))


async def hang(*_: object) -> None:
    await asyncio.sleep(3600)


def then_hangs(start: bytes) -> Handler:
    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        del path
        writer.write(start)
        await writer.drain()
        await hang()

    return handle


async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    del path
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: text/plain\r\n\r\n")
    for _i in range(1000):
        writer.write(b"v")
        await writer.drain()
        await asyncio.sleep(1)


def endless(start: bytes, chunk: bytes) -> Handler:
    """Send a gibibyte after the start, as fast as the other side takes it."""

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/stats":
            writer.write(answer(status="404 Not Found"))
            return
        writer.write(start)
        for _i in range(2**30 // len(chunk)):
            writer.write(chunk)
            await writer.drain()

    return handle


def only_stats_hangs(text: str = GOOD_PAGE) -> Handler:
    good = page(text)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        await (hang() if path == "/stats" else good(reader, writer, path))

    return handle


def stats(document: object, raw: bytes | None = None) -> Handler:
    body = raw if raw is not None else json.dumps(document).encode()

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        writer.write(answer(body, Content_Type="application/json") if path == "/stats" else answer(status="404 No"))

    return handle


_BIG = b"\r\nContent-Type: text/plain\r\nContent-Length: 1073741824\r\n\r\n"
_OK = b"HTTP/1.1 200 OK"
_ZEROS = gzip.compress(b"# " + b"x" * 200_000_000 + b"\n", 9)

#: Name → (what the server does, the reason that must come of it).
FAULTS: dict[str, tuple[Handler, str]] = {
    "hangs_before_headers": (hang, "timeout"),
    "hangs_in_headers": (then_hangs(_OK + b"\r\nContent-Type: te"), "timeout"),
    "hangs_in_body": (then_hangs(_OK + b"\r\nContent-Length: 500\r\n\r\nvllm:"), "timeout"),
    "drips": (drip, "timeout"),
    "closes_at_once": (says(), "network"),
    "sends_a_gibibyte": (endless(_OK + _BIG, b"# " + b"x" * 65533 + b"\n"), "too_large"),
    "sends_a_gibibyte_without_length": (endless(_OK + b"\r\n\r\n", b"# " + b"x" * 65533 + b"\n"), "too_large"),
    "gzip_bomb": (says(answer(_ZEROS, Content_Encoding="gzip")), "too_large"),
    "gzip_that_goes_on": (
        endless(_OK + b"\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(GOOD_PAGE.encode()), b"x" * 65536), "parse",
    ),
    "broken_gzip": (says(answer(b"not gzip at all", Content_Encoding="gzip")), "parse"),
    "cut_gzip": (says(answer(gzip.compress(GOOD_PAGE.encode() * 50)[:-12], Content_Encoding="gzip")), "network"),
    "unknown_encoding": (says(answer(b"x", Content_Encoding="br")), "parse"),
    "truncated": (says(_OK + b"\r\nContent-Length: 9999\r\n\r\n" + GOOD_PAGE.encode()), "network"),
    "binary_instead_of_http": (says(bytes(range(256)) * 20), "parse"),
    "binary_body": (says(answer(bytes(range(256)) * 20)), "parse"),
    "html": (says(answer(b"<!DOCTYPE html><html><body>Login</body></html>", Content_Type="text/html")), "parse"),
    "empty_page": (says(answer(b"python_info 1\n")), "empty"),
    "status_500": (says(answer(b"oops", "500 Internal Server Error")), "http"),
    "status_401": (says(answer(b"no", "401 Unauthorized")), "auth"),
    "redirect_loop": (says(answer(b"", "302 Found", Location="/metrics")), "redirect"),
    "redirect_to_nonsense": (says(answer(b"", "302 Found", Location="http://[")), "redirect"),
    "redirect_elsewhere": (says(answer(b"", "302 Found", Location="http://127.0.0.2:9/metrics")), "redirect"),
    "too_many_headers": (endless(_OK + b"\r\n", b"X-A: " + b"y" * 8000 + b"\r\n"), "any"),
}  # fmt: skip


class Servers:
    """Servers in a thread of their own. `requests` keeps (name, head) of every request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, name: str, handler: Handler, tls: ssl.SSLContext | None = None) -> str:
        """Start one and return its URL."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gone = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError)
            with contextlib.suppress(*gone):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.requests.append((name, head))
                await handler(reader, writer, head.split(" ")[1])
            with contextlib.suppress(OSError):
                writer.close()

        made = asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        server = asyncio.run_coroutine_threadsafe(made, self._loop).result(10)
        return f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.05)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """A socket that never accepts and whose queue is full: connecting to it hangs."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
