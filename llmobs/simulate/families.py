# ruff: noqa: E501 (sentences as data: one family a line)
"""What vLLM's `/metrics` page holds in each version, as data.

This table is the simulator's own and deliberately not derived from `llmobs.engine.dialect`, which reads such pages:
a mistake in one of them shows as a difference between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, int, int]
_END: Version = (999, 0, 0)


@dataclass(frozen=True, slots=True)
class Family:
    """One family of the page. `value` names an `EngineStats` field, or one of the values `render` computes.

    `v0` and `v1` are the versions (first, last) in which each engine generation shows it; None means never. `by` is
    the label that splits it. `per_engine` is False where vLLM leaves the `engine` label out. `when` names a fact that
    must be there (features that are switched on), `scale` "blocks" divides tokens by the block size.
    """

    name: str
    kind: str
    help: str
    value: str
    v1: tuple[Version, Version] | None
    v0: tuple[Version, Version] | None = None
    by: str | None = None
    key: str | None = None
    bounds: str = ""
    per_engine: bool = True
    when: str = ""
    scale: str = ""
    pid_until: Version | None = None  # in multi-process mode one series per process up to this version


def version_of(text: str) -> Version:
    """Return "0.8.5" or "0.8" as numbers."""
    a, b, c = (*map(int, text.split(".")), 0, 0)[:3]
    return a, b, c


def _since(first: str, last: str = "") -> tuple[Version, Version]:
    return version_of(first), version_of(last) if last else _END


_ALL = ("0.5", "0.11.0")

_G, _C, _H = "gauge", "counter", "histogram"

#: In the order of the page.
FAMILIES: tuple[Family, ...] = (
    Family("estimated_flops_per_gpu", _C, "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).", "flops", _since("0.17.0")),
    Family("estimated_read_bytes_per_gpu", _C, "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).", "memory_read_bytes", _since("0.17.0")),
    Family("estimated_write_bytes_per_gpu", _C, "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).", "memory_written_bytes", _since("0.17.0")),
    Family("num_requests_running", _G, "Number of requests in model execution batches.", "running", _since("0.7.2"), _since(*_ALL), pid_until=(0, 9, 0)),
    Family("num_requests_swapped", _G, "Number of requests swapped to CPU.", "zero", None, _since("0.5", "0.8.2")),
    Family("num_requests_waiting", _G, "Number of requests waiting to be processed.", "waiting", _since("0.7.2"), _since(*_ALL), pid_until=(0, 9, 0)),
    Family("num_requests_waiting_by_reason", _G, "Number of waiting requests by reason. Sum of all reasons equals vllm:num_requests_waiting.", "waiting_by_reason", _since("0.20"), by="reason"),
    Family("engine_sleep_state", _G, "Engine sleep state; awake = 1 means engine is awake.", "sleep_state", _since("0.11.1"), by="sleep_state"),
    Family("kv_cache_usage_perc", _G, "KV-cache usage. 1 means 100 percent usage.", "kv_cache_usage", _since("0.9.2"), pid_until=(0, 11, 0)),
    Family("gpu_cache_usage_perc", _G, "GPU KV-cache usage. 1 means 100 percent usage.", "kv_cache_usage", _since("0.7.2", "0.10.2"), _since(*_ALL), pid_until=(0, 9, 0)),
    Family("cpu_cache_usage_perc", _G, "CPU KV-cache usage. 1 means 100 percent usage.", "zero", None, _since("0.5", "0.8.2")),
    Family("cpu_prefix_cache_hit_rate", _G, "CPU prefix cache block hit rate.", "minus_one", None, _since("0.5.5", "0.8.2")),
    Family("gpu_prefix_cache_hit_rate", _G, "GPU prefix cache block hit rate.", "lifetime_hit_rate", None, _since("0.5.5", "0.8.2")),
    Family("gpu_prefix_cache_queries", _C, "GPU prefix cache queries, in terms of number of queried blocks.", "prefix_queries", _since("0.7.3", "0.8.5"), scale="blocks"),
    Family("gpu_prefix_cache_hits", _C, "GPU prefix cache hits, in terms of number of cached blocks.", "prefix_hits", _since("0.7.3", "0.8.5"), scale="blocks"),
    Family("gpu_prefix_cache_queries", _C, "GPU prefix cache queries, in terms of number of queried tokens.", "prefix_queries", _since("0.9.0", "0.10.2")),
    Family("gpu_prefix_cache_hits", _C, "GPU prefix cache hits, in terms of number of cached tokens.", "prefix_hits", _since("0.9.0", "0.10.2")),
    Family("prefix_cache_queries", _C, "Prefix cache queries, in terms of number of queried tokens.", "prefix_queries", _since("0.9.2")),
    Family("prefix_cache_hits", _C, "Prefix cache hits, in terms of number of cached tokens.", "prefix_hits", _since("0.9.2")),
    Family("external_prefix_cache_queries", _C, "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.", "external_queries", _since("0.11.1")),
    Family("external_prefix_cache_hits", _C, "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.", "external_hits", _since("0.11.1")),
    Family("mm_cache_queries", _C, "Multi-modal cache queries, in terms of number of queried items.", "mm_queries", _since("0.11.1")),
    Family("mm_cache_hits", _C, "Multi-modal cache hits, in terms of number of cached items.", "mm_hits", _since("0.11.1")),
    Family("num_preemptions", _C, "Cumulative number of preemption from the engine.", "preemptions", _since("0.8"), _since(*_ALL)),
    Family("prompt_tokens", _C, "Number of prefill tokens processed.", "prompt_tokens", _since("0.7.2"), _since(*_ALL)),
    Family("prompt_tokens_by_source", _C, "Number of prompt tokens by source.", "prompt_tokens_by_source", _since("0.16"), by="source"),
    Family("prompt_tokens_cached", _C, "Number of cached prompt tokens (local + external).", "prompt_tokens_cached", _since("0.16")),
    Family("prompt_tokens_recomputed", _C, "Number of cached tokens recomputed for forward pass.", "zero", _since("0.16", "0.19.0")),
    Family("prompt_tokens_cached_by_source", _C, "Prefix-cache hit tokens by the cache tier that supplied them.", "cached_tokens_by_tier", _since("0.32"), by="source"),
    Family("generation_tokens", _C, "Number of generation tokens processed.", "generation_tokens", _since("0.7.2"), _since(*_ALL)),
    Family("tokens", _C, "Number of prefill plus generation tokens processed.", "zero", None, _since("0.6.4", "0.7.3")),
    Family("request_success", _C, "Count of successfully processed requests.", "finished", _since("0.7.2"), _since(*_ALL), by="finished_reason"),
    Family("corrupted_requests", _C, "Corrupted requests, in terms of total number of requests with NaNs in logits.", "corrupted", _since("0.11.1"), when="corrupted"),
    Family("admission_rejections", _C, "Number of admission attempts rejected by a queue limit, by reason.", "admission_rejections", _since("0.32"), by="reason", per_engine=False),
    Family("request_prompt_tokens", _H, "Number of prefill tokens processed.", "prompt_length", _since("0.7.2"), _since(*_ALL)),
    Family("request_generation_tokens", _H, "Number of generation tokens processed.", "generation_length", _since("0.7.2"), _since(*_ALL)),
    Family("iteration_tokens_total", _H, "Histogram of number of tokens per engine_step.", "step_tokens", _since("0.7.3"), _since("0.6.4", "0.11.0"), bounds="steps"),
    Family("request_max_num_generation_tokens", _H, "Histogram of maximum number of requested generation tokens.", "generation_length", _since("0.8"), _since("0.6.4", "0.11.0")),
    Family("request_params_n", _H, "Histogram of the n request parameter.", "n_param", _since("0.8"), _since(*_ALL)),
    Family("request_params_best_of", _H, "Histogram of the best_of request parameter.", "n_param", None, _since("0.5", "0.6.2")),
    Family("request_params_max_tokens", _H, "Histogram of the max_tokens request parameter.", "max_tokens_param", _since("0.8"), _since("0.6.4", "0.11.0")),
    Family("time_to_first_token_seconds", _H, "Histogram of time to first token in seconds.", "time_to_first_token", _since("0.7.2"), _since(*_ALL), bounds="ttft"),
    Family("time_per_output_token_seconds", _H, "Histogram of time per output token in seconds.", "inter_token_latency", _since("0.7.2", "0.11.2"), _since(*_ALL), bounds="itl"),
    Family("inter_token_latency_seconds", _H, "Histogram of inter-token latency in seconds.", "inter_token_latency", _since("0.10.2"), _since("0.10.2", "0.11.0"), bounds="itl"),
    Family("request_time_per_output_token_seconds", _H, "Histogram of time_per_output_token_seconds per request.", "time_per_output_token", _since("0.11.0"), bounds="itl"),
    Family("e2e_request_latency_seconds", _H, "Histogram of e2e request latency in seconds.", "e2e_latency", _since("0.7.3"), _since(*_ALL), bounds="latency"),
    Family("request_queue_time_seconds", _H, "Histogram of time spent in WAITING phase for request.", "queue_time", _since("0.7.3"), _since("0.6.4", "0.11.0"), bounds="latency"),
    Family("request_inference_time_seconds", _H, "Histogram of time spent in RUNNING phase for request.", "inference_time", _since("0.7.3"), _since("0.6.4", "0.11.0"), bounds="latency"),
    Family("request_prefill_time_seconds", _H, "Histogram of time spent in PREFILL phase for request.", "prefill_time", _since("0.7.3"), _since("0.6.4", "0.11.0"), bounds="latency"),
    Family("request_decode_time_seconds", _H, "Histogram of time spent in DECODE phase for request.", "decode_time", _since("0.7.3"), _since("0.6.4", "0.11.0"), bounds="latency"),
    Family("time_in_queue_requests", _H, "Histogram of time the request spent in the queue in seconds.", "queue_time", None, _since("0.6.4", "0.8.2"), bounds="latency"),
    Family("request_num_preemptions", _H, "Histogram of the number of times a request was preempted.", "preemptions_per_request", _since("0.30")),
    Family("request_prefill_kv_computed_tokens", _H, "Histogram of new KV tokens computed during prefill (excluding cached tokens).", "prefill_computed_length", _since("0.13")),
    Family("kv_block_lifetime_seconds", _H, "Histogram of KV cache block lifetime from allocation to eviction.", "kv_block_lifetime", _since("0.12"), when="kv_block_lifetime"),
    Family("kv_block_idle_before_evict_seconds", _H, "Histogram of idle time before KV cache block eviction.", "kv_block_idle_before_evict", _since("0.12"), when="kv_block_lifetime"),
    Family("kv_block_reuse_gap_seconds", _H, "Histogram of time gaps between consecutive KV cache block accesses.", "kv_block_reuse_gap", _since("0.12"), when="kv_block_lifetime"),
    Family("avg_prompt_throughput_toks_per_s", _G, "Average prefill throughput in tokens/s.", "prompt_rate", None, _since("0.5", "0.6.6")),
    Family("avg_generation_throughput_toks_per_s", _G, "Average generation throughput in tokens/s.", "generation_rate", None, _since("0.5", "0.6.6")),
    Family("spec_decode_draft_acceptance_rate", _G, "Speulative token acceptance rate.", "acceptance_rate", None, _since("0.5.3", "0.9.2"), when="spec_drafts"),
    Family("spec_decode_efficiency", _G, "Speculative decoding system efficiency.", "spec_efficiency", None, _since("0.5.3", "0.9.2"), when="spec_drafts"),
    Family("spec_decode_num_emitted_tokens", _C, "Number of emitted tokens.", "spec_emitted", None, _since("0.5.3", "0.9.2"), when="spec_drafts"),
    Family("spec_decode_num_drafts", _C, "Number of spec decoding drafts.", "spec_drafts", _since("0.8.5"), when="spec_drafts"),
    Family("spec_decode_num_draft_tokens", _C, "Number of draft tokens.", "spec_draft_tokens", _since("0.8.3"), _since("0.5.3", "0.9.2"), when="spec_drafts"),
    Family("spec_decode_num_accepted_tokens", _C, "Number of accepted tokens.", "spec_accepted_tokens", _since("0.8.3"), _since("0.5.3", "0.9.2"), when="spec_drafts"),
    Family("spec_decode_num_accepted_tokens_per_pos", _C, "Accepted tokens per draft position.", "spec_accepted_per_position", _since("0.8.5"), by="position", when="spec_drafts"),
    Family("nixl_xfer_time_seconds", _H, "Histogram of transfer duration for NIXL KV Cache transfers.", "kv_transfer_time", _since("0.11.1"), when="kv_transfer_time"),
    Family("nixl_num_failed_transfers", _C, "Number of failed NIXL KV Cache transfers.", "kv_transfer_failures", _since("0.11.1"), key="nixl_transfer", when="kv_transfer_time"),
    Family("kv_offload_load_bytes", _C, "Bytes loaded from the offload store.", "kv_offload_bytes", _since("0.24"), key="load", when="kv_transfer_time"),
    Family("kv_offload_load_time", _C, "Seconds spent loading from the offload store.", "kv_offload_seconds", _since("0.24"), key="load", when="kv_transfer_time"),
    Family("kv_offload_store_bytes", _C, "Bytes stored to the offload store.", "kv_offload_bytes", _since("0.24"), key="store", when="kv_transfer_time"),
    Family("kv_offload_store_time", _C, "Seconds spent storing to the offload store.", "kv_offload_seconds", _since("0.24"), key="store", when="kv_transfer_time"),
)  # fmt: skip
