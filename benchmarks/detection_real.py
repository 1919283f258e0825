"""The faults that a CPU can produce, in the real vLLM with llmobs inside: which alert catches them, and how soon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from benchmarks._faults import Fault
from benchmarks.detection import Bench, Outcome, collect, prometheus, table
from llmobs.alerts.settings import load
from tests.alerts.chain import alertmanager, receiver
from tests.daemon import Daemon
from tests.instrument.conftest import INJECT, Instrumented

#: How much shorter every duration of the rules is; the server itself runs at its own speed.
SPEED = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault: flags of the server, its healthy traffic, and what goes wrong after `lead` seconds."""

    fault: Fault
    flags: tuple[str, ...] = ()
    lead: float = 45.0
    after: float = 60.0
    rate: float = 4.0
    tokens: int = 20
    #: Words that all prompts begin with.
    shared: int = 40
    #: What is done to the server; and what the traffic is afterwards: (requests a second, tokens, seconds until the
    #: client leaves, words of prompt), None for no change.
    act: Callable[[Instrumented], None] | None = None
    then: tuple[float, int, float, int] | None = None


def _fault(name: str, *wanted: str, true_too: tuple[str, ...] = ()) -> Fault:
    load_alerts = ("VllmQueueLong", "VllmQueueGrowing", "VllmRunningNearLimit", "VllmKVCacheHigh", "VllmTTFTP95High")
    slow = ("VllmTTFTBudgetBurn", "VllmE2EBudgetBurn", "VllmTokensDropped", "VllmPreemptionStorm", "VllmPrefillSlow")
    after = ("VllmErrorRatio", "VllmAvailabilityBudgetBurn", "VllmErrorBudgetExhausted", "VllmCacheHitRateLow")
    return Fault(name=name, scenario="", wanted=wanted, true_too=(*load_alerts, *slow, *after, *true_too), lead=1.0)


def _signal_engine(what: int) -> Callable[[Instrumented], None]:
    def act(server: Instrumented) -> None:
        for pid in server.server.engine_core_pids():
            os.kill(pid, what)

    return act


def _inject_oom(server: Instrumented) -> None:
    (server.state / "switch").write_text("oom")


ROWS = (
    Row(fault=_fault("engine killed (SIGKILL)", "VllmModelDown"), act=_signal_engine(signal.SIGKILL)),
    Row(fault=_fault("engine stopped (SIGSTOP)", "VllmEngineStalled"), act=_signal_engine(signal.SIGSTOP)),
    Row(fault=_fault("out of memory in the worker", "VllmOutOfMemory", true_too=("VllmModelDown",)), act=_inject_oom),
    Row(
        fault=_fault("queue overflow", "VllmQueueLong", "VllmQueueGrowing"),
        flags=("--max-num-seqs", "2"), rate=1.0, then=(8.0, 300, 120.0, 20),
    ),
    Row(
        fault=_fault("KV cache exhausted", "VllmKVCacheExhausted", "VllmPreemptionStorm"),
        flags=("--num-gpu-blocks-override", "12"), rate=1.0, then=(6.0, 400, 120.0, 20),
    ),
    Row(fault=_fault("clients disconnect", "VllmAbortStorm"), then=(8.0, 800, 0.4, 20)),
    Row(fault=_fault("prompts too long", "VllmPromptsTooLong"), then=(8.0, 20, 60.0, 3000)),
    Row(
        fault=_fault("prompts share nothing any more", "VllmCacheHitRateCollapse"), lead=90.0, rate=8.0, tokens=4,
        shared=150, then=(8.0, 4, 60.0, -4),
    ),
)  # fmt: skip


class Traffic:
    """Requests at a steady rate, each in a task of its own, never waiting for one another."""

    def __init__(self, url: str, shared: int) -> None:
        self.url = url
        self._shared = [str(n) for n in range(shared)]
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float, rate: float, tokens: int, patience: float, words: int) -> None:
        """Send for `seconds`.

        All prompts begin alike and end with so many words of their own; with a negative number the beginning is the
        same words in another order each time, so that only the sharing ends.
        """
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        end = time.monotonic() + seconds
        async with aiohttp.ClientSession(connector=connector) as session:
            while time.monotonic() < end:
                task = asyncio.create_task(self._one(session, tokens, patience, words))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(1 / rate)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, session: aiohttp.ClientSession, tokens: int, patience: float, words: int) -> None:
        own = " ".join(str(random.randrange(10_000)) for _ in range(abs(words)))
        shared = random.sample(self._shared, len(self._shared)) if words < 0 else self._shared
        prompt = f"{' '.join(shared)} {own}"
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=patience)
            async with session.post(f"{self.url}/v1/completions", json=body, timeout=timeout) as answer:
                await answer.read()


def run(row: Row) -> Outcome:
    """Run one row with a server, a daemon and the rest of the chain of its own."""
    outcome = Outcome(fault=row.fault, namespace="real")
    settings = replace(load(None), time_scale=1 / SPEED)
    with tempfile.TemporaryDirectory() as name, receiver() as sink:
        folder = Path(name)
        inject = {"PYTHONPATH": str(INJECT), "INJECT_STEP": str(folder / "vllm" / "state" / "switch")}
        server = Instrumented(folder / "vllm", *row.flags, **(inject if row.act is _inject_oom else {}))
        try:
            server.server.wait_ready()
            target = {
                "url": server.url, "name": "tiny", "interval_seconds": 0.5, "timeout_seconds": 2,
                "state_dir": str(server.state), "log_file": str(server.log),
            }  # fmt: skip
            derive = {"window_seconds": 6, "peak_seconds": 6, "stall_seconds": 3}
            config = {"targets": [target], "derive": derive}
            bench = Bench(folder, SPEED)
            with (
                Daemon(folder, config, "--no-collector.gpu") as daemon,
                alertmanager(folder, settings, sink) as am,
            ):
                bench.entries["real"] = [(daemon.port, server.server.port)]
                bench.write()
                with prometheus(bench, settings, am, public=False):
                    asyncio.run(_traffic(row, server, outcome))
            collect([outcome], sink, SPEED)
        finally:
            server.server.stop()
    return outcome


async def _traffic(row: Row, server: Instrumented, outcome: Outcome) -> None:
    traffic = Traffic(server.url, row.shared)
    normal = (row.rate, row.tokens, 60.0, 4)
    await traffic.run(row.lead, *normal)
    outcome.began = time.monotonic()
    if row.act is None:
        await traffic.run(row.after, *(row.then or normal))
        return
    # In flight when it happens.
    sending = asyncio.create_task(traffic.run(row.after, *(row.then or (row.rate, 200, 30.0, 4))))
    await asyncio.sleep(1.0)
    outcome.began = time.monotonic()
    row.act(server)
    await sending


def main() -> None:
    """Print the table; FAULT=regex runs the rows whose name it matches."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = re.compile(os.environ.get("FAULT", ""))
    outcomes = []
    for row in ROWS:
        if wanted.search(row.fault.name):
            outcomes.append(run(row))
            print(table(outcomes[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(outcomes), flush=True)
