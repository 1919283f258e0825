"""Tokens per second of the real vLLM: plain, with llmobs inside, and with vLLM's own tracing, side by side.

Four servers are up all the time; only one has load at a time, and the order changes from round to round:

    off        vLLM alone
    observed   with llmobs: logs, `/stats` read every second, one request in ten traced
    traced     the same with every request traced
    vllm       vLLM alone with its own `--otlp-traces-endpoint`

Spans go to a receiver in a process of its own that reads and forgets them. The tiny model's steps take a few
milliseconds, several times less than production's, so this is the hard case. Each figure is a server's tokens per
second divided by those of `off` in the same round; the CPU time of the API server process, where our code runs, is
shown beside, because neighbours disturb it less than the clock. Two servers that are the same differ by up to 5 % for
as long as they live (where their memory happens to lie), so all four are started anew several times. Run it alone on
the machine; LAUNCHES=12, ROUNDS=10, REQUESTS=96, STREAM=1, PROTOCOL=http/protobuf in the environment change it:

    python -m benchmarks instrument_pairs
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
from aiohttp import web

from tests.instrument.conftest import Instrumented
from tests.real.server import VllmServer

CONCURRENCY = 32
TOKENS = 64
ARMS = ("off", "observed", "traced", "vllm")
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
def _receiver(over_grpc: bool) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs, over_grpc), daemon=True)
    process.start()
    theirs.close()  # so that a receiver that does not start ends the wait below
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Client(asyncio.Protocol):
    """One kept connection that asks `ask(n)` for the numbers left, one after the other.

    Written on the bare protocol: engine, API server and client share the cores, and an HTTP library's client would take
    a good part of what is measured.
    """

    def __init__(self, numbers: Iterator[int], ask: Callable[[int], bytes], done: asyncio.Future[None]) -> None:
        self._numbers, self._ask, self._done = numbers, ask, done
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
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))


async def _connect(port: int, numbers: Iterator[int], ask: Callable[[int], bytes]) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    await loop.create_connection(lambda: _Client(numbers, ask, done), "127.0.0.1", port)
    await done


async def _round(port: int, requests: int, stream: bool, poll: bool) -> float:
    """Return tokens per second of one round."""
    numbers = iter(range(requests))

    def ask(number: int) -> bytes:
        body = json.dumps(
            {"model": "tiny", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": stream,
             "prompt": f"{number} hello"}
        ).encode()  # fmt: skip
        return _POST % (len(body), body)

    async def polling() -> None:
        while True:
            await _connect(port, iter((0,)), lambda _: _GET)
            await asyncio.sleep(1.0)

    poller = asyncio.create_task(polling()) if poll else None
    started = time.perf_counter()
    await asyncio.gather(*(_connect(port, numbers, ask) for _ in range(CONCURRENCY)))
    seconds = time.perf_counter() - started
    if poller is not None:
        poller.cancel()
    return requests * TOKENS / seconds


class _Figures:
    """What was measured so far, over all launches."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.costs: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.against: list[float] = []

    def show(self) -> None:
        """Print the medians of the ratios with their quartiles."""
        for arm in ARMS:
            cost = statistics.median(self.costs[arm])
            print(f"{arm:9} {_spread(self.ratios[arm])} of off; API server CPU {cost:.2f} ms a request")
        print(f"traced is {_spread(self.against)} of vllm", flush=True)


def main() -> None:
    """Run the launches; print each round, and the figures so far after each launch."""
    figures = _Figures()
    for _ in range(int(os.environ.get("LAUNCHES", "12"))):
        _launch(figures)
        figures.show()


def _launch(figures: _Figures) -> None:
    rounds, requests = int(os.environ.get("ROUNDS", "10")), int(os.environ.get("REQUESTS", "96"))
    stream = os.environ.get("STREAM") == "1"
    protocol = os.environ.get("PROTOCOL", "grpc")
    over_grpc = protocol == "grpc"
    with tempfile.TemporaryDirectory() as name, _receiver(over_grpc) as collector:
        folder = Path(name)
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        with contextlib.ExitStack() as stack:
            own = ("--otlp-traces-endpoint", collector if over_grpc else f"{collector}/v1/traces")
            environment = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}
            observed = Instrumented(folder / "observed", launcher=(), OTEL_TRACES_SAMPLER_ARG="0.1", **otlp)
            traced = Instrumented(folder / "traced", launcher=(), **otlp)
            servers = {
                "off": VllmServer(folder / "off.log"),
                "observed": observed.server,
                "traced": traced.server,
                "vllm": VllmServer(folder / "vllm.log", *own, environment=environment),
            }
            for server in servers.values():  # they start at the same time, so that none has the machine's best memory
                stack.callback(server.stop)
            for server in servers.values():
                server.wait_ready()
            _measure(figures, servers, rounds, requests, stream)
            for arm, made in (("observed", observed), ("traced", traced)):
                document = made.stats()
                print(f"{arm}: {sum(document['hook_errors'].values()):.0f} hook errors, dropped {document['dropped']}")


def _measure(figures: _Figures, servers: dict[str, VllmServer], rounds: int, requests: int, stream: bool) -> None:
    for arm in ARMS:
        asyncio.run(_round(servers[arm].port, requests, stream, poll=False))  # warm
    for number in range(rounds):
        turn = ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]
        speed: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for arm in turn if number % 2 else reversed(turn):
            pid = servers[arm].process.pid
            before = _cpu_seconds(pid)
            poll = arm in ("observed", "traced")
            speed[arm] = asyncio.run(_round(servers[arm].port, requests, stream, poll=poll))
            cpu[arm] = (_cpu_seconds(pid) - before) / requests * 1e3
        for arm in ARMS:
            figures.ratios[arm].append(speed[arm] / speed["off"])
            figures.costs[arm].append(cpu[arm])
        figures.against.append(speed["traced"] / speed["vllm"])
        print(
            f"round {number:2}: off {speed['off']:5.0f} tokens/s, "
            + ", ".join(f"{arm} {figures.ratios[arm][-1]:.3f}" for arm in ARMS[1:]),
            flush=True,
        )


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    # Standard error of a median, from the quartiles of about normal values.
    error = 1.25 * (high - low) / 1.35 / len(values) ** 0.5
    return f"{middle:.3f} ± {error:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
