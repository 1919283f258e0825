"""A simulated server's state as an `EngineSnapshot`: what the part of llmobs inside vLLM would serve as `/stats`."""

from __future__ import annotations

from typing import Any

from llmobs import stats
from llmobs.simulate.engine import Engine
from llmobs.simulate.scenario import ModelSettings
from llmobs.simulate.server import SimulatedVllm
from llmobs.simulate.tally import rebin
from llmobs.snapshot import EngineSnapshot, EngineStats

#: Hooks that the real instrumentation installs; all of them work here.
_HOOKS = ("stat_logger", "middleware", "frontend", "engine_core", "worker")


def snapshot(server: SimulatedVllm, *, taken_at: float) -> EngineSnapshot:
    """Return all facts of the server's present process. `taken_at` is the reader's clock."""
    http: dict[str, float] = {"2xx": 0, "4xx": 0, "5xx": 0}
    for _, _, engine in server.engines():
        for status, count in engine.tally.http.items():
            http[status] += count
    return EngineSnapshot(
        taken_at=taken_at,
        wall_time=server.wall(server.now),
        source="stats",
        dialect=stats.SCHEMA,
        version=server.scenario.version,
        start_time=server.wall(server.process.started_at),
        instance=server.process.instance,
        simulated=True,
        engines=tuple(_engine(server, model, rank, engine) for model, rank, engine in server.engines()),
        http_responses=http,
        hook_active=dict.fromkeys(_HOOKS, 1.0),
        hook_errors=dict.fromkeys(_HOOKS, 0.0),
        dropped=dict.fromkeys(("spans", "log_lines", "journal_lines"), 0.0),
    )


def _engine(server: SimulatedVllm, model: ModelSettings, rank: int, engine: Engine) -> EngineStats:
    tally, settings = engine.tally, model.engine
    gauges, asleep = tally.gauges, server.asleep
    alive = server.phase == "ready"
    oldest = engine.oldest_waiting() if alive else None
    optional: dict[str, Any] = {}
    if settings.speculation.tokens:
        optional.update(
            spec_drafts=tally.drafts,
            spec_draft_tokens=tally.draft_tokens,
            spec_accepted_tokens=tally.accepted,
            spec_accepted_per_position={str(i): n for i, n in enumerate(tally.accepted_at)},
        )
    if settings.connector.enabled:
        optional.update(
            kv_transfer_time=tally.transfer_time.snapshot(),
            kv_transfer_failures={"nixl_transfer": tally.transfer_failures},
            kv_offload_bytes=dict(tally.offload_bytes),
            kv_offload_seconds=dict(tally.offload_seconds),
        )
    if settings.kv_cache_metrics:
        optional.update(
            kv_block_lifetime=tally.block_lifetime.snapshot(),
            kv_block_idle_before_evict=tally.block_idle.snapshot(),
            kv_block_reuse_gap=tally.block_gap.snapshot(),
        )
    blocks, size = settings.kv_blocks, settings.block_size
    allocated, reserved = worker_memory(server, model)
    return EngineStats(
        model_name=model.name,
        engine=str(rank),
        running=gauges.running,
        waiting=gauges.waiting,
        waiting_by_reason={"capacity": gauges.waiting - gauges.deferred, "deferred": gauges.deferred},
        oldest_waiting_seconds=None if oldest is None else max(0.0, server.now - oldest),
        seconds_since_progress=_quiet(server, engine) if alive else None,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        sleep_state={
            "awake": float(not asleep),
            "weights_offloaded": float(asleep == 1),
            "discard_all": float(asleep >= 2),
        },
        preemptions=tally.preemptions,
        admission_rejections=dict(tally.rejections),
        step_tokens=rebin(tally.step_tokens.snapshot(), stats.STEP_TOKEN_BOUNDS),
        kv_cache_usage=gauges.usage,
        kv_cache_blocks=blocks,
        kv_cache_block_size=size,
        kv_cache_tokens=blocks * size,
        kv_cache_bytes=blocks * size * settings.kv_bytes_per_token,
        prefix_queries=tally.prefix_queries,
        prefix_hits=tally.prefix_hits,
        prefix_preempted_queries=tally.preempted_queries,
        prefix_preempted_hits=tally.preempted_hits,
        external_queries=tally.external_queries,
        external_hits=tally.external_hits,
        mm_queries=tally.mm_queries,
        mm_hits=tally.mm_hits,
        prompt_tokens=sum(tally.prompt_sources.values()),
        prompt_tokens_by_source=dict(tally.prompt_sources),
        cached_tokens_by_tier=dict(tally.cached_tiers),
        generation_tokens=tally.generation_tokens,
        finished=dict(tally.finished),
        completed=sum(count for reason, count in tally.finished.items() if reason not in ("error", "abort")),
        failed=dict(tally.failed),
        oom=dict(tally.oom),
        corrupted=tally.corrupted,
        prompts_near_limit=tally.near_limit,
        prompt_outliers=tally.outliers,
        time_to_first_token=tally.ttft.snapshot(),
        inter_token_latency=tally.inter_token.snapshot(),
        time_per_output_token=tally.per_output_token.snapshot(),
        e2e_latency=tally.e2e.snapshot(),
        queue_time=tally.queue.snapshot(),
        prefill_time=tally.prefill.snapshot(),
        decode_time=tally.decode.snapshot(),
        inference_time=tally.inference.snapshot(),
        decode_step_latency=tally.decode_steps(),
        prompt_length=tally.lengths(tally.prompt_length),
        generation_length=tally.lengths(tally.generation_length),
        max_tokens_param=tally.lengths(tally.max_tokens),
        n_param=tally.n.snapshot(),
        preemptions_per_request=tally.request_preemptions.snapshot(),
        prefill_computed_length=tally.lengths(tally.computed_length),
        lora_running=dict(gauges.lora_running),
        lora_waiting=dict(gauges.lora_waiting),
        flops=tally.flops,
        memory_read_bytes=tally.read_bytes,
        memory_written_bytes=tally.written_bytes,
        worker_memory_allocated={"0": allocated},
        worker_memory_reserved={"0": reserved},
        prefix_cache_unit="tokens",
        config={
            "block_size": str(size),
            "cache_dtype": "auto",
            "gpu_memory_utilization": "0.92",
            "prefix_caching": str(settings.prefix_caching),
        },
        **optional,
    )


def _quiet(server: SimulatedVllm, engine: Engine) -> float | None:
    """Seconds without output while clients wait, from the younger of the last output and the oldest request."""
    arrivals = [r.arrival for r in (*engine.running, *engine.waiting) if not r.left]
    if not arrivals:
        return None
    return max(0.0, server.now - max(min(arrivals), engine.progress_at))


def worker_memory(server: SimulatedVllm, model: ModelSettings) -> tuple[float, float]:
    """Return (allocated, reserved) bytes of PyTorch's allocator in the worker; what leaks is only reserved."""
    settings = model.engine
    kv = settings.kv_blocks * settings.block_size * settings.kv_bytes_per_token
    allocated = server.scenario.gpu.weights_bytes + kv
    return allocated, allocated + 0.6e9 + server.leaked_bytes
