"""Thresholds that published runbooks use, with their numbers."""

from __future__ import annotations

from llmobs.alerts.model import MODEL, REPLICA, TARGET, Alert, Knob
from llmobs.alerts.rules.common import FULL, GPU_FAULT, OUTAGE, of_target

_MIN_REQUESTS = Knob(
    value=50, unit="requests in 5 minutes", why="a p95 of fewer requests is the luck of two or three of them"
)
_P95 = (
    "histogram_quantile(0.95, sum by ($model, le) (rate({0}_bucket[5m]))) > $threshold\n"
    "and on ($model) sum by ($model) (increase({0}_count[5m])) >= $min_requests"
)

PUBLISHED = (
    Alert(
        name="VllmOutOfMemory", group="published", scope=TARGET, severity="critical", for_="10s",
        question="Did anything run out of memory?",
        expr=of_target(
            "sum by ($joined) (increase(vllm_oom_total[10m]) > 0 or\n"
            "(vllm_oom_total unless vllm_oom_total offset 10m) and on ($host) time() - process_start_time_seconds > $watched)"
        ) + ' > 0\nor\nsum by ($target) (increase(vllm_request_failed_total{reason="oom"}[10m])) > 0',
        params={"watched": Knob(value=600, unit="seconds", scales=True,
                                why="a counter that is born above 0 is news only when the sidecar watched before")},
        summary="{{ $labels.target }} ({{ $labels.model_name }}) ran out of memory",
        impact="Requests failed; usually the whole engine goes with them and everything in flight is lost.",
        causes=("prompts or batches larger than the memory that was left: --gpu-memory-utilization too high",
                "another process took GPU memory", "the host or container memory limit (kind host)",
                "slow growth over days: see GpuMemoryCreep"),
        first="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
        stop="memory", prevent=("memory", "kv", "seqs"), inhibited_by=GPU_FAULT, dashboard="llmobs-gpu",
        metric="vllm_oom_total",
        confirm=("vllm_oom_total", "vllm_oom_evidence_total", 'vllm_request_failed_total{reason="oom"}',
                 "nvidia_gpu_memory_free_bytes"),
        tune="Do not. Published guides roll a release back at more than 3 a minute; see CanaryOutOfMemory.",
        trace='{ status = error && span.error.type = "oom" }',
    ),
    Alert(
        name="VllmQueueLong", group="published", scope=REPLICA, severity="warning", for_="1m", keep_firing_for="2m",
        question="Are requests piling up in front of a replica?",
        expr="max by ($replica) (vllm_request_waiting_queue_length) > $threshold",
        threshold=Knob(value=10, unit="requests", why="published guides: above 10 for a minute; stop-gap actions from 50; autoscale at 5"),
        metric="vllm_request_waiting_queue_length",
        summary="{{ $value | humanize }} requests wait in front of {{ $labels.target }} ({{ $labels.model_name }})",
        impact="Time to first token grows by the time in the queue.",
        causes=("more traffic than the replicas carry", "a replica hung or down, so that this one gets its share",
                "the KV cache is full: fewer requests fit", "requests wait for a grammar or LoRA (reason deferred)"),
        first="kubectl top pods -l app=vllm; kubectl get pods -l app=vllm",
        stop="overload", prevent=("seqs", "kv", "queue"), inhibited_by=(*OUTAGE, *FULL, "VllmQueueGrowing"),
        dashboard="llmobs-scheduling",
        confirm=("vllm_request_waiting_queue_length", "vllm_request_waiting_by_reason", "vllm_request_queue_drain_seconds"),
        tune="In proportion to --max-num-seqs: a queue of 10 is nothing for a replica that finishes 20 a second.",
    ),
    Alert(
        name="VllmKVCacheHigh", group="published", scope=REPLICA, severity="warning", for_="30s", keep_firing_for="2m",
        question="Is the KV cache close to full?",
        expr="max by ($replica) (vllm_kv_cache_usage_ratio) > $threshold",
        threshold=Knob(value=0.85, unit="ratio", why="published guides: above 0.85 for 30 s; swings between 0.92 and 0.98 go with latency spikes"),
        metric="vllm_kv_cache_usage_ratio",
        summary="KV cache of {{ $labels.target }} ({{ $labels.model_name }}) is {{ $value | humanizePercentage }} full",
        impact="None yet. From 100 % on requests wait or are preempted and computed twice.",
        causes=("more or longer requests at once", "uneven routing: one replica hot, the others cool",
                "--max-model-len or --max-num-seqs larger than the cache carries"),
        first="curl -s http://POD:8000/metrics | grep kv_cache_usage",
        stop="overload", prevent=("kv", "seqs"), inhibited_by=(*OUTAGE, *FULL), dashboard="llmobs-cache",
        confirm=("vllm_kv_cache_usage_ratio", "vllm_kv_cache_fill_seconds", "vllm_kv_cache_usage_ratio_peak"),
        tune="A full cache without waiting and preemptions is healthy: raise it to 0.95 if yours runs full by design.",
    ),
    Alert(
        name="VllmKVCacheExhausted", group="published", scope=REPLICA, severity="critical", for_="2m", keep_firing_for="2m",
        question="Is the KV cache full and do requests suffer from it?",
        expr="max by ($replica) (vllm_kv_cache_usage_ratio_peak) > $threshold\n"
             "and on ($replica) (max by ($replica) (vllm_request_waiting_queue_length_peak) > 0\n"
             "or max by ($replica) (vllm_preemptions_per_second) > 0)",
        threshold=Knob(value=0.95, unit="ratio", why="above it the next long prompt does not fit (the peak of the last minute, because preemption frees "
                                                     "blocks at once); alone it is healthy, so it "
                                                     "counts only together with waiting or preemptions"),
        metric="vllm_kv_cache_usage_ratio",
        summary="KV cache of {{ $labels.target }} ({{ $labels.model_name }}) is exhausted ({{ $value | humanizePercentage }}) and requests wait or are preempted",
        impact="Latency grows without bound; preempted requests pay their prefill twice.",
        causes=("too many concurrent requests for the memory", "prompts or outputs became longer", "a replica less than usual"),
        first="kubectl get pods -l app=vllm",
        stop="overload", prevent=("kv", "seqs", "memory"), inhibited_by=OUTAGE, dashboard="llmobs-cache",
        confirm=("vllm_kv_cache_usage_ratio", "vllm_preemptions_per_second", "vllm_request_waiting_queue_length"),
        tune="Lengthen `for` for batch workloads that run full on purpose, or make it a warning for their model.",
    ),
    Alert(
        name="VllmTokensDropped", group="published", scope=MODEL, severity="warning", for_="1m", keep_firing_for="2m",
        question="Do we generate far fewer tokens than five minutes ago although the load is still there?",
        expr="1 - model:vllm_decode_tokens:rate2m / (model:vllm_decode_tokens:rate2m offset 5m > 0) > $threshold\n"
             "and on ($model) model:vllm_requests_in_system:avg2m >= 0.9 * (model:vllm_requests_in_system:avg2m offset 5m)\n"
             "and on ($model) model:vllm_requests_in_system:avg2m >= $min_requests\n"
             # A replica that is no longer seen takes its tokens along at once and its load only by and by.
             "and on ($model) count by ($model) (vllm_num_running_requests) >= count by ($model) (vllm_num_running_requests offset 5m)",
        threshold=Knob(value=0.3, unit="ratio", why="published guides: −30 % against five minutes before"),
        params={"min_requests": Knob(value=5, unit="requests", why="with a handful the end of one changes the rate by a third")},
        summary="{{ $labels.model_name }} generates {{ $value | humanizePercentage }} fewer tokens than 5 minutes ago at the same load",
        impact="Answers come slower for everybody.",
        causes=("a GPU throttles or a replica is slow", "long prefills hold the batch up", "preemptions: computed twice",
                "speculative decoding lost its acceptance"),
        first="nvidia-smi -q -d PERFORMANCE,CLOCK",
        stop="decode", prevent=("batch", "gpu"), inhibited_by=(*OUTAGE, *FULL, "VllmPrefillSlow", "VllmDecodeSlow"),
        dashboard="llmobs-scheduling",
        confirm=("model:vllm_decode_tokens:rate2m", "model:vllm_requests_in_system:avg2m", "vllm_phase_ratio"),
        tune="Raise it for models with few and long requests.",
    ),
    Alert(
        name="VllmTimeouts", group="published", scope=MODEL, severity="warning", for_="1m",
        question="Do clients time out?",
        expr='60 * sum by ($model) (rate(vllm_request_failed_total{reason="timeout"}[5m])) > $threshold',
        threshold=Knob(value=5, unit="timeouts per minute", why="published guides: more than 5 a minute"),
        summary="{{ $value | humanize }} requests a minute to {{ $labels.model_name }} time out",
        impact="Users wait for the whole time-out and then get nothing.",
        causes=("the queue: waiting takes longer than the client waits", "outputs longer than the time-out allows",
                "slow decode"),
        first="curl -s http://SIDECAR:9401/metrics | grep failed_total",
        stop="overload", prevent=("queue", "seqs"), inhibited_by=(*OUTAGE, *FULL), dashboard="llmobs-latency",
        confirm=('vllm_request_failed_total{reason="timeout"}', "vllm_request_queue_time_seconds_sum"),
        tune="In proportion to your traffic; VllmAvailabilityBudgetBurn is the alert that scales by itself.",
    ),
    Alert(
        name="VllmCacheHitRateLow", group="published", scope=MODEL, severity="info", for_="2m",
        question="Is the prefix cache worse than this model's own usual?",
        expr="(model:vllm_prefix_cache_hits:ratio_rate5m < $threshold * avg_over_time(model:vllm_prefix_cache_hits:ratio_rate5m[1d] offset 10m)\n"
             "or model:vllm_prefix_cache_hits:ratio_rate5m < $floor)\n"
             "and on ($model) model:vllm_prefix_cache_queries:rate5m > $min_tokens",
        threshold=Knob(value=0.7, unit="share of the last day's mean",
                       why="hit rates depend on the workload: only the model's own last day says what is low"),
        params={
            "floor": Knob(value=0, unit="ratio", why="an absolute floor, off: one guide's 0.9 and another's 0.7 fit their workloads"),
            "min_tokens": Knob(value=100, unit="tokens per second", why="few prompts make any hit rate"),
        },
        summary="Prefix cache hit rate of {{ $labels.model_name }} is only {{ $value | humanizePercentage }}",
        impact="More prefill for the same requests: time to first token and GPU load grow.",
        causes=("prompts no longer share a beginning (a new template, a timestamp in front)",
                "requests of one conversation reach different replicas", "the cache is too small: blocks are evicted before reuse"),
        first="curl -s http://POD:8000/metrics | grep prefix_cache",
        stop="nothing", prevent=("cache", "kv"), inhibited_by=(*OUTAGE, "VllmCacheHitRateCollapse"), dashboard="llmobs-cache",
        confirm=("vllm_gpu_cache_hit_rate", "model:vllm_prefix_cache_hits:ratio_rate5m"),
        tune="Set `floor` for a model whose hit rate you know.",
    ),
    Alert(
        name="VllmRunningNearLimit", group="published", scope=REPLICA, severity="info", for_="5m",
        question="Is the batch as full as it is allowed to be?",
        expr="max by ($replica) (vllm_num_running_requests) / on ($replica) (max by ($replica) (vllm_max_num_running_requests) > 0) > $threshold",
        threshold=Knob(value=0.95, unit="ratio", why="published guides: more than 95 % of max-num-seqs"),
        summary="{{ $labels.target }} ({{ $labels.model_name }}) runs at {{ $value | humanizePercentage }} of max-num-seqs",
        impact="None by itself; the next requests wait.",
        causes=("the replica is well used", "--max-num-seqs is too small for the traffic"),
        first="curl -s http://POD:8000/metrics | grep num_requests_running",
        stop="nothing", prevent=("seqs",), inhibited_by=(*OUTAGE, *FULL, "VllmQueueLong"), dashboard="llmobs-scheduling",
        confirm=("vllm_num_running_requests", "vllm_max_num_running_requests"),
        tune="Switch it off where replicas run full on purpose.",
    ),
    Alert(
        name="VllmTTFTP95High", group="published", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Do users of this model wait too long for the first token?",
        expr=_P95.format("vllm_time_to_first_token_seconds"),
        threshold=Knob(value=2.5, unit="seconds", why="the boundary of the TTFT objective; set one per model"),
        metric="vllm_time_to_first_token_seconds", params={"min_requests": _MIN_REQUESTS},
        summary="p95 time to first token of {{ $labels.model_name }} is {{ $value | humanizeDuration }}",
        impact="The answer starts late for one user in twenty.",
        causes=("requests wait in the queue", "prompts became longer", "the prefix cache lost its hits"),
        first="curl -s http://SIDECAR:9401/metrics | grep phase_ratio",
        stop="prefill", prevent=("batch", "cache"), inhibited_by=(*OUTAGE, *FULL, "VllmTTFTBudgetBurn", "VllmPrefillSlow"),
        dashboard="llmobs-latency",
        confirm=("vllm_phase_ratio", "vllm_request_queue_time_seconds_sum", "vllm_request_prefill_time_seconds_sum"),
        tune="Per model: p95 of 1.5 s may be a page for one and 0.5 s a ticket for another.",
        trace='{ name = "http.server.request" && span.gen_ai.request.model = "<model>" && duration > <threshold>s }',
    ),
    Alert(
        name="VllmInterTokenP95High", group="published", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Do answers of this model stutter?",
        expr=_P95.format("vllm_inter_token_latency_seconds"),
        threshold=Knob(value=0.2, unit="seconds", why="the boundary of the inter-token objective: five tokens a second"),
        metric="vllm_inter_token_latency_seconds", params={"min_requests": _MIN_REQUESTS},
        summary="p95 inter-token latency of {{ $labels.model_name }} is {{ $value | humanizeDuration }}",
        impact="Answers come word by word with pauses.",
        causes=("prefills of long prompts between decode steps", "the batch is too large", "preemptions", "a throttling GPU"),
        first="curl -s http://SIDECAR:9401/metrics | grep -E 'mean_batch_tokens|preemptions'",
        stop="decode", prevent=("batch", "seqs"), inhibited_by=(*OUTAGE, *FULL, "VllmInterTokenBudgetBurn", "VllmDecodeSlow"),
        dashboard="llmobs-latency",
        confirm=("vllm_mean_batch_tokens", "vllm_preemptions_per_second", "nvidia_gpu_clock_event_active"),
        tune="Per model; large models decode slower by nature.",
        trace='{ name = "llm.decode.step" && duration > <threshold>s }',
    ),
    Alert(
        name="VllmE2EP95High", group="published", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Do whole answers of this model take too long?",
        expr=_P95.format("vllm_e2e_request_latency_seconds"),
        enabled=False, off_because="the time of a whole answer depends on its length: enable it with a threshold for a "
                                   "model whose answers are alike",
        threshold=Knob(value=30, unit="seconds", why="a placeholder: p95 of 1.5 s is a page for one model, 0.5 s a ticket for another"),
        metric="vllm_e2e_request_latency_seconds", params={"min_requests": _MIN_REQUESTS},
        summary="p95 request latency of {{ $labels.model_name }} is {{ $value | humanizeDuration }}",
        impact="One request in twenty takes longer than promised.",
        causes=("queue, prefill or decode: the phase ratio says which", "outputs became longer"),
        first="curl -s http://SIDECAR:9401/metrics | grep phase_ratio",
        stop="prefill", prevent=("batch", "seqs"), inhibited_by=(*OUTAGE, *FULL, "VllmE2EBudgetBurn"), dashboard="llmobs-latency",
        confirm=("vllm_phase_ratio", "vllm_requests_generation_tokens_sum"),
        tune="Enable it per model, with the model's own number.",
        trace='{ name = "http.server.request" && span.gen_ai.request.model = "<model>" && duration > <threshold>s }',
    ),
)  # fmt: skip
