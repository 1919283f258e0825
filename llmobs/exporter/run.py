"""`llmobs run`: put the daemon together and run it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from llmobs import log
from llmobs.config import Settings, TargetSettings, complete
from llmobs.engine.http import HttpClient
from llmobs.errors import TargetError
from llmobs.exporter.daemon import PARALLEL_READS, Daemon
from llmobs.exporter.gpus import GpuSource
from llmobs.gpu import GpuReader

#: What `--demo` watches when it answers.
LOCAL = "http://localhost:8000"


def run(settings: Settings, load: Callable[[], Settings], *, demo: bool, scenario: str | None = None) -> None:
    """Run the daemon until it is told to stop.

    With `demo`, a simulated engine is watched when no target is configured and nothing answers at `LOCAL`.
    """
    limit = log.configure(settings.log)
    asyncio.run(_run_to_the_end(settings, load, limit, demo=demo, scenario=scenario))


async def _run_to_the_end(
    settings: Settings, load: Callable[[], Settings], limit: log.RateLimit, *, demo: bool, scenario: str | None
) -> None:
    """Run, and end the process although a thread hangs in a name server, a file system or a driver."""
    # Names are looked up and files read in these threads; a few that hang must leave others.
    executor = ThreadPoolExecutor(max_workers=PARALLEL_READS, thread_name_prefix="llmobs-work")
    asyncio.get_running_loop().set_default_executor(executor)
    await _run(settings, load, limit, demo=demo, scenario=scenario)
    executor.shutdown(wait=False, cancel_futures=True)
    for _ in range(10):
        if not any(t is not threading.main_thread() and not t.daemon for t in threading.enumerate()):
            return
        await asyncio.sleep(0.02)
    # Python waits for its threads at exit, for ever if need be.
    log.get().warning("threads_left_behind", once=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _run(
    settings: Settings, load: Callable[[], Settings], limit: log.RateLimit, *, demo: bool, scenario: str | None
) -> None:
    async with AsyncExitStack() as stack:
        simulated_gpus: GpuSource | None = None
        if demo and not settings.targets and not settings.discovery.files and not settings.discovery.dns:
            local = complete(TargetSettings(url=LOCAL), "targets[0]")
            if scenario is None and await _answers(local):
                settings = dataclasses.replace(settings, targets=(local,))
            else:
                from llmobs.simulate import SimulatedServer

                server = await stack.enter_async_context(SimulatedServer(scenario or "demo"))
                simulated = complete(TargetSettings(url=server.url, name="simulated"), "targets[0]")
                settings = dataclasses.replace(settings, targets=(simulated,))
                simulated_gpus = server.gpus
                log.get().warning(
                    "simulated", detail=f"nothing answers at {LOCAL}: everything shown is simulated", once=True
                )
            configured = settings

            def reload() -> Settings:
                return dataclasses.replace(load(), targets=configured.targets)

            load = reload
        source: GpuSource = simulated_gpus or GpuReader(
            enabled=settings.gpu.enabled, timeout=settings.gpu.timeout_seconds
        )
        daemon = Daemon(
            settings, load=load, gpu_source=source, gpus_simulated=simulated_gpus is not None, log_limit=limit
        )
        await daemon.run(ready=_announce)


async def _answers(target: TargetSettings) -> bool:
    client = HttpClient(target)
    try:
        answer = await client.get("/metrics", timeout=2.0)
    except TargetError:
        return False
    finally:
        await client.close()
    return answer.status == 200 and b"vllm" in answer.body


def _announce(addresses: list[str]) -> None:
    for address in addresses:
        print(
            f"llmobs: live page at {address}  metrics at {address}metrics  (Ctrl-C stops)", file=sys.stderr, flush=True
        )
