"""Tokens per second of the real vLLM: plain, with llmobs inside, and with vLLM's own tracing, side by side.

Four servers are up all the time; only one has load at a time, and the order changes from round to round:

    off        vLLM alone
    observed   with llmobs: logs, `/stats` read every second, one request in ten traced
    traced     the same with every request traced
    vllm       vLLM alone with its own `--otlp-traces-endpoint`

Spans go to a receiver in a process of its own that reads and forgets them. The tiny model's steps take a few
milliseconds, several times less than production's, so this is the hard case. Each figure is a server's tokens per
second divided by those of `off` in the same round; the CPU time of the API server process, where our code runs, is
shown beside, because neighbours disturb it less than the clock. Run it alone on the machine:

    python -m benchmarks instrument_pairs          (ROUNDS=60, REQUESTS=96, STREAM=1 in the environment to change it)
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.instrument.conftest import Instrumented
from tests.real.server import VllmServer

CONCURRENCY = 32
TOKENS = 64
ARMS = ("off", "observed", "traced", "vllm")


def _receive(port: Connection) -> None:
    """Serve OTLP over HTTP: read each export, answer, and count the bytes."""

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
def _receiver() -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that a receiver that does not start ends the wait below
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _round(url: str, requests: int, stream: bool, poll: bool) -> float:
    """Return tokens per second of one round."""
    body = {"model": "tiny", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": stream}
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            async with session.post(url + "/v1/completions", json={**body, "prompt": f"{number} hello"}) as response:
                await response.read()
                assert response.status == 200

        async def polling() -> None:
            while True:
                async with session.get(url + "/stats") as response:
                    await response.read()
                await asyncio.sleep(1.0)

        poller = asyncio.create_task(polling()) if poll else None
        started = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(requests)))
        seconds = time.perf_counter() - started
        if poller is not None:
            poller.cancel()
    return requests * TOKENS / seconds


def main() -> None:
    """Run the rounds; print each, then the medians of the ratios with their quartiles."""
    rounds, requests = int(os.environ.get("ROUNDS", "60")), int(os.environ.get("REQUESTS", "96"))
    stream = os.environ.get("STREAM") == "1"
    with tempfile.TemporaryDirectory() as name, _receiver() as collector:
        folder = Path(name)
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with contextlib.ExitStack() as stack:
            servers: dict[str, VllmServer] = {}

            def add(arm: str, server: VllmServer) -> None:
                servers[arm] = server
                stack.callback(server.stop)
                server.wait_ready()

            observed = Instrumented(folder / "observed", launcher=(), OTEL_TRACES_SAMPLER_ARG="0.1", **otlp)
            traced = Instrumented(folder / "traced", launcher=(), **otlp)
            add("observed", observed.server)
            add("traced", traced.server)
            add("off", VllmServer(folder / "off.log"))
            own = ("--otlp-traces-endpoint", f"{collector}/v1/traces")
            protocol = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
            add("vllm", VllmServer(folder / "vllm.log", *own, environment=protocol))
            _measure(servers, rounds, requests, stream)
            for arm, made in (("observed", observed), ("traced", traced)):
                errors = sum(made.stats()["hook_errors"].values())
                print(f"{arm}: {errors:.0f} hook errors, spans {made.stats().get('traces')}")


def _measure(servers: dict[str, VllmServer], rounds: int, requests: int, stream: bool) -> None:
    for arm in ARMS:
        asyncio.run(_round(servers[arm].url, requests, stream, poll=False))  # warm
    ratios: dict[str, list[float]] = {arm: [] for arm in ARMS}
    costs: dict[str, list[float]] = {arm: [] for arm in ARMS}
    against: list[float] = []
    for number in range(rounds):
        turn = ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]
        speed: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for arm in turn if number % 2 else reversed(turn):
            pid = servers[arm].process.pid
            before = _cpu_seconds(pid)
            poll = arm in ("observed", "traced")
            speed[arm] = asyncio.run(_round(servers[arm].url, requests, stream, poll=poll))
            cpu[arm] = (_cpu_seconds(pid) - before) / requests * 1e3
        for arm in ARMS:
            ratios[arm].append(speed[arm] / speed["off"])
            costs[arm].append(cpu[arm])
        against.append(speed["traced"] / speed["vllm"])
        print(
            f"round {number:2}: off {speed['off']:5.0f} tokens/s, "
            + ", ".join(f"{arm} {ratios[arm][-1]:.3f}" for arm in ARMS[1:]),
            flush=True,
        )
    for arm in ARMS:
        print(f"{arm:9} {_spread(ratios[arm])} of off; API server CPU {statistics.median(costs[arm]):.2f} ms a request")
    print(f"traced is {_spread(against)} of vllm")


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
