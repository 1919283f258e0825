"""Tokens per second of the real vLLM with llmobs inside and without, in alternating pairs on one machine.

Both servers are up all the time; only one has load at a time. The tiny model's steps take a few milliseconds, several
times less than production's, so this is the hard case. Run it alone on the machine; the CPU time of the API server
process, where our code runs, is shown beside, because neighbours disturb it less than the clock:

    python -m benchmarks instrument_pairs          (PAIRS=16, REQUESTS=160, STREAM=1 in the environment to change it)
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp

from tests.instrument.conftest import Instrumented
from tests.real.server import VllmServer

CONCURRENCY = 32
TOKENS = 64


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
    """Run the pairs and print each, the medians, and their ratio."""
    pairs, requests = int(os.environ.get("PAIRS", "16")), int(os.environ.get("REQUESTS", "160"))
    stream = os.environ.get("STREAM") == "1"
    extra = dict(item.split("=", 1) for item in os.environ.get("WITH", "").split() if "=" in item)
    with tempfile.TemporaryDirectory() as folder:
        off = VllmServer(Path(folder) / "off.log")
        on = Instrumented(Path(folder), launcher=(), **extra)
        try:
            off.wait_ready()
            on.server.wait_ready()
            ratios: list[float] = []
            costs: list[float] = []
            pids = {False: off.process.pid, True: on.server.process.pid}
            for url in (off.url, on.url):
                asyncio.run(_round(url, requests, stream, poll=False))  # warm
            for pair in range(pairs):
                order = [(off.url, False), (on.url, True)]
                speeds: dict[bool, float] = {}
                cpu: dict[bool, float] = {}
                for url, ours in order if pair % 2 else reversed(order):
                    before = _cpu_seconds(pids[ours])
                    speeds[ours] = asyncio.run(_round(url, requests, stream, poll=ours))
                    cpu[ours] = (_cpu_seconds(pids[ours]) - before) / (requests * TOKENS) * 1e6
                ratios.append(speeds[True] / speeds[False])
                costs.append(cpu[True] - cpu[False])
                print(
                    f"pair {pair:2}: off {speeds[False]:6.0f}  on {speeds[True]:6.0f} tokens/s  {ratios[-1]:.3f}"
                    f"   API server CPU off {cpu[False]:5.1f}  on {cpu[True]:5.1f} µs/token"
                )
            quartiles = statistics.quantiles(ratios, n=4)
            print(f"on/off: median {statistics.median(ratios):.3f}, quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}")
            print(f"API server CPU: median {statistics.median(costs):+.1f} µs per token")
            print(f"stats: {on.stats()['hook_errors'] and sum(on.stats()['hook_errors'].values()):.0f} hook errors")
        finally:
            off.stop()
            on.server.stop()


if __name__ == "__main__":
    main()
