"""What our code inside vLLM costs per engine step, per request, and per `/stats`, without a server.

It runs inside the environment of the real vLLM, because the stat logger is a subclass of vLLM's:

    python -m benchmarks instrument_micro
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_JSON = (b"content-type", b"application/json")


def _median_us(work: Callable[[], None], *, inner: int = 200, rounds: int = 25) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(inner):
            work()
        times.append((time.perf_counter() - started) / inner)
    return statistics.median(times) * 1e6


def _runtime() -> Any:
    from pathlib import Path

    from llmobs.instrument import runtime as runtimes
    from llmobs.instrument.events import RequestLog
    from llmobs.instrument.settings import InstrumentSettings

    settings = InstrumentSettings(log_stderr=False, log_file=Path("/dev/null"))
    runtime = runtimes.Runtime(
        settings, model_name="m", engines=[0], static={}, max_model_len=1024, version="0", client_count=1
    )
    runtime.observers.add(RequestLog(runtime))
    return runtimes.install(runtime)


def _step(runtime: Any, running: int) -> float:
    """Return microseconds of our work in one step with `running` sequences that each give a token."""
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats

    from llmobs.instrument import frontend
    from llmobs.instrument.stat_logger import StatLogger

    logger = StatLogger.__new__(StatLogger)
    logger._guard, logger._steps = frontend.guard("stat_logger"), frontend.guard("steps")
    logger._runtime, logger._engine = runtime, 0
    now = time.monotonic()
    states = {
        str(i): SimpleNamespace(
            stats=RequestStateStats(num_generation_tokens=i % 600, last_token_ts=now - 0.004), is_prefilling=False
        )
        for i in range(running)
    }
    outputs = [SimpleNamespace(request_id=str(i), new_token_ids=[1]) for i in range(running)]
    iteration = IterationStats()
    iteration.num_generation_tokens = running
    iteration.inter_token_latencies_iter = [0.004] * running
    scheduler = SchedulerStats(num_running_reqs=running, kv_cache_usage=0.5)
    steps = frontend.guard("steps")

    def work() -> None:
        steps.run(frontend._step, outputs, now, states)
        logger.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)

    async def inside() -> float:
        return _median_us(work)

    return asyncio.run(inside())


def _request(runtime: Any) -> tuple[float, float]:
    """Return microseconds that one request costs more with our middleware than without, engine hooks included.

    The first until its answer is out, the second with what follows a moment later: facts, counting, the log line.
    """
    from vllm.v1.metrics.stats import RequestStateStats

    from llmobs.instrument import frontend
    from llmobs.instrument.middleware import Middleware

    stats = RequestStateStats(5, 0, time.time(), 1.0, 1.1, 1.2, 1.3)
    state = SimpleNamespace(stats=stats, prompt_len=10, parent_req=None, lora_name=None, num_cached_tokens=0,
                            request_id="r", external_req_id="r", spec_decode_metrics=None)  # fmt: skip
    processor = SimpleNamespace(request_states={"r": state})
    request = SimpleNamespace(request_id="r")
    body = {"type": "http.response.body", "body": b"x" * 500, "more_body": False}

    def application(hooked: bool) -> Any:
        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await receive()
            if hooked:
                frontend._added(processor, request)
                frontend._finished("r", "stop")
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            await send(body)

        return app

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_message: Any) -> None:
        return None

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"x"), _JSON, (b"authorization", b"Bearer x")],
    }

    def timed(app: Any, *, settled: bool = False) -> float:
        async def all_rounds() -> float:
            times = []
            for _ in range(40):
                started = time.perf_counter()
                for _ in range(100):
                    await app(dict(scope), receive, send)
                if settled:
                    runtime.settle()
                times.append((time.perf_counter() - started) / 100)
                await asyncio.sleep(0.01)  # the writer's thread catches up, as between requests
            return statistics.median(times) * 1e6

        return asyncio.run(all_rounds())

    alone, hooked = timed(application(hooked=False)), Middleware(application(hooked=True))
    return timed(hooked) - alone, timed(hooked, settled=True) - alone


def _page(runtime: Any) -> float:
    """Return microseconds of one `/stats` body."""
    from llmobs.instrument.stats_page import render

    return _median_us(lambda: render(runtime) and None, inner=10, rounds=30)


def main() -> None:
    """Print the figures; start again inside vLLM's environment when vLLM is not in this one."""
    if importlib.util.find_spec("vllm") is None:
        from tests.conftest import VLLM_ENV
        from tests.instrument.overlay import overlay

        python = overlay(VLLM_ENV) / "bin" / "python"
        subprocess.run([python, "-m", "benchmarks.instrument_micro"], check=True, env={**os.environ})
        return
    runtime = _runtime()
    for running in (1, 32, 128, 512):
        cost = _step(runtime, running)
        print(f"step, {running:4} running: {cost:7.1f} µs (bar {20 + running} µs)")
    answered, settled = _request(runtime)
    print(f"request, not sampled: {answered:7.1f} µs, {settled:.1f} µs with what follows (bar 50 µs)")
    print(f"/stats:               {_page(runtime):7.1f} µs (bar 1000 µs)")


if __name__ == "__main__":
    main()
