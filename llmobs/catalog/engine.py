"""The contract, part 1: what vLLM does (`vllm_*`)."""

from __future__ import annotations

from llmobs.catalog.model import ENGINE, TARGET, Metric
from llmobs.snapshot import FAILURE_REASONS, OOM_KINDS, PHASES, TOKEN_BUCKETS

#: States of a target; exactly one is 1. `starting`: has not answered since llmobs watches it, within its start-up
#: budget. `unreachable`: cannot be read now. `dead`: answers, but its engine is gone. `stalled`: work is there, no
#: progress, health still good. `livelock`: requests are scheduled and preempted again and again without a token.
STATES = ("starting", "ready", "sleeping", "stalled", "livelock", "dead", "unreachable")

#: Why a target could not be read.
TARGET_ERRORS = (
    "dns", "refused", "timeout", "tls", "auth", "http", "too_large", "redirect", "parse", "empty", "network",
)  # fmt: skip

#: How an out-of-memory event was recognised.
OOM_EVIDENCE = ("in_process", "log", "cgroup", "memory_full")

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")


STATUS = (
    Metric(
        name="vllm_up", kind="gauge", unit="bool", labels=TARGET,
        help="1 if the last cycle read facts about at least one engine from this target, else 0.",
        meaning="0 means blind: every other series of the target is absent until it answers again.",
        source="result of the last cycle",
    ),
    Metric(
        name="vllm_info", kind="info", unit="info", labels=(*TARGET, "version", "source", "dialect", "simulated"),
        help="What is being watched: version of vLLM, where its facts come from (stats or metrics), and the dialect.",
        meaning="A change of `version` is a deployment. `simulated=\"true\"` is llmobs' own simulator.",
        source="GET /version and the page itself",
    ),
    Metric(
        name="vllm_engine_state", kind="gauge", unit="bool", labels=(*TARGET, "state"), values={"state": STATES},
        help="State of the target; exactly one of the states is 1.",
        meaning="`starting` is a model still loading; `unreachable` was up and is gone; `stalled` hangs with health 200.",
        source="answers of the last cycles",
    ),
    Metric(
        name="vllm_engine_state_age_seconds", kind="gauge", unit="seconds", labels=TARGET,
        help="Seconds since the target entered its current state.",
        meaning="With `starting`: how long loading takes already.",
        source="derived",
    ),
    Metric(
        name="vllm_target_error", kind="gauge", unit="bool", labels=(*TARGET, "reason"),
        values={"reason": TARGET_ERRORS},
        help="Why the target could not be read in the last cycle; all 0 when it could.",
        source="result of the last cycle",
    ),
    Metric(
        name="vllm_health_status", kind="gauge", unit="bool", labels=TARGET,
        help="1 if GET /health answered 200, 0 if it answered anything else; absent when it did not answer.",
        meaning="A hung engine answers 200 for ever: read it together with vllm_engine_stalled.",
        source="GET /health",
    ),
    Metric(
        name="vllm_engine_restarts_total", kind="counter", unit="restarts", labels=TARGET,
        help="Restarts of the server seen since llmobs watches it: its start time changed or its counters went back.",
        source="start time, instance name, counters",
    ),
    Metric(
        name="vllm_start_time_seconds", kind="gauge", unit="seconds", labels=TARGET,
        help="Unix time at which the serving process started.",
        source="process_start_time_seconds, or /stats",
    ),
    Metric(
        name="vllm_engine_stalled", kind="gauge", unit="bool", labels=ENGINE,
        help="1 if requests run or wait and no token or step came for the stall time, although the page still answers.",
        meaning="The engine hangs. /health does not show it. See the runbook before restarting: keep the evidence.",
        source="running, waiting, steps, generated tokens over time",
    ),
    Metric(
        name="vllm_engine_livelock", kind="gauge", unit="bool", labels=ENGINE,
        help="1 if requests are scheduled and preempted over the window without one generated token.",
        meaning="A request that never fits the KV cache is prefilled again and again; it needs another cure than a hang.",
        source="preemptions or prefix cache queries move, generated tokens do not",
    ),
    Metric(
        name="vllm_engine_seconds_since_progress", kind="gauge", unit="seconds", labels=ENGINE,
        help="Seconds since the last token or step while requests run or wait; absent when there is no work.",
        source="/stats: seconds_since_progress; else steps and tokens over time",
    ),
    Metric(
        name="vllm_sleep_state", kind="gauge", unit="bool", labels=(*ENGINE, "state"), fact="sleep_state",
        values={"state": ("awake", "weights_offloaded", "discard_all")},
        help="Sleep mode of the engine; exactly one of the states is 1.",
    ),
    Metric(
        name="vllm_config_info", kind="info", unit="info",
        labels=(*ENGINE, "block_size", "cache_dtype", "gpu_memory_utilization", "prefix_caching"),
        help="Settings of the engine that explain its numbers.",
        meaning="A change is a configuration change.",
        source="cache_config_info, or /stats",
    ),
)  # fmt: skip

QUEUE = (
    Metric(
        name="vllm_request_waiting_queue_length", kind="gauge", unit="requests", labels=ENGINE, fact="waiting",
        help="Requests waiting to be scheduled, deferred ones included.",
        meaning="The best load signal of a replica. Growing means requests arrive faster than they finish.",
    ),
    Metric(
        name="vllm_request_waiting_queue_length_peak", kind="gauge", unit="requests", labels=ENGINE,
        help="Largest vllm_request_waiting_queue_length seen during the peak interval, spikes between scrapes included.",
        source="maximum over the peak interval",
    ),
    Metric(
        name="vllm_request_waiting_by_reason", kind="gauge", unit="requests", labels=(*ENGINE, "reason"),
        fact="waiting_by_reason", values={"reason": ("capacity", "deferred")},
        help="Requests waiting, by what they wait for: room in the batch (capacity) or something else (deferred).",
        meaning="Deferred requests wait for a grammar, a LoRA slot or a KV transfer; more replicas do not help them.",
    ),
    Metric(
        name="vllm_num_running_requests", kind="gauge", unit="requests", labels=ENGINE, fact="running",
        help="Requests in the running batch.",
    ),
    Metric(
        name="vllm_num_running_requests_peak", kind="gauge", unit="requests", labels=ENGINE,
        help="Largest vllm_num_running_requests seen during the peak interval.",
        source="maximum over the peak interval",
    ),
    Metric(
        name="vllm_num_swapped_requests", kind="gauge", unit="requests", labels=ENGINE, fact="swapped",
        help="Requests swapped out to host memory (V0 engines only).",
    ),
    Metric(
        name="vllm_max_num_running_requests", kind="gauge", unit="requests", labels=ENGINE, fact="max_num_seqs",
        help="Configured maximum of running requests (max_num_seqs).",
        meaning="Running at this limit with a queue: more would run if it were higher and the KV cache has room.",
    ),
    Metric(
        name="vllm_max_num_batched_tokens", kind="gauge", unit="tokens", labels=ENGINE, fact="max_num_batched_tokens",
        help="Configured maximum of tokens in one engine step (max_num_batched_tokens).",
    ),
    Metric(
        name="vllm_max_model_len_tokens", kind="gauge", unit="tokens", labels=ENGINE, fact="max_model_len",
        help="Longest sequence the model accepts, prompt and output together (max_model_len).",
    ),
    Metric(
        name="vllm_request_oldest_waiting_seconds", kind="gauge", unit="seconds", labels=ENGINE,
        fact="oldest_waiting_seconds",
        help="Age of the request that has waited longest.",
    ),
    Metric(
        name="vllm_request_queue_drain_seconds", kind="gauge", unit="seconds", labels=ENGINE,
        help="Time in which the queue would be empty if nothing arrived: waiting / completions per second, over the window.",
        meaning="Absent when requests wait but none completes.",
        source="waiting ÷ (Δ finished ÷ Δ time)",
    ),
    Metric(
        name="vllm_request_admission_rejections_total", kind="counter", unit="requests",
        labels=(*ENGINE, "reason"), fact="admission_rejections", values={"reason": ADMISSION_REASONS},
        help="Requests refused because a queue limit was reached.",
    ),
    Metric(
        name="vllm_preemptions_total", kind="counter", unit="events", labels=ENGINE, fact="preemptions",
        help="Running requests thrown out of the batch because the KV cache was full.",
        meaning="Each one throws computed tokens away and computes them again.",
    ),
    Metric(
        name="vllm_preemptions_per_second", kind="gauge", unit="events per second", labels=ENGINE,
        help="Preemptions per second over the window.",
        source="Δ preemptions ÷ Δ time",
    ),
    Metric(
        name="vllm_engine_steps_total", kind="counter", unit="steps", labels=ENGINE,
        help="Engine steps that produced output: the heartbeat of the engine.",
        source="count of vllm_step_tokens",
    ),
    Metric(
        name="vllm_step_tokens", kind="histogram", unit="tokens", labels=ENGINE, fact="step_tokens",
        help="Tokens computed per engine step, prefill and decode together.",
    ),
    Metric(
        name="vllm_mean_batch_tokens", kind="gauge", unit="tokens", labels=ENGINE,
        help="Mean tokens per engine step over the window.",
        meaning="Small while requests wait: steps are limited by something else than compute.",
        source="Δ sum ÷ Δ count of vllm_step_tokens",
    ),
)  # fmt: skip

CACHE = (
    Metric(
        name="vllm_kv_cache_usage_ratio", kind="gauge", unit="ratio", labels=ENGINE, fact="kv_cache_usage",
        help="Used KV cache blocks / all KV cache blocks, 0 to 1.",
        meaning="Full is healthy as long as nothing waits and nothing is preempted.",
    ),
    Metric(
        name="vllm_kv_cache_usage_ratio_peak", kind="gauge", unit="ratio", labels=ENGINE,
        help="Largest vllm_kv_cache_usage_ratio seen during the peak interval.",
        source="maximum over the peak interval",
    ),
    Metric(
        name="vllm_kv_cache_free_ratio", kind="gauge", unit="ratio", labels=ENGINE,
        help="Free KV cache blocks / all KV cache blocks, 0 to 1. Not a hit rate.",
        meaning="One published guide calls this the cache hit rate; it is not.",
        source="1 − vllm_kv_cache_usage_ratio",
    ),
    Metric(
        name="vllm_kv_cache_capacity_tokens", kind="gauge", unit="tokens", labels=ENGINE, fact="kv_cache_tokens",
        help="Tokens the KV cache can hold.",
    ),
    Metric(
        name="vllm_kv_cache_capacity_blocks", kind="gauge", unit="blocks", labels=ENGINE, fact="kv_cache_blocks",
        help="Blocks in the KV cache.",
    ),
    Metric(
        name="vllm_kv_cache_capacity_bytes", kind="gauge", unit="bytes", labels=ENGINE, fact="kv_cache_bytes",
        help="Memory set aside for the KV cache on each worker's GPU.",
    ),
    Metric(
        name="vllm_kv_cache_fill_seconds", kind="gauge", unit="seconds", labels=ENGINE,
        help="Time in which the KV cache would be full at the growth of the window; absent when it does not grow.",
        meaning="What-if: how soon requests will be preempted if load keeps growing like this.",
        source="(1 − usage) ÷ (Δ usage ÷ Δ time)",
    ),
    Metric(
        name="vllm_cpu_kv_cache_usage_ratio", kind="gauge", unit="ratio", labels=ENGINE, fact="cpu_kv_cache_usage",
        help="Used blocks of the KV cache in host memory, 0 to 1 (V0 engines only).",
    ),
    Metric(
        name="vllm_gpu_cache_hit_rate", kind="gauge", unit="ratio", labels=ENGINE,
        help="Prefix cache hits / queries in tokens, local cache, over the window.",
        meaning="The share of prompt tokens that need not be computed. Falling: prompts no longer share a beginning.",
        source="Δ prefix hits ÷ Δ prefix queries",
    ),
    Metric(
        name="vllm_gpu_cache_hit_rate_since_start", kind="gauge", unit="ratio", labels=ENGINE,
        help="Prefix cache hits / queries since the engine started.",
        meaning="The only form that V0 engines publish.",
        source="prefix hits ÷ prefix queries, or vLLM's own gauge",
    ),
    Metric(
        name="vllm_rescheduled_cache_hit_rate", kind="gauge", unit="ratio", labels=ENGINE,
        help="Prefix cache hits / queries of requests scheduled again after a preemption, over the window.",
        meaning="Low: preempted requests find their blocks evicted and pay the whole prefill twice.",
        source="Δ preempted hits ÷ Δ preempted queries",
    ),
    Metric(
        name="vllm_external_cache_hit_rate", kind="gauge", unit="ratio", labels=ENGINE,
        help="Hits / queries in tokens of the external cache (KV connector), over the window.",
        source="Δ external hits ÷ Δ external queries",
    ),
    Metric(
        name="vllm_multimodal_cache_hit_rate", kind="gauge", unit="ratio", labels=ENGINE,
        help="Hits / queries in items of the multi-modal processor cache, over the window.",
        source="Δ mm hits ÷ Δ mm queries",
    ),
    Metric(
        name="vllm_prefix_cache_queries_total", kind="counter", unit="tokens", labels=ENGINE, fact="prefix_queries",
        help="Prompt tokens looked up in the local prefix cache.",
    ),
    Metric(
        name="vllm_prefix_cache_hits_total", kind="counter", unit="tokens", labels=ENGINE, fact="prefix_hits",
        help="Prompt tokens found in the local prefix cache.",
    ),
    Metric(
        name="vllm_prefix_cache_rescheduled_queries_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="prefix_preempted_queries",
        help="Tokens looked up in the local prefix cache by requests scheduled again after a preemption.",
    ),
    Metric(
        name="vllm_prefix_cache_rescheduled_hits_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="prefix_preempted_hits",
        help="Tokens found in the local prefix cache by requests scheduled again after a preemption.",
    ),
    Metric(
        name="vllm_external_cache_queries_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="external_queries", help="Prompt tokens looked up in the external cache (KV connector).",
    ),
    Metric(
        name="vllm_external_cache_hits_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="external_hits", help="Prompt tokens found in the external cache (KV connector).",
    ),
    Metric(
        name="vllm_multimodal_cache_queries_total", kind="counter", unit="items", labels=ENGINE,
        fact="mm_queries", help="Items looked up in the multi-modal processor cache.",
    ),
    Metric(
        name="vllm_multimodal_cache_hits_total", kind="counter", unit="items", labels=ENGINE,
        fact="mm_hits", help="Items found in the multi-modal processor cache.",
    ),
    Metric(
        name="vllm_kv_block_lifetime_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="kv_block_lifetime", help="Time from allocation to eviction of a sampled KV cache block.",
    ),
    Metric(
        name="vllm_kv_block_idle_before_evict_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="kv_block_idle_before_evict", help="Time from last use to eviction of a sampled KV cache block.",
    ),
    Metric(
        name="vllm_kv_block_reuse_gap_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="kv_block_reuse_gap", help="Time between two uses of a sampled KV cache block.",
    ),
    Metric(
        name="vllm_kv_transfer_failures_total", kind="counter", unit="failures", labels=(*ENGINE, "kind"),
        fact="kv_transfer_failures",
        help="Failed KV transfers and offloads, by connector and kind of failure.",
    ),
    Metric(
        name="vllm_kv_transfer_seconds", kind="histogram", unit="seconds", labels=ENGINE, fact="kv_transfer_time",
        help="Duration of KV transfers between engines.",
    ),
    Metric(
        name="vllm_kv_offload_bytes_total", kind="counter", unit="bytes", labels=(*ENGINE, "direction"),
        fact="kv_offload_bytes", values={"direction": ("load", "store")},
        help="Bytes moved between the KV cache and its offload store.",
    ),
    Metric(
        name="vllm_kv_offload_seconds_total", kind="counter", unit="seconds", labels=(*ENGINE, "direction"),
        fact="kv_offload_seconds", values={"direction": ("load", "store")},
        help="Time spent moving blocks between the KV cache and its offload store.",
    ),
)  # fmt: skip

TOKENS = (
    Metric(
        name="vllm_decode_tokens_per_second_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="generation_tokens",
        help="Generated tokens since the engine started. A counter: the name is historical, use rate() on it.",
        meaning="The twin of vllm_decode_tokens_total under the name that published runbooks use.",
    ),
    Metric(
        name="vllm_decode_tokens_total", kind="counter", unit="tokens", labels=ENGINE, fact="generation_tokens",
        help="Generated tokens, those of aborted requests included.",
    ),
    Metric(
        name="vllm_decode_throughput_tokens_per_second", kind="gauge", unit="tokens per second", labels=ENGINE,
        help="Generated tokens per second over the window.",
        source="Δ generated tokens ÷ Δ time",
    ),
    Metric(
        name="vllm_prompt_tokens_total", kind="counter", unit="tokens", labels=ENGINE, fact="prompt_tokens",
        help="Prompt tokens of scheduled sequences, cached and transferred ones included.",
    ),
    Metric(
        name="vllm_prompt_tokens_by_source_total", kind="counter", unit="tokens", labels=(*ENGINE, "source"),
        fact="prompt_tokens_by_source", values={"source": PROMPT_SOURCES},
        help="Prompt tokens by where they came from: computed here, found in the local cache, or transferred.",
    ),
    Metric(
        name="vllm_cached_tokens_by_tier_total", kind="counter", unit="tokens", labels=(*ENGINE, "tier"),
        fact="cached_tokens_by_tier", values={"tier": CACHE_TIERS},
        help="Prompt tokens found in a cache, by the tier that supplied them.",
    ),
    Metric(
        name="vllm_prefill_tokens_computed_total", kind="counter", unit="tokens", labels=ENGINE,
        help="Prompt tokens that had to be computed.",
        source="prompt tokens by source: local_compute; else prompt tokens − prefix hits − external hits",
    ),
    Metric(
        name="vllm_prefill_tokens_cached_total", kind="counter", unit="tokens", labels=ENGINE,
        help="Prompt tokens that came from a cache or another engine instead of being computed.",
        source="prompt tokens by source: local_cache_hit + external_kv_transfer; else prefix hits + external hits",
    ),
    Metric(
        name="vllm_prefill_throughput_tokens_per_second", kind="gauge", unit="tokens per second", labels=ENGINE,
        help="Computed prompt tokens per second over the window.",
        source="Δ computed prompt tokens ÷ Δ time",
    ),
    Metric(
        name="vllm_estimated_flops_total", kind="counter", unit="operations", labels=ENGINE, fact="flops",
        help="Estimated floating point operations per GPU (needs --enable-mfu-metrics).",
    ),
    Metric(
        name="vllm_estimated_read_bytes_total", kind="counter", unit="bytes", labels=ENGINE,
        fact="memory_read_bytes", help="Estimated bytes read from GPU memory (needs --enable-mfu-metrics).",
    ),
    Metric(
        name="vllm_estimated_written_bytes_total", kind="counter", unit="bytes", labels=ENGINE,
        fact="memory_written_bytes", help="Estimated bytes written to GPU memory (needs --enable-mfu-metrics).",
    ),
)  # fmt: skip

LATENCY = (
    Metric(
        name="vllm_phase_seconds_total", kind="counter", unit="seconds", labels=(*ENGINE, "phase"),
        values={"phase": PHASES},
        help="Time that finished requests spent waiting (queue), until their first token (prefill), and after it (decode).",
        meaning="Prefill grew: prompts or cache. Decode grew: model, batch or GPU. Queue grew: too few replicas.",
        source="sums of the queue, prefill and decode time histograms",
    ),
    Metric(
        name="vllm_request_overhead_ratio", kind="gauge", unit="ratio", labels=ENGINE,
        help="Share of end-to-end latency that lies in no phase, over the window: tokenising, IPC, detokenising, event loop.",
        meaning="High: the API server process lacks CPU. Neither the GPU nor the engine is slow then.",
        source="1 − Σ Δ seconds of all phases ÷ Δ seconds of the e2e latency histogram",
    ),
    Metric(
        name="vllm_phase_ratio", kind="gauge", unit="ratio", labels=(*ENGINE, "phase"), values={"phase": PHASES},
        help="Share of each phase in the time of the requests that finished during the window; the three sum to 1.",
        source="Δ seconds of the phase ÷ Σ Δ seconds of all phases",
    ),
    Metric(
        name="vllm_time_to_first_token_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="time_to_first_token", help="Time from arrival to the first token; aborted requests included.",
    ),
    Metric(
        name="vllm_inter_token_latency_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="inter_token_latency",
        help="Time between two outputs of a sequence; one observation per step, not per token.",
    ),
    Metric(
        name="vllm_time_per_output_token_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="time_per_output_token", help="Mean time per token after the first, one observation per sequence.",
    ),
    Metric(
        name="vllm_e2e_request_latency_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="e2e_latency", help="Time from arrival to the last token, finished sequences.",
    ),
    Metric(
        name="vllm_request_queue_time_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="queue_time", help="Time from entering the queue to being scheduled first, finished sequences.",
    ),
    Metric(
        name="vllm_request_prefill_time_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="prefill_time", help="Time from being scheduled first to the first token, finished sequences.",
    ),
    Metric(
        name="vllm_request_decode_time_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="decode_time", help="Time from the first to the last token, finished sequences.",
    ),
    Metric(
        name="vllm_request_inference_time_seconds", kind="histogram", unit="seconds", labels=ENGINE,
        fact="inference_time", help="Prefill and decode time together, finished sequences.",
    ),
    Metric(
        name="vllm_decode_step_latency_seconds", kind="histogram", unit="seconds", labels=(*ENGINE, "token_bucket"),
        fact="decode_step_latency", values={"token_bucket": TOKEN_BUCKETS},
        help="Time of one decode step by the position of its token in the output.",
        meaning="Growing with the position: attention over a long context. High at 1: the first step after prefill.",
    ),
    Metric(
        name="vllm_requests_prompt_tokens", kind="histogram", unit="tokens", labels=ENGINE, fact="prompt_length",
        help="Prompt length of finished sequences.",
    ),
    Metric(
        name="vllm_requests_generation_tokens", kind="histogram", unit="tokens", labels=ENGINE,
        fact="generation_length", help="Output length of finished sequences.",
    ),
    Metric(
        name="vllm_requests_max_tokens", kind="histogram", unit="tokens", labels=ENGINE, fact="max_tokens_param",
        help="The max_tokens parameter of finished sequences that set it.",
    ),
    Metric(
        name="vllm_requests_n", kind="histogram", unit="sequences", labels=ENGINE, fact="n_param",
        help="The n parameter of finished sequences.",
    ),
    Metric(
        name="vllm_requests_preemptions", kind="histogram", unit="events", labels=ENGINE,
        fact="preemptions_per_request", help="How often finished sequences were preempted.",
    ),
    Metric(
        name="vllm_requests_prefill_computed_tokens", kind="histogram", unit="tokens", labels=ENGINE,
        fact="prefill_computed_length", help="Prompt tokens computed, not cached, per finished sequence.",
    ),
)  # fmt: skip

REQUESTS = (
    Metric(
        name="vllm_request_finished_total", kind="counter", unit="requests", labels=(*ENGINE, "finished_reason"),
        fact="finished", values={"finished_reason": FINISH_REASONS},
        help="Sequences that left the engine by its own decision, by reason; abort and error are not successes.",
    ),
    Metric(
        name="vllm_requests_completed_total", kind="counter", unit="requests", labels=ENGINE, fact="completed",
        help="HTTP requests answered in full; with vllm_request_failed_total every request is counted exactly once.",
        source="/stats: completed",
    ),
    Metric(
        name="vllm_request_failed_total", kind="counter", unit="requests", labels=(*ENGINE, "reason"),
        values={"reason": FAILURE_REASONS},
        help="Requests that failed, by reason; a reason its source cannot know is absent.",
        meaning="oom and engine_dead are ours, abort and timeout are clients that gave up, the rest is refused work.",
        source="/stats: failed; else vLLM's own counters and what can be inferred with certainty",
    ),
    Metric(
        name="vllm_oom_total", kind="counter", unit="events", labels=(*TARGET, "kind"), values={"kind": OOM_KINDS},
        help="Out-of-memory events of the target, on the GPU (cuda) or the host; absent when nothing could tell.",
        source="failure journal, log, cgroup memory.events, or memory full when the process went",
    ),
    Metric(
        name="vllm_oom_evidence_total", kind="counter", unit="events", labels=(*TARGET, "evidence"),
        values={"evidence": OOM_EVIDENCE},
        help="How the out-of-memory events were recognised.",
        source="as vllm_oom_total",
    ),
    Metric(
        name="vllm_corrupted_requests_total", kind="counter", unit="requests", labels=ENGINE, fact="corrupted",
        help="Requests with NaN in their logits (needs VLLM_COMPUTE_NANS_IN_LOGITS=1).",
    ),
    Metric(
        name="vllm_prompts_near_limit_total", kind="counter", unit="requests", labels=ENGINE,
        fact="prompts_near_limit",
        help="Requests whose prompt took more than 90 % of the longest sequence the model accepts.",
    ),
    Metric(
        name="vllm_prompt_outliers_total", kind="counter", unit="requests", labels=ENGINE, fact="prompt_outliers",
        help="Requests whose prompt was far longer than their client's usual.",
        meaning="A client that repeats its system prompt again and again looks like this.",
    ),
    Metric(
        name="vllm_http_responses_total", kind="counter", unit="responses", labels=(*TARGET, "status"),
        help="Responses of the generation endpoints by status class; errors inside a stream are 2xx.",
        source="http_requests_total",
    ),
)  # fmt: skip

SPECULATION = (
    Metric(
        name="vllm_spec_decode_drafts_total", kind="counter", unit="drafts", labels=ENGINE, fact="spec_drafts",
        help="Drafts proposed by speculative decoding.",
    ),
    Metric(
        name="vllm_spec_decode_draft_tokens_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="spec_draft_tokens", help="Tokens proposed by speculative decoding.",
    ),
    Metric(
        name="vllm_spec_decode_accepted_tokens_total", kind="counter", unit="tokens", labels=ENGINE,
        fact="spec_accepted_tokens", help="Proposed tokens that were accepted.",
    ),
    Metric(
        name="vllm_spec_decode_accepted_tokens_per_position_total", kind="counter", unit="tokens",
        labels=(*ENGINE, "position"), fact="spec_accepted_per_position",
        help="Accepted tokens by their position in the draft.",
    ),
    Metric(
        name="vllm_spec_decode_acceptance_rate", kind="gauge", unit="ratio", labels=ENGINE,
        help="Accepted / proposed tokens over the window.",
        meaning="A drop means the draft model no longer fits the traffic.",
        source="Δ accepted ÷ Δ draft tokens",
    ),
    Metric(
        name="vllm_spec_decode_acceptance_rate_per_position", kind="gauge", unit="ratio",
        labels=(*ENGINE, "position"),
        help="Accepted tokens at this position of the draft / drafts, over the window.",
        source="Δ accepted at the position ÷ Δ drafts",
    ),
    Metric(
        name="vllm_spec_decode_mean_accepted_length", kind="gauge", unit="tokens", labels=ENGINE,
        help="Tokens gained per draft over the window, the target model's own token included.",
        source="1 + Δ accepted ÷ Δ drafts",
    ),
)  # fmt: skip

WORKERS = (
    Metric(
        name="vllm_host_memory_used_bytes", kind="gauge", unit="bytes", labels=TARGET,
        help="Host memory that vLLM's cgroup uses and cannot give back: memory.current without inactive file pages.",
        meaning="Near vllm_host_memory_limit_bytes the kernel kills the process.",
        source="cgroup memory.current and memory.stat, as kubelet computes the working set",
    ),
    Metric(
        name="vllm_host_memory_limit_bytes", kind="gauge", unit="bytes", labels=TARGET,
        help="Memory limit of vLLM's cgroup; absent when it has none.", source="cgroup memory.max",
    ),
    Metric(
        name="vllm_lora_running_requests", kind="gauge", unit="requests", labels=(*ENGINE, "adapter"),
        fact="lora_running", help="Running requests of a LoRA adapter (adapters beyond the label cap are left out).",
    ),
    Metric(
        name="vllm_lora_waiting_requests", kind="gauge", unit="requests", labels=(*ENGINE, "adapter"),
        fact="lora_waiting", help="Waiting requests of a LoRA adapter (adapters beyond the label cap are left out).",
    ),
    Metric(
        name="vllm_worker_memory_allocated_bytes", kind="gauge", unit="bytes", labels=(*ENGINE, "rank"),
        fact="worker_memory_allocated", help="GPU memory that PyTorch's allocator has handed out, by worker rank.",
    ),
    Metric(
        name="vllm_worker_memory_reserved_bytes", kind="gauge", unit="bytes", labels=(*ENGINE, "rank"),
        fact="worker_memory_reserved", help="GPU memory that PyTorch's allocator holds, by worker rank.",
        meaning="Reserved growing while allocated does not is the classic slow leak.",
    ),
)  # fmt: skip

JOINED = (
    Metric(
        name="vllm_tokens_per_joule", kind="gauge", unit="tokens per joule", labels=TARGET,
        help="Prompt tokens computed plus tokens generated per joule used by the target's GPUs, over the window.",
        source="(Δ computed prompt tokens + Δ generated tokens) ÷ Δ energy of the watched GPUs",
    ),
    Metric(
        name="vllm_gpu_idle_while_waiting_seconds_total", kind="counter", unit="seconds", labels=TARGET,
        help="Time in which requests waited while every GPU of the target was below 5 % utilisation.",
        meaning="The scheduler, the CPU or a hang holds the work back, not the GPU.",
        source="cycle time, added while waiting > 0 and utilisation < 0.05",
    ),
    Metric(
        name="vllm_kv_cache_share_of_gpu_memory_ratio", kind="gauge", unit="ratio", labels=TARGET,
        help="Memory set aside for the KV cache / memory of the GPU.",
        source="kv_cache_bytes ÷ memory_total_bytes; one engine, GPUs of one size",
    ),
)  # fmt: skip

ENGINE_METRICS = (*STATUS, *QUEUE, *CACHE, *TOKENS, *LATENCY, *REQUESTS, *SPECULATION, *WORKERS, *JOINED)
