"""What tracing costs per request: not recorded, recorded, and with token detail; encoding and export included.

    python -m benchmarks traces

CPU time of the whole process, so that work of the pipeline's thread counts too; the Collector is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from types import SimpleNamespace
from typing import Any

from benchmarks._tools import served

_REQUESTS = 1000
_ROUNDS = 5


async def _collector(ready: Any) -> None:
    from aiohttp import web

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready(site._server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


def _run(observed: bool, steps: int) -> tuple[float, float, float]:
    """Return CPU seconds of all threads and of this one for all requests, and the spans that were lost."""
    from llmobs.instrument.outcome import COMPLETED
    from llmobs.instrument.record import RequestRecord, SequenceRecord
    from llmobs.instrument.runtime import Runtime
    from llmobs.instrument.settings import InstrumentSettings
    from llmobs.instrument.traces import observer

    runtime = Runtime(
        InstrumentSettings(log_stderr=False), model_name="m", engines=[0], static={}, max_model_len=1024, version="0"
    )
    config = SimpleNamespace(observability_config=None, model_config=None, speculative_config=None)
    traces: Any = observer(runtime, config) if observed else None
    params = SimpleNamespace(max_tokens=64, temperature=0.7, top_p=0.9, top_k=0, seed=None, n=1)
    outputs = [SimpleNamespace(new_token_ids=[i], new_logprobs=None, events=None) for i in range(steps)]
    process, thread = time.process_time(), time.thread_time()
    for number in range(_REQUESTS):
        record = RequestRecord(f"request-{number}", "/v1/chat/completions")
        now = record.started
        stats = SimpleNamespace(
            queued_ts=now, scheduled_ts=now + 1e-3, first_token_ts=now + 0.02, last_token_ts=now + 0.3,
            num_generation_tokens=64, num_preemptions=0,
        )  # fmt: skip
        state = SimpleNamespace(stats=stats, prompt_len=100, num_cached_tokens=32, external_req_id="chatcmpl-1")
        sequence = SequenceRecord(record, state, now)
        sequence.params, sequence.reason = params, "stop"
        record.sequences.append(sequence)
        record.body_at = record.response_started_at = now
        record.status, record.response_complete, record.ended_at = 200, True, now + 0.31
        if traces is not None:
            traces.started(record, [])
            if record.wants_detail:
                traces.submitted(record, sequence)
            if sequence.detail is not None:
                for position, output in enumerate(outputs):
                    sequence.detail(output, now + 0.004 * position, 0.004 if position else None, position)
        facts = runtime.facts(record, COMPLETED)
        if traces is not None:
            traces.finished(record, facts)
    own = time.thread_time() - thread
    if traces is not None:
        traces._pipeline.close(120)
    return time.process_time() - process, own, runtime.spans_dropped


def main() -> None:
    """Print microseconds per request: of the calling thread (the event loop's), and of all threads."""
    with served(_collector) as port:
        os.environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_MAX_QUEUE_SIZE": "1000000",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        for name, ratio, detail in (("not recorded", "0", "0"), ("recorded", "1", "0"), ("64 decode steps", "1", "1")):
            os.environ |= {"OTEL_TRACES_SAMPLER_ARG": ratio, "LLMOBS_TRACE_DETAIL_RATIO": detail}
            rounds = []
            for _ in range(_ROUNDS):
                without, with_ = _run(False, 65), _run(True, 65)
                rounds.append([(b - a) / _REQUESTS * 1e6 for a, b in zip(without, with_)])
            everything, own, lost = (statistics.median(column) for column in zip(*rounds))
            print(f"{name:18} {own:7.1f} us on the event loop, {everything:7.1f} us in all threads, {lost:.0f} lost")


if __name__ == "__main__":
    main()
