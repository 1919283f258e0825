"""What the benchmarks of the real engine share: a client that costs little, and a receiver of spans."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
from aiohttp import web

CONCURRENCY = 32
TOKENS = 64
_POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
_GET = b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def _receive(port: Connection, over_grpc: bool) -> None:
    """Serve OTLP, over gRPC or HTTP: read each export, forget it, and answer."""
    if over_grpc:
        server = grpc.server(ThreadPoolExecutor(1))
        answer = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")  # bytes in, bytes out
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": answer}),))
        port.send(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        server.wait_for_termination()

    async def serve() -> None:
        async def take(request: web.Request) -> web.Response:
            await request.read()
            return web.Response()

        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/traces", take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


@contextlib.contextmanager
def receiver(over_grpc: bool) -> Iterator[str]:
    """Yield the URL of a receiver of spans in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs, over_grpc), daemon=True)
    process.start()
    theirs.close()  # so that a receiver that does not start ends the wait below
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


def _cpu(pid: int) -> int:
    """Return the CPU time of all threads of a process in ns; /proc/PID/stat counts in steps of 10 ms."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total


class _Client(asyncio.Protocol):
    """One kept connection that asks `ask(n)` for the numbers left, one after the other; `answered` hears of each.

    Written on the bare protocol: engine, API server and client share the cores, and an HTTP library's client would take
    a good part of what is measured.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        ask: Callable[[int], bytes],
        answered: Callable[[], None],
        done: asyncio.Future[None],
    ) -> None:
        self._numbers, self._ask, self._answered, self._done = numbers, ask, answered, done
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            self._transport.close()
            self._done.set_result(None)
        else:
            self._transport.write(self._ask(number))

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, _, body = self._seen.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n"):
            assert head.startswith(b"HTTP/1.1 200"), self._seen
            self._seen = b""
            self._answered()
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))


async def _connect(
    port: int, numbers: Iterator[int], ask: Callable[[int], bytes], answered: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    try:
        await loop.create_connection(lambda: _Client(numbers, ask, answered, done), "127.0.0.1", port)
        await done
    finally:
        done.cancel()  # a reader that is cancelled while it connects asks no more


def measure(port: int, pid: int, requests: int, *, stream: bool, poll: bool) -> tuple[float, float]:
    """Return tokens per second, and milliseconds of the API server's CPU a request, over that many requests.

    One batch goes before them, so that what follows from the end of a request falls into the time of the next ones, as
    in a server under load. With `poll`, `/stats` is read every second, beginning at once.
    """
    return asyncio.run(_measure(port, pid, requests, stream, poll))


async def _measure(port: int, pid: int, requests: int, stream: bool, poll: bool) -> tuple[float, float]:
    numbers = iter(range(CONCURRENCY + requests))
    answers = 0
    marks: list[tuple[float, int]] = []
    polling: list[asyncio.Task[None]] = []

    def ask(number: int) -> bytes:
        body = json.dumps(
            {"model": "tiny", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": stream,
             "prompt": f"{number} hello"}
        ).encode()  # fmt: skip
        return _POST % (len(body), body)

    def answered() -> None:
        nonlocal answers
        answers += 1
        if answers in (CONCURRENCY, CONCURRENCY + requests):
            marks.append((time.perf_counter(), _cpu(pid)))
            if poll and answers == CONCURRENCY:
                polling.append(asyncio.create_task(_poll(port)))

    await asyncio.gather(*(_connect(port, numbers, ask, answered) for _ in range(CONCURRENCY)))
    for task in polling:
        task.cancel()
    (began, before), (ended, after) = marks
    return requests * TOKENS / (ended - began), (after - before) / requests / 1e6


async def _poll(port: int) -> None:
    while True:
        await _connect(port, iter((0,)), lambda _: _GET, lambda: None)
        await asyncio.sleep(1.0)


def spread(values: Sequence[float]) -> str:
    """Return median, its standard error, and quartiles, as text."""
    low, middle, high = statistics.quantiles(values, n=4)
    # Standard error of a median, from the quartiles of about normal values.
    error = 1.25 * (high - low) / 1.35 / len(values) ** 0.5
    return f"{middle:.3f} ± {error:.3f} ({low:.3f} to {high:.3f}; mean {statistics.fmean(values):.3f})"
