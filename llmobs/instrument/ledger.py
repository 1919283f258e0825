"""The ledger: cumulative facts of one engine, and of the HTTP side, as this API server process has seen them.

Everything here runs on the event loop of the API server, so that a reader on the same loop sees one instant. vLLM's
statistics objects differ by version: every field is read with a default, and what was never seen stays None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from llmobs import stats
from llmobs.instrument.histogram import Accumulator
from llmobs.instrument.latencies import StepLatencies
from llmobs.instrument.record import Load
from llmobs.snapshot import EngineStats

_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_FINISHED = ("stop", "length", "abort", "error", "repetition")
_LORA_CAP = 64
_LOOKS_FOR_NANS = os.environ.get("VLLM_COMPUTE_NANS_IN_LOGITS", "0") not in ("", "0")


class EngineLedger:
    """Accumulates one engine's facts. `static` are those that never change (limits, cache size, settings)."""

    def __init__(self, model_name: str, engine: int, static: dict[str, Any], max_model_len: int) -> None:
        self.model_name = model_name
        self.engine = engine
        self.static = static
        self.latest: Any = None  # the last SchedulerStats; `Steps.add` takes it over
        self.load_at = 0.0  # monotonic time of it, for merging processes
        self._load = Load()
        self._load_of: Any = None
        self.progress_at: float | None = None
        self.oldest_waiting_arrival: float | None = None  # Unix time, as the engine core says
        self.sleep: dict[str, float] = {}
        self.counters: dict[str, float] = dict.fromkeys(
            (
                "preemptions", "prefix_queries", "prefix_hits", "prompt_tokens", "generation_tokens",
                "prompts_near_limit", "prompt_outliers",
            ),
            0,
        )  # fmt: skip
        self.families: dict[str, dict[str, float]] = {
            "finished": dict.fromkeys(_FINISHED, 0),
        }
        lengths = stats.length_bounds(max_model_len)
        self.step_tokens = Accumulator(stats.STEP_TOKEN_BOUNDS)
        self.ttft = Accumulator(stats.TTFT_BOUNDS)
        self.time_per_output_token = Accumulator(stats.INTER_TOKEN_BOUNDS)
        self.e2e = Accumulator(stats.REQUEST_BOUNDS)
        self.queue = Accumulator(stats.QUEUE_BOUNDS)
        self.prefill = Accumulator(stats.PREFILL_BOUNDS)
        self.decode = Accumulator(stats.DECODE_BOUNDS)
        self.inference = Accumulator(stats.REQUEST_BOUNDS)
        self.prompt_length = Accumulator(lengths)
        self.generation_length = Accumulator(lengths)
        self.max_tokens = Accumulator(lengths)
        self.n = Accumulator((1.0, 2.0, 5.0, 10.0, 20.0, float("inf")))
        self.preemptions_per_request = Accumulator((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, float("inf")))
        self.computed_length = Accumulator(lengths)
        self.steps = StepLatencies()
        self.residency: dict[str, Accumulator] = {}

    # -- what vLLM reports -------------------------------------------------------------------------------------

    @property
    def load(self) -> Load:
        """What the scheduler said last."""
        return self.load_of(self.latest)

    def load_of(self, s: Any) -> Load:
        """Return the load that one SchedulerStats of this engine tells; nothing is known without one."""
        if s is not self._load_of:
            waiting, deferred = getattr(s, "num_waiting_reqs", None), _deferred(s)
            usage = getattr(s, "kv_cache_usage", None)
            if usage is None:
                usage = getattr(s, "gpu_cache_usage", None)
            if waiting is not None and deferred is not None:
                waiting += deferred
            self._load = Load(getattr(s, "num_running_reqs", None), waiting, usage)
            self._load_of = s
        return self._load

    def scheduler(self, s: Any) -> None:
        """Count what one SchedulerStats says has happened since the one before."""
        cache = getattr(s, "prefix_cache_stats", None)
        if cache is not None and cache.queries | getattr(cache, "preempted_queries", 0):
            self.add("prefix_queries", cache.queries)
            self.add("prefix_hits", cache.hits)
            self.add("prefix_preempted_queries", getattr(cache, "preempted_queries", None))
            self.add("prefix_preempted_hits", getattr(cache, "preempted_hits", None))
        connector = getattr(s, "connector_prefix_cache_stats", None)
        if connector is not None:
            self.add("external_queries", connector.queries)
            self.add("external_hits", connector.hits)
            for source, hits in (getattr(connector, "hits_by_source", None) or {}).items():
                self.add_to("cached_tokens_by_tier", str(getattr(source, "value", source)), hits)
        spec = getattr(s, "spec_decoding_stats", None)
        if spec is not None:
            self._speculative(spec)
        perf = getattr(s, "perf_stats", None)
        if perf is not None:
            self.add("flops", getattr(perf, "num_flops_per_gpu", None))
            self.add("memory_read_bytes", getattr(perf, "num_read_bytes_per_gpu", None))
            self.add("memory_written_bytes", getattr(perf, "num_write_bytes_per_gpu", None))
        for event in getattr(s, "kv_cache_eviction_events", None) or ():
            self._evicted(event)

    def iteration(self, it: Any, now: float) -> None:
        """Count one IterationStats of the monotonic time `now`, except for its inter-token times."""
        counters = self.counters
        generated = it.num_generation_tokens
        prompt = it.num_prompt_tokens
        counters["generation_tokens"] += generated
        counters["preemptions"] += getattr(it, "num_preempted_reqs", 0)
        by_source = getattr(it, "prompt_token_stats", None)
        computed = prompt
        if by_source is not None:
            computed = by_source.computed
            family = self.families.setdefault("prompt_tokens_by_source", dict.fromkeys(_SOURCES, 0))
            if prompt:
                family["local_compute"] += computed
                family["local_cache_hit"] += by_source.local_cache_hit
                family["external_kv_transfer"] += by_source.external_kv_transfer
        if prompt:
            counters["prompt_tokens"] += prompt
        self.step_tokens.observe(computed + generated)
        if generated or prompt:
            self.progress_at = now
        if _LOOKS_FOR_NANS:  # else vLLM says 0 without having looked
            self.add("corrupted", getattr(it, "num_corrupted_reqs", None))
        for value in it.time_to_first_tokens_iter:
            self.ttft.observe(value)
        for value in getattr(it, "n_params_iter", ()):
            self.n.observe(value)
        for finished in it.finished_requests:
            self._finished(finished)

    def inter_token(self, it: Any, positions: Sequence[int] | None) -> None:
        """Count the inter-token times of one IterationStats; `positions` are their tokens', None where not seen."""
        intervals = getattr(it, "inter_token_latencies_iter", None)
        if intervals is None:
            intervals = getattr(it, "time_per_output_tokens_iter", None) or ()
        if positions is not None:
            self.steps.later(positions, intervals)
            return
        for seconds in intervals:
            self.steps.unplaced.observe(seconds)

    def mm_cache(self, cache: Any) -> None:
        """Take over one MultiModalCacheStats."""
        self.add("mm_queries", cache.queries)
        self.add("mm_hits", cache.hits)

    def slept(self, asleep: int, level: int) -> None:
        """Take over the sleep state: vLLM calls it with (asleep, level)."""
        self.sleep = {
            "awake": float(not asleep),
            "weights_offloaded": float(bool(asleep) and level == 1),
            "discard_all": float(bool(asleep) and level == 2),
        }

    # -- accumulating --------------------------------------------------------------------------------------------

    def add(self, name: str, amount: float | None) -> None:
        """Add to a counter; a negative difference, which vLLM has produced before, is taken as nothing."""
        if amount is not None:
            self.counters[name] = self.counters.get(name, 0) + max(0, amount)

    def add_to(self, family: str, key: str, amount: float = 1) -> None:
        """Add to one label value of a counter."""
        values = self.families.setdefault(family, {})
        values[key] = values.get(key, 0) + max(0, amount)

    def _speculative(self, spec: Any) -> None:
        self.add("spec_drafts", getattr(spec, "num_drafts", None))
        self.add("spec_draft_tokens", spec.num_draft_tokens)
        self.add("spec_accepted_tokens", spec.num_accepted_tokens)
        for position, accepted in enumerate(getattr(spec, "num_accepted_tokens_per_pos", ())):
            self.add_to("spec_accepted_per_position", str(position), accepted)

    def _evicted(self, event: Any) -> None:
        for name, values in (
            ("kv_block_lifetime", (event.lifetime_seconds,)),
            ("kv_block_idle_before_evict", (event.idle_seconds,)),
            ("kv_block_reuse_gap", event.reuse_gaps_seconds),
        ):
            for value in values:
                self.residency.setdefault(name, Accumulator(stats.QUEUE_BOUNDS)).observe(value)

    def _finished(self, f: Any) -> None:
        self.add_to("finished", str(f.finish_reason))
        self.e2e.observe(f.e2e_latency)
        self.queue.observe(max(0.0, f.queued_time))
        self.prefill.observe(max(0.0, f.prefill_time))
        self.decode.observe(f.decode_time)
        self.inference.observe(max(0.0, f.inference_time))
        self.prompt_length.observe(f.num_prompt_tokens)
        self.generation_length.observe(f.num_generation_tokens)
        mean = getattr(f, "mean_time_per_output_token", None)
        if mean is not None:
            self.time_per_output_token.observe(mean)
        if f.max_tokens_param:
            self.max_tokens.observe(f.max_tokens_param)
        preemptions = getattr(f, "num_preemptions", None)
        if preemptions is not None:
            self.preemptions_per_request.observe(preemptions)
        cached = getattr(f, "num_cached_tokens", None)
        if cached is not None:
            self.computed_length.observe(f.num_prompt_tokens - max(cached, 0))

    # -- reading -------------------------------------------------------------------------------------------------

    def snapshot(self, *, now: float, wall: float, busy_since: float | None, shared: dict[str, Any]) -> EngineStats:
        """Return all facts at this moment.

        `busy_since` is when the oldest work that is still unfinished arrived (monotonic), or None when there is none.
        `shared` holds facts that belong to the whole server and are shown with its first engine.
        """
        since = None
        if busy_since is not None:
            since = max(0.0, now - max(busy_since, self.progress_at or busy_since))
        oldest = self.oldest_waiting_arrival
        load, deferred = self.load, _deferred(self.latest)
        by_reason: dict[str, float] = {}
        if load.waiting is not None and deferred is not None:
            by_reason = {"capacity": load.waiting - deferred, "deferred": deferred}
        return EngineStats(
            model_name=self.model_name,
            engine=str(self.engine),
            running=load.running,
            waiting=load.waiting,
            waiting_by_reason=by_reason,
            kv_cache_usage=load.kv_cache_usage,
            lora_running=_capped(getattr(self.latest, "running_lora_adapters", None)),
            lora_waiting=_capped(getattr(self.latest, "waiting_lora_adapters", None)),
            oldest_waiting_seconds=max(0.0, wall - oldest) if oldest is not None else None,
            seconds_since_progress=since,
            sleep_state=self.sleep,
            step_tokens=self.step_tokens.snapshot(),
            time_to_first_token=self.ttft.snapshot(),
            inter_token_latency=self.steps.inter_token(),
            time_per_output_token=self.time_per_output_token.snapshot(),
            e2e_latency=self.e2e.snapshot(),
            queue_time=self.queue.snapshot(),
            prefill_time=self.prefill.snapshot(),
            decode_time=self.decode.snapshot(),
            inference_time=self.inference.snapshot(),
            decode_step_latency=self.steps.by_position(),
            prompt_length=self.prompt_length.snapshot(),
            generation_length=self.generation_length.snapshot(),
            max_tokens_param=self.max_tokens.snapshot(),
            n_param=self.n.snapshot(),
            preemptions_per_request=self.preemptions_per_request.snapshot(),
            prefill_computed_length=self.computed_length.snapshot(),
            prefix_cache_unit="tokens",
            **{name: accumulator.snapshot() for name, accumulator in self.residency.items()},  # type: ignore[arg-type]
            **self.counters,  # type: ignore[arg-type]  # names of counter fields only
            **{name: dict(values) for name, values in self.families.items()},  # type: ignore[arg-type]
            **self.static,
            **shared,
        )


def _deferred(latest: Any) -> int | None:
    """Return how many requests wait for something else than capacity; None where the version does not tell."""
    deferred: int | None = getattr(latest, "num_skipped_waiting_reqs", None)
    return deferred


def _capped(adapters: dict[str, int] | None) -> dict[str, float]:
    if not adapters:
        return {}
    return dict(sorted(adapters.items(), key=lambda item: -item[1])[:_LORA_CAP])
