"""A vLLM whose every figure is known: counters grow linearly, gauges stand still, histograms have one shape."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llmobs import stats
from llmobs.catalog.engine import FINISH_REASONS
from llmobs.snapshot import FAILURE_REASONS, TOKEN_BUCKETS, EngineSnapshot, EngineStats, Histogram

MODEL = "known"

#: Finished sequences per second, and what each of them is like (seconds, tokens).
REQUESTS = 8.0
QUEUE, PREFILL, DECODE = 0.1, 0.4, 1.5
PROMPT, OUTPUT = 1000.0, 200.0
HIT_RATE = 0.75
STEPS = 50.0
STEP_TOKENS = 128.0
DRAFTS, DRAFT_TOKENS, ACCEPTED = 20.0, 60.0, 45.0
#: Failures per second by reason.
FAILED = {"oom": 0.0, "timeout": 0.5, "abort": 0.25, "error": 0.25, "engine_dead": 0.0, "rejected": 1.0}
PREEMPTIONS = 0.4

GAUGES = {
    "running": 24.0, "waiting": 6.0, "oldest_waiting_seconds": 3.5, "max_num_seqs": 32.0, "kv_cache_usage": 0.6,
    "kv_cache_tokens": 64_000.0, "kv_cache_blocks": 4000.0, "kv_cache_bytes": 8e9,
}  # fmt: skip


def _histogram(bounds: tuple[float, ...], count: float, spread: tuple[float, float], total: float) -> Histogram:
    """`count` observations, evenly spread between two bounds, with the sum `total`."""
    low, high = spread
    counts = [count * min(1.0, max(0.0, (b - low) / (high - low))) if math.isfinite(b) else count for b in bounds]
    return Histogram(bounds, tuple(counts), total)


def engine(seconds: float) -> EngineStats:
    """What the engine says `seconds` after its start."""
    n = REQUESTS * seconds
    tokens = n * OUTPUT
    prompts = n * PROMPT
    steps = STEPS * seconds
    bounds = stats.length_bounds(8192)
    return dataclasses.replace(
        EngineStats(model_name=MODEL),
        **GAUGES,
        waiting_by_reason={"capacity": 4.0, "deferred": 2.0},
        preemptions=PREEMPTIONS * seconds,
        step_tokens=_histogram(stats.STEP_TOKEN_BOUNDS, steps, (64, 256), steps * STEP_TOKENS),
        prefix_queries=prompts,
        prefix_hits=prompts * HIT_RATE,
        prompt_tokens=prompts,
        prompt_tokens_by_source={
            "local_compute": prompts * (1 - HIT_RATE),
            "local_cache_hit": prompts * HIT_RATE,
            "external_kv_transfer": 0.0,
        },
        generation_tokens=tokens,
        finished={**dict.fromkeys(FINISH_REASONS, 0.0), "stop": 0.75 * n, "length": 0.25 * n},
        failed={**dict.fromkeys(FAILURE_REASONS, 0.0), **{k: v * seconds for k, v in FAILED.items()}},
        oom={"cuda": 0.0, "host": 0.0},
        time_to_first_token=_histogram(stats.TTFT_BOUNDS, n, (0.5, 0.75), n * 0.6),
        inter_token_latency=_histogram(stats.INTER_TOKEN_BOUNDS, tokens, (0.02, 0.025), tokens * 0.0225),
        time_per_output_token=_histogram(stats.INTER_TOKEN_BOUNDS, n, (0.02, 0.025), n * 0.0225),
        e2e_latency=_histogram(stats.REQUEST_BOUNDS, n, (1.5, 2.5), n * (QUEUE + PREFILL + DECODE)),
        queue_time=_histogram(stats.QUEUE_BOUNDS, n, (0.05, 0.15), n * QUEUE),
        prefill_time=_histogram(stats.PREFILL_BOUNDS, n, (0.3, 0.5), n * PREFILL),
        decode_time=_histogram(stats.DECODE_BOUNDS, n, (1.0, 2.0), n * DECODE),
        inference_time=_histogram(stats.REQUEST_BOUNDS, n, (1.5, 2.5), n * (PREFILL + DECODE)),
        decode_step_latency={
            bucket: _histogram(stats.DECODE_STEP_BOUNDS, n, (0.02, 0.03), n * 0.02 * (i + 1))
            for i, bucket in enumerate(TOKEN_BUCKETS)
        },
        prompt_length=_histogram(bounds, n, (500, 2000), prompts),
        generation_length=_histogram(bounds, n, (100, 500), tokens),
        spec_drafts=DRAFTS * seconds,
        spec_draft_tokens=DRAFT_TOKENS * seconds,
        spec_accepted_tokens=ACCEPTED * seconds,
        spec_accepted_per_position={str(i): DRAFTS * share * seconds for i, share in enumerate((0.95, 0.75, 0.55))},
        worker_memory_allocated={"0": 5e9},
        worker_memory_reserved={"0": 6e9},
        prefix_cache_unit="tokens",
        config={"block_size": "16", "cache_dtype": "auto", "gpu_memory_utilization": "0.9", "prefix_caching": "true"},
    )


class KnownVllm:
    """Serves `/stats` of the known engine from the moment it is made."""

    def __init__(self) -> None:
        self.started = time.time()
        self.version = "0.32.0"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                bodies = {"/stats": outer.page, "/version": lambda: {"version": outer.version}, "/health": dict}
                make = bodies.get(self.path)
                body = json.dumps(make() if make else {}).encode()
                self.send_response(200 if make else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the reader gave up: it asks again
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def page(self) -> dict[str, object]:
        """The document at this moment."""
        now = time.time()
        return stats.encode(
            EngineSnapshot(
                taken_at=now,
                wall_time=now,
                source="stats",
                dialect=stats.SCHEMA,
                engines=(engine(now - self.started),),
                version=self.version,
                start_time=self.started,
                instance="known",
                http_responses={"2xx": REQUESTS * (now - self.started), "4xx": 0.0, "5xx": 0.0},
                hook_active={"record": 1.0},
                hook_errors={"record": 0.0},
                dropped={"spans": 0.0, "log_lines": 0.0, "journal_lines": 0.0},
            )
        )

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
