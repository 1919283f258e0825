"""What slows the engine down, and which part of it."""

from __future__ import annotations

from llmobs.alerts.model import MODEL, REPLICA, TARGET, Alert, Knob
from llmobs.alerts.rules.common import OUTAGE, STUCK, SYMPTOMS, of_target, usual

_MIN_REQUESTS = Knob(value=20, unit="requests in 5 minutes", why="a mean of fewer requests says little")
_BUSY = "and on ($model) $span * model:vllm_requests_ended:rate5m >= $min_requests"

CAUSES = (
    Alert(
        name="VllmPrefillSlow", group="causes", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Did the prefill phase grow against yesterday?",
        expr=f"model:vllm_request_prefill_time:mean5m > $threshold * {usual('model:vllm_request_prefill_time:mean5m')}\n"
             f"and on ($model) model:vllm_request_prefill_time:mean5m > $min_seconds\n{_BUSY}",
        threshold=Knob(value=2, unit="times the usual", why="prompts vary by the hour; a doubled mean is no variation"),
        params={"min_seconds": Knob(value=0.1, unit="seconds", why="nobody notices a prefill that is still below it"),
                "min_requests": _MIN_REQUESTS},
        also={"phase": "prefill"},
        summary="Prefill of {{ $labels.model_name }} takes {{ $value | humanizeDuration }}, more than twice the usual",
        impact="Answers start late; decode suffers too when long prefills share the batch.",
        causes=("prompts became longer (see VllmPromptLengthShift)", "the prefix cache lost its hits",
                "more prompts at once than --max-num-batched-tokens takes in one step"),
        first="curl -s http://SIDECAR:9401/metrics | grep -E 'gpu_cache_hit_rate|prompt_tokens'",
        stop="prefill", prevent=("batch", "cache"), inhibited_by=SYMPTOMS, dashboard="llmobs-latency",
        confirm=("model:vllm_request_prefill_time:mean5m", 'vllm_phase_ratio{phase="prefill"}',
                 "model:vllm_prompt_tokens:mean5m"),
        tune="Raise it for models whose prompts differ widely from hour to hour.",
        trace='{ name = "llm.prefill" && duration > 1s }',
    ),
    Alert(
        name="VllmDecodeSlow", group="causes", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Did decoding become slower against yesterday?",
        expr=f"model:vllm_inter_token_latency:mean5m > $threshold * {usual('model:vllm_inter_token_latency:mean5m')}\n"
             f"and on ($model) model:vllm_inter_token_latency:mean5m > $min_seconds\n{_BUSY}",
        threshold=Knob(value=1.5, unit="times the usual", why="decode time per token moves little with the load until "
                                                              "something is wrong"),
        params={"min_seconds": Knob(value=0.02, unit="seconds", why="below 20 ms a token nobody reads as fast"),
                "min_requests": _MIN_REQUESTS},
        also={"phase": "decode"},
        summary="{{ $labels.model_name }} needs {{ $value | humanizeDuration }} per token, half as much again as usual",
        impact="Answers come slower for everybody; queues build up behind them.",
        causes=("a GPU throttles or is slower than its peers", "the batch is larger, or holds long contexts",
                "speculative decoding lost its acceptance", "preemptions", "the CPU of the engine process is starved"),
        first="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE",
        stop="decode", prevent=("batch", "seqs", "gpu"),
        inhibited_by=(*SYMPTOMS, "GpuThermalThrottling", "GpuPowerBrake", "VllmSpecAcceptanceDrop"),
        dashboard="llmobs-latency",
        confirm=("model:vllm_inter_token_latency:mean5m", "vllm_mean_batch_tokens", "nvidia_gpu_clock_event_active"),
        tune="Raise it where the batch size swings widely over the day.",
        trace='{ name = "llm.decode.step" && duration > 200ms }',
    ),
    Alert(
        name="VllmQueueGrowing", group="causes", scope=MODEL, severity="warning", for_="3m", keep_firing_for="3m",
        question="Do requests arrive faster than they finish?",
        expr="sum by ($model) (deriv(vllm_request_waiting_queue_length[5m])) > $threshold\n"
             "and on ($model) sum by ($model) (vllm_request_waiting_queue_length) > $min_waiting\n"
             "and on ($model) (max by ($model) (vllm_request_queue_drain_seconds) > $min_drain\n"
             "or (sum by ($model) (vllm_request_waiting_queue_length) unless on ($model) max by ($model) (vllm_request_queue_drain_seconds)))",
        threshold=Knob(value=0.05, unit="requests per second", why="three a minute more arrive than finish"),
        params={"min_waiting": Knob(value=10, unit="requests", why="the stop-gap of published guides starts where people notice"),
                "min_drain": Knob(value=30, unit="seconds", scales=True, why="a queue gone in half a minute is no incident")},
        summary="The queue of {{ $labels.model_name }} grows by {{ $value | humanize }} requests a second",
        impact="Waiting time grows without bound until clients time out.",
        causes=("traffic above capacity", "replicas missing, hung or starting", "requests became longer",
                "the KV cache is full"),
        first="kubectl get pods -l app=vllm -o wide",
        stop="overload", prevent=("queue", "seqs", "kv"), inhibited_by=SYMPTOMS, dashboard="llmobs-scheduling",
        confirm=("vllm_request_waiting_queue_length", "vllm_request_queue_drain_seconds", "model:vllm_requests_ended:rate5m"),
        tune="Lengthen `for` to the time your autoscaler needs for a replica.",
    ),
    Alert(
        name="VllmKVCacheExhaustionPredicted", group="causes", scope=REPLICA, severity="warning", for_="3m",
        question="Will the KV cache be full within half an hour?",
        expr="max by ($replica) (predict_linear(vllm_kv_cache_usage_ratio[15m], $horizon)) > $threshold\n"
             "and on ($replica) max by ($replica) (vllm_kv_cache_usage_ratio) > $min_usage\n"
             "and on ($replica) max by ($replica) (vllm_kv_cache_usage_ratio) - on ($replica) min by ($replica) (min_over_time(vllm_kv_cache_usage_ratio[15m])) > $min_growth",
        threshold=Knob(value=1, unit="ratio", why="full"),
        params={"horizon": Knob(value=1800, unit="seconds ahead", scales=True, why="time enough to add a replica"),
                "min_usage": Knob(value=0.5, unit="ratio", why="growth from a nearly empty cache is the start of a day"),
                "min_growth": Knob(value=0.15, unit="ratio in 15 minutes", why="less is the normal swing")},
        summary="KV cache of {{ $labels.target }} ({{ $labels.model_name }}) will be full within 30 minutes",
        impact="None yet; then requests wait or are preempted.",
        causes=("load grows", "requests become longer", "requests that never end hold their blocks"),
        first="kubectl get hpa; kubectl get pods -l app=vllm",
        stop="overload", prevent=("kv", "seqs"), inhibited_by=(*SYMPTOMS, "VllmKVCacheHigh", "VllmQueueGrowing"),
        dashboard="llmobs-cache", confirm=("vllm_kv_cache_usage_ratio", "vllm_kv_cache_fill_seconds"),
        tune="Raise min_growth where load comes in steps.",
    ),
    Alert(
        name="VllmPreemptionStorm", group="causes", scope=MODEL, severity="warning", for_="2m", keep_firing_for="3m",
        question="Are requests thrown out of the batch and computed again?",
        expr="(model:vllm_preemptions:rate5m / (model:vllm_requests_ended:rate5m > 0) > $threshold\n"
             "or (model:vllm_preemptions:rate5m unless on ($model) model:vllm_requests_ended:rate5m > 0))\n"
             "and on ($model) $span * model:vllm_preemptions:rate5m >= $min_events",
        threshold=Knob(value=0.1, unit="preemptions per request", why="one request in ten pays its prefill twice"),
        params={"min_events": Knob(value=10, unit="preemptions in 5 minutes", why="a few are the scheduler's everyday")},
        summary="{{ $labels.model_name }} preempts {{ $value | humanize }} times per finished request",
        impact="Computed tokens are thrown away; latency of the preempted requests doubles, throughput falls.",
        causes=("--max-num-seqs lets in more requests than the KV cache carries", "outputs became longer than planned",
                "the KV cache shrank (memory, flags)"),
        first="curl -s http://POD:8000/metrics | grep preemptions",
        stop="overload", prevent=("kv", "seqs", "memory"), inhibited_by=SYMPTOMS, dashboard="llmobs-cache",
        confirm=("model:vllm_preemptions:rate5m", "vllm_rescheduled_cache_hit_rate", "vllm_kv_cache_usage_ratio"),
        tune="Raise min_events for very busy models.",
    ),
    Alert(
        name="VllmCacheHitRateCollapse", group="causes", scope=MODEL, severity="warning", for_="2m", keep_firing_for="5m",
        question="Did the prefix cache hit rate collapse within the hour?",
        expr="model:vllm_prefix_cache_hits:ratio_rate5m < $threshold * (avg_over_time(model:vllm_prefix_cache_hits:ratio_rate5m[1h] offset 10m) > $min_before)\n"
             "and on ($model) model:vllm_prefix_cache_queries:rate5m > $min_tokens",
        threshold=Knob(value=0.5, unit="share of the hour before", why="halved within minutes is a change, not a drift"),
        params={"min_before": Knob(value=0.2, unit="ratio", why="a cache that was hardly hit has nothing to lose"),
                "min_tokens": Knob(value=100, unit="tokens per second", why="few prompts make any hit rate")},
        summary="Prefix cache hit rate of {{ $labels.model_name }} collapsed to {{ $value | humanizePercentage }}",
        impact="Prefill work multiplies: time to first token and GPU load grow.",
        causes=("a new prompt template or something changing in front of it (time, id)", "routing no longer sticks to replicas",
                "the replicas restarted: cold caches recover by themselves in minutes", "cache pollution by one-off long prompts"),
        first="curl -s http://SIDECAR:9401/metrics | grep cache_hit_rate",
        stop="prefill", prevent=("cache", "kv"), inhibited_by=(*SYMPTOMS, "VllmRestarted"), dashboard="llmobs-cache",
        confirm=("model:vllm_prefix_cache_hits:ratio_rate5m", "vllm_prefill_tokens_computed_total", "vllm_kv_block_lifetime_seconds_sum"),
        tune="Lower it for mixed traffic.",
    ),
    Alert(
        name="VllmSpecAcceptanceDrop", group="causes", scope=MODEL, severity="warning", for_="5m", keep_firing_for="5m",
        question="Does the draft model still fit the traffic?",
        expr="model:vllm_spec_decode_accepted:ratio_rate5m < $threshold * avg_over_time(model:vllm_spec_decode_accepted:ratio_rate5m[1d] offset 10m)\n"
             "and on ($model) model:vllm_spec_decode_draft_tokens:rate5m > $min_tokens",
        threshold=Knob(value=0.7, unit="share of the last day's mean", why="78 % ± 2 is normal for a fitting draft, 32 % is a real "
                                                                           "case of a draft that no longer fits"),
        params={"min_tokens": Knob(value=10, unit="draft tokens per second", why="few drafts make any rate")},
        metric="", summary="Speculative decoding of {{ $labels.model_name }} accepts only {{ $value | humanizePercentage }} of its drafts",
        impact="Decode slows down: drafts cost time and bring nothing.",
        causes=("traffic of another kind than the draft model was trained on", "a new target model with an old draft",
                "higher temperatures"),
        first="curl -s http://SIDECAR:9401/metrics | grep acceptance_rate",
        stop="decode", prevent=("speculation",), inhibited_by=OUTAGE, dashboard="llmobs-spec",
        confirm=("vllm_spec_decode_acceptance_rate", "vllm_spec_decode_acceptance_rate_per_position",
                 "vllm_spec_decode_mean_accepted_length"),
        tune="Compare with the speed-up on the board: below break-even switch speculation off instead of the alert.",
    ),
    Alert(
        name="VllmReplicaImbalance", group="causes", scope=MODEL, severity="info", for_="10m",
        question="Does one replica carry the load while others idle?",
        expr="1 - min by ($model) (replica:vllm_requests_in_system:avg5m) / max by ($model) (replica:vllm_requests_in_system:avg5m) > $threshold\n"
             "and on ($model) max by ($model) (replica:vllm_requests_in_system:avg5m) >= $min_requests\n"
             "and on ($model) count by ($model) (replica:vllm_requests_in_system:avg5m) >= 2",
        threshold=Knob(value=0.6, unit="ratio", why="the idlest replica has less than 40 % of the busiest one's requests"),
        params={"min_requests": Knob(value=4, unit="requests", why="with less load any split is uneven")},
        summary="Load of {{ $labels.model_name }} is uneven: the idlest replica has {{ $value | humanizePercentage }} fewer requests than the busiest",
        impact="Some users queue while capacity is free.",
        causes=("routing by connection instead of by load (keep-alive, HTTP/2)", "session or prefix affinity with few large clients",
                "a replica that is slow or just started"),
        first="kubectl get endpoints -l app=vllm",
        stop="routing", prevent=("queue",), inhibited_by=(*OUTAGE, "VllmStartingTooLong"), dashboard="llmobs-fleet",
        confirm=("replica:vllm_requests_in_system:avg5m", "vllm_kv_cache_usage_ratio"),
        tune="Switch it off for models with a canary of little traffic, or match the canary's label.",
    ),
    Alert(
        name="VllmIdleGpuWhileWaiting", group="causes", scope=TARGET, severity="warning", for_="5m",
        question="Do requests wait while the GPUs idle?",
        expr=of_target("max by ($joined) (rate(vllm_gpu_idle_while_waiting_seconds_total[5m]))") + " > $threshold",
        threshold=Knob(value=0.5, unit="ratio", why="for half of the time work was there and no GPU did it"),
        summary="GPUs of {{ $labels.target }} ({{ $labels.model_name }}) idled {{ $value | humanizePercentage }} of the time while requests waited",
        impact="Latency without need: the hardware is there.",
        causes=("the engine or API server process is short of CPU", "requests wait for a grammar, a LoRA or a KV transfer",
                "the engine hangs"),
        first="kubectl top pod POD --containers",
        stop="replica", prevent=("host",), inhibited_by=(*SYMPTOMS, *STUCK), dashboard="llmobs-gpu",
        confirm=("vllm_gpu_idle_while_waiting_seconds_total", "vllm_request_waiting_by_reason"),
        tune="Raise it for very small models, whose GPU idles between steps by nature.",
    ),
)  # fmt: skip
