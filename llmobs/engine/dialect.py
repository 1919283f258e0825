"""What vLLM calls things, as data: every family from 0.5 to 0.33 → the fact of `EngineStats` it feeds.

A family is named without its prefix: ``vllm:``, Ray's rewritten ``vllm_`` and its ``ray_`` in front all mean the same,
and a counter is found with and without ``_total``. Several families may feed one fact; the lower `rank` wins, so that
the versions that publish an old and a new name at once are read once. `merge` says what to do with several series of
one fact of one engine (the `pid` label of multi-process mode): every process repeats the scheduler's number, at
different ages, so gauges take the maximum; counters are shares, so they add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmobs.snapshot import FACTS


@dataclass(frozen=True, slots=True)
class Family:
    """One family of vLLM's page and the fact it feeds.

    `label` names the label whose value becomes the key of a fact that is split by something; `key` is a fixed key for
    families that are one part of such a fact. `scale` converts to the fact's unit. `unit_of` marks the two families
    whose unit changed with the version (see `llmobs.engine.page`).
    """

    name: str
    fact: str
    label: str | None = None
    key: str | None = None
    rank: int = 0
    scale: float = 1.0

    @property
    def kind(self) -> str:
        """Kind of the fact: gauge, counter or histogram."""
        return FACTS[self.fact].kind

    @property
    def merge(self) -> str:
        """How several series of one engine become one value: "max" for gauges, "sum" otherwise."""
        return "max" if self.kind == "gauge" else "sum"


FAMILIES: tuple[Family, ...] = (
    # Scheduler
    Family("num_requests_running", "running"),
    Family("num_requests_waiting", "waiting"),
    Family("num_requests_waiting_by_reason", "waiting_by_reason", label="reason"),
    Family("num_requests_swapped", "swapped"),
    Family("engine_sleep_state", "sleep_state", label="sleep_state"),
    Family("num_preemptions", "preemptions"),
    Family("admission_rejections", "admission_rejections", label="reason"),
    Family("iteration_tokens_total", "step_tokens"),
    # KV cache and prefix cache
    Family("kv_cache_usage_perc", "kv_cache_usage"),
    Family("gpu_cache_usage_perc", "kv_cache_usage", rank=1),
    Family("cpu_cache_usage_perc", "cpu_kv_cache_usage"),
    Family("gpu_prefix_cache_hit_rate", "prefix_hit_rate_lifetime"),
    Family("prefix_cache_queries", "prefix_queries"),
    Family("prefix_cache_hits", "prefix_hits"),
    Family("gpu_prefix_cache_queries", "prefix_queries", rank=1),
    Family("gpu_prefix_cache_hits", "prefix_hits", rank=1),
    Family("external_prefix_cache_queries", "external_queries"),
    Family("external_prefix_cache_hits", "external_hits"),
    Family("mm_cache_queries", "mm_queries"),
    Family("mm_cache_hits", "mm_hits"),
    Family("kv_block_lifetime_seconds", "kv_block_lifetime"),
    Family("kv_block_idle_before_evict_seconds", "kv_block_idle_before_evict"),
    Family("kv_block_reuse_gap_seconds", "kv_block_reuse_gap"),
    # KV transfer and offload
    Family("nixl_num_failed_transfers", "kv_transfer_failures", key="nixl_transfer"),
    Family("nixl_num_failed_notifications", "kv_transfer_failures", key="nixl_notification"),
    Family("nixl_num_kv_expired_reqs", "kv_transfer_failures", key="nixl_expired"),
    Family("mooncake_num_failed_transfers", "kv_transfer_failures", key="mooncake_transfer"),
    Family("mooncake_num_failed_recvs", "kv_transfer_failures", key="mooncake_receive"),
    Family("mooncake_num_kv_expired_reqs", "kv_transfer_failures", key="mooncake_expired"),
    Family("hf3fs_num_failed_load", "kv_transfer_failures", key="hf3fs_load"),
    Family("hf3fs_num_failed_save", "kv_transfer_failures", key="hf3fs_save"),
    Family("umbp_transfer_failed", "kv_transfer_failures", key="umbp_transfer"),
    Family("kv_offload_allocation_failure", "kv_transfer_failures", key="offload_allocation"),
    Family("kv_offload_tiering_promotion_job_failures", "kv_transfer_failures", key="offload_promotion"),
    Family("kv_offload_tiering_cascade_job_failures", "kv_transfer_failures", key="offload_cascade"),
    Family("nixl_xfer_time_seconds", "kv_transfer_time"),
    Family("mooncake_xfer_time_seconds", "kv_transfer_time", rank=1),
    Family("kv_offload_load_bytes", "kv_offload_bytes", key="load"),
    Family("kv_offload_store_bytes", "kv_offload_bytes", key="store"),
    Family("kv_offload_load_time", "kv_offload_seconds", key="load"),
    Family("kv_offload_store_time", "kv_offload_seconds", key="store"),
    # Tokens
    Family("prompt_tokens", "prompt_tokens"),
    Family("prompt_tokens_by_source", "prompt_tokens_by_source", label="source"),
    Family("prompt_tokens_cached_by_source", "cached_tokens_by_tier", label="source"),
    Family("generation_tokens", "generation_tokens"),
    # Requests
    Family("request_success", "finished", label="finished_reason"),
    Family("corrupted_requests", "corrupted"),
    Family("time_to_first_token_seconds", "time_to_first_token"),
    Family("inter_token_latency_seconds", "inter_token_latency"),
    Family("time_per_output_token_seconds", "inter_token_latency", rank=1),
    Family("request_time_per_output_token_seconds", "time_per_output_token"),
    Family("e2e_request_latency_seconds", "e2e_latency"),
    Family("request_queue_time_seconds", "queue_time"),
    Family("time_in_queue_requests", "queue_time", rank=1),
    Family("request_prefill_time_seconds", "prefill_time"),
    Family("request_decode_time_seconds", "decode_time"),
    Family("request_inference_time_seconds", "inference_time"),
    Family("request_prompt_tokens", "prompt_length"),
    Family("request_generation_tokens", "generation_length"),
    Family("request_params_max_tokens", "max_tokens_param"),
    Family("request_params_n", "n_param"),
    Family("request_num_preemptions", "preemptions_per_request"),
    Family("request_prefill_kv_computed_tokens", "prefill_computed_length"),
    # Speculative decoding
    Family("spec_decode_num_drafts", "spec_drafts"),
    Family("spec_decode_num_draft_tokens", "spec_draft_tokens"),
    Family("spec_decode_num_accepted_tokens", "spec_accepted_tokens"),
    Family("spec_decode_num_accepted_tokens_per_pos", "spec_accepted_per_position", label="position"),
    # Model cost
    Family("estimated_flops_per_gpu", "flops"),
    Family("estimated_read_bytes_per_gpu", "memory_read_bytes"),
    Family("estimated_write_bytes_per_gpu", "memory_written_bytes"),
)

#: Families that are known and deliberately not part of the contract, so that they do not count as unmapped: they
#: repeat another one, have no meaning an operator acts on, or are covered by a sum above. A trailing ``*`` is a prefix.
UNUSED: tuple[str, ...] = (
    "avg_generation_throughput_toks_per_s",
    "avg_prompt_throughput_toks_per_s",
    "cache_config_info",  # read separately, as settings
    "cpu_prefix_cache_hit_rate",
    "diffusion_*",
    "hf3fs_*",
    "hisparse_*",
    "kv_offload_*",
    "lora_requests_info",  # a timestamp as value, comma-joined adapters as label: no count in it
    "model_execute_time_milliseconds",
    "model_forward_time_milliseconds",
    "mooncake_*",
    "nixl_*",
    "num_requests_kv_fetch_by_stage",
    "prompt_tokens_cached",  # the sum of two of prompt_tokens_by_source
    "prompt_tokens_recomputed",
    "request_max_num_generation_tokens",
    "request_params_best_of",
    "rl_weight_update_*",
    "simple_kv_offload_*",
    "sleep_mode_*",
    "spec_decode_draft_acceptance_rate",  # V0, cumulative: the counters say it better
    "spec_decode_efficiency",
    "spec_decode_num_emitted_tokens",
    "tokens",
    "tool_call_parser_invocations",
    "umbp_*",
    "watermark_requests",
    "websocket_*",
)

#: Settings of `cache_config_info` that are shown, by the name of their label in the contract.
CONFIG_LABELS = {
    "block_size": "block_size",
    "cache_dtype": "cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enable_prefix_caching": "prefix_caching",
}

#: Handlers of `http_requests_total` that count as generation endpoints.
API_HANDLERS = ("/v1/", "/v2/", "/inference/", "/generate", "/invocations", "/pooling", "/classify", "/score")
