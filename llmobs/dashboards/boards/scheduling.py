"""Scheduling and throughput: what waits, what runs, and why not more."""

from __future__ import annotations

from llmobs.dashboards.boards.context import ENGINE_LEGEND, REPLICA, REPLICA_LEGEND, Context
from llmobs.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    YELLOW,
    Board,
    Line,
    Panel,
    Query,
    Section,
    graph,
    heatmap,
    q,
    stat,
)
from llmobs.dashboards.promql import ratio

WAITING, RUNNING = "vllm_request_waiting_queue_length", "vllm_num_running_requests"
MAX_RUNNING = "vllm_max_num_running_requests"


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-scheduling",
        title="vLLM Scheduling and Throughput",
        question="What waits and why, how full are the batches, and is the load even?",
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Queue", panels=_queue(c)),
            Section(title="Batch", panels=_batch(c)),
            Section(title="Throughput", panels=_throughput(c)),
            Section(title="Imbalance between replicas", panels=_imbalance(c)),
            Section(title="Limits and odd requests", panels=_limits(c)),
            Section(title="LoRA adapters", panels=_lora(c), collapsed=True),
            Section(title="Model cost (--enable-mfu-metrics)", panels=_cost(c), collapsed=True),
        ),
    )


def _now(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    return (
        stat(
            "Longest queue", "Requests waiting to be scheduled in the longest queue.", "growing: add replicas or shed load.",
            q(c.q.gauge("max", WAITING)), unit="none", width=4,
            lines=limits.lines("VllmQueueLong"),
        ),
        stat(
            "Running", "Requests in the running batches.", "0 while requests wait: the engine hangs.",
            q(c.q.gauge("sum", RUNNING)), unit="none", width=4, base=BLUE,
        ),
        stat(
            "Fullest batch", "Running requests ÷ configured maximum of the fullest engine.",
            "at 100 % with room in the KV cache: raise max_num_seqs.",
            q(f"max({c.q.select(RUNNING)} / ({c.q.select(MAX_RUNNING)} > 0))"), unit="percentunit", decimals=0, width=4,
            lines=limits.lines("VllmRunningNearLimit"), no_value="Limit not known",
        ),
        stat(
            "Oldest waiting", "Age of the request that has waited longest.",
            "longer than a client's patience: it will be aborted, and its retry joins the queue.",
            q(c.q.gauge("max", "vllm_request_oldest_waiting_seconds")), unit="s", width=4, no_value="None waits",
            lines=(Line(at=5, color=YELLOW), Line(at=30)),
        ),
        stat(
            "Time to drain", "Time in which the longest queue would be empty if nothing arrived.",
            "longer than clients wait: shed load, do not queue it.",
            q(c.q.gauge("max", "vllm_request_queue_drain_seconds")), unit="dtdurations", width=4,
            lines=(Line(at=10, color=YELLOW), Line(at=60)), no_value="None completes",
        ),
        stat(
            "Seconds without progress", "Longest time since the last token of an engine that has work.",
            "tens of seconds: the engine hangs although /health answers; keep the evidence before a restart.",
            q(c.q.gauge("max", "vllm_engine_seconds_since_progress")), unit="s", width=4, no_value="No work",
            lines=(Line(at=5, color=YELLOW), Line(at=30)),
        ),
    )  # fmt: skip


def _queue(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Waiting by reason", "capacity waits for room in the batch; deferred waits for a grammar, a LoRA slot or a KV "
            "transfer.",
            "capacity: more replicas. deferred: more replicas do not help.",
            q(c.q.gauge("sum", "vllm_request_waiting_by_reason", by=("reason",)), "{{reason}}"),
            unit="none", stacked=True, colors={"capacity": ORANGE, "deferred": BLUE}, width=8,
        ),
        graph(
            "Waiting and its peak", "Waiting requests of the longest queue, and the most between two scrapes.",
            "peaks without a lasting queue are bursts.",
            q(c.q.gauge("max", WAITING), "waiting"),
            q(c.q.gauge("max", "vllm_request_waiting_queue_length_peak"), "peak"),
            unit="none", lines=c.limits.lines("VllmQueueLong"), colors={"waiting": BLUE, "peak": ORANGE}, width=8,
        ),
        graph(
            "Age of the oldest, and time to drain", "How long the oldest request waits already, and how long the queue "
            "would take to empty.",
            "both grow: arrivals exceed completions.",
            q(c.q.gauge("max", "vllm_request_oldest_waiting_seconds"), "oldest waiting"),
            q(c.q.gauge("max", "vllm_request_queue_drain_seconds"), "time to drain"), unit="s", width=8,
        ),
    )  # fmt: skip


def _batch(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Running requests and the maximum", "Running requests of all engines, their peak, and the configured maximum.",
            "at the maximum with a queue: raise max_num_seqs if the KV cache has room.",
            q(c.q.gauge("sum", RUNNING), "running"), q(c.q.gauge("sum", "vllm_num_running_requests_peak"), "peak"),
            q(c.q.gauge("sum", MAX_RUNNING), "maximum"), unit="none", dashed=("maximum",),
            colors={"running": BLUE, "peak": ORANGE, "maximum": "red"}, width=8,
        ),
        heatmap(
            "Tokens per step", "Distribution of the batch size: tokens computed per engine step, prefill and decode "
            "together.",
            "two bands are steps with and without prefill; few large steps starve decode.",
            Query(text=c.q.buckets("vllm_step_tokens"), legend="{{le}}", buckets=True), unit="short", width=8,
        ),
        graph(
            "Mean tokens per step, and steps per second", "Mean batch size over all engines, and the heartbeat of the "
            "engines.",
            "small steps while requests wait: something else than compute limits them.",
            q(c.q.mean("vllm_step_tokens"), "tokens per step"),
            q(c.q.per_second("vllm_engine_steps_total"), "steps per second"), unit="short", width=8, no_value="No steps",
        ),
    )  # fmt: skip


def _throughput(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Tokens per second", "Prompt tokens computed (prefill) and tokens generated (decode).",
            "decode falls while prefill grows: prompts push the running requests aside.",
            q(c.q.per_second("vllm_prefill_tokens_computed_total"), "prefill"),
            q(c.q.per_second("vllm_decode_tokens_total"), "decode"), colors={"prefill": BLUE, "decode": GREEN}, width=8,
        ),
        graph(
            "Finished requests by reason", "Sequences that left the engine, per second.",
            "length grows: outputs are cut off. abort and error are not successes.",
            q(c.requests(by=("finished_reason",)), "{{finished_reason}}"), unit="reqps", stacked=True, width=8,
            colors={"stop": GREEN, "length": BLUE, "abort": YELLOW, "error": "red", "repetition": "purple"},
        ),
        graph(
            "HTTP responses by class", "Responses of the generation endpoints per second; an error inside a stream is 2xx.",
            "4xx: callers. 5xx: the server.",
            q(c.q.per_second("vllm_http_responses_total", by=("status",)), "{{status}}"), unit="reqps", stacked=True,
            colors={"2xx": GREEN, "4xx": YELLOW, "5xx": "red"}, width=8,
        ),
    )  # fmt: skip


def _imbalance(c: Context) -> tuple[Panel, ...]:
    by = ("model_name", "engine", *REPLICA)
    each = ("model_name", *REPLICA)
    load = f"{c.q.gauge('sum', RUNNING, by=each)} + {c.q.gauge('sum', WAITING, by=each)}"
    return (
        graph(
            "Idlest replica against the busiest", "1 − requests (running and waiting) of the idlest replica ÷ those of the "
            "busiest, for each model; 0 is even.",
            "above the line while there is a queue: the router sends by the wrong signal.",
            q(
                f"1 - min by (model_name) ({load}) / (max by (model_name) ({load}) > 0)",
                "{{model_name}}",
            ),
            unit="percentunit", lines=c.limits.lines("VllmReplicaImbalance"), maximum=1, no_value="No requests", width=8,
        ),
        graph(
            "Longest queues", "Waiting requests of the 10 engines with the most.",
            "one alone: take it out of rotation or fix the router.",
            q(f"topk(10, {c.q.gauge('max', WAITING, by=by)})", ENGINE_LEGEND), unit="none", width=8,
        ),
        graph(
            "Slowest replicas: TTFT p95", "The 10 replicas with the highest p95 time to first token.",
            "one alone with an even load: its GPU or its host; see the GPU board.",
            q(f"topk(10, {c.q.quantile(0.95, 'vllm_time_to_first_token_seconds', by=REPLICA)})", REPLICA_LEGEND),
            unit="s", width=8, no_value="No traffic",
        ),
    )  # fmt: skip


def _limits(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Admission rejections", "Requests refused per second because a queue limit was reached.",
            "wanted while overloaded; otherwise the limit is too low.",
            q(c.q.per_second("vllm_request_admission_rejections_total", by=("reason",)), "{{reason}}"), unit="reqps",
            width=8, colors={"max_num_queued_reqs": ORANGE, "max_num_queued_tokens": "red"},
        ),
        graph(
            "Prompts near the limit, and outliers", "Requests whose prompt takes more than 90 % of the context, and those "
            "far longer than their client's usual.",
            "a client that repeats its system prompt again and again looks like this.",
            q(c.q.per_second("vllm_prompts_near_limit_total"), "near the limit"),
            q(c.q.per_second("vllm_prompt_outliers_total"), "outliers"), unit="reqps", width=8,
        ),
        graph(
            "Corrupted requests", "Requests with NaN in their logits, per second (VLLM_COMPUTE_NANS_IN_LOGITS=1).",
            "any is a fault: suspect the GPU's memory or the weights.",
            q(c.q.per_second("vllm_corrupted_requests_total"), "corrupted"), unit="reqps", width=8,
            lines=(Line(at=0.001),), no_value="Not counted",
        ),
        graph(
            "Parameters: max_tokens", "p50 and p95 of the max_tokens parameter of requests that set it.",
            "far above the output length: harmless, but it hides runaway outputs.",
            q(c.q.quantile(0.5, "vllm_requests_max_tokens"), "p50"),
            q(c.q.quantile(0.95, "vllm_requests_max_tokens"), "p95"), unit="short", width=8, no_value="No traffic",
        ),
        graph(
            "Sequences per request", "Mean n: sequences asked for per request.",
            "requests are counted as sequences everywhere; this is the factor.",
            q(c.q.mean("vllm_requests_n"), "n"), unit="short", width=8, no_value="No traffic",
        ),
        graph(
            "Livelock and stall", "Engines that hang, and engines that schedule and preempt without a token.",
            "stall: keep the evidence, then restart. livelock: a request never fits; restart does not cure it.",
            q(c.q.gauge("sum", "vllm_engine_stalled"), "stalled"), q(c.q.gauge("sum", "vllm_engine_livelock"), "livelock"),
            unit="none", width=8, colors={"stalled": "red", "livelock": "purple"},
        ),
    )  # fmt: skip


def _lora(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Running requests by adapter", "Running requests of the 10 busiest LoRA adapters.",
            "more adapters than max_loras: requests wait for a slot.",
            q(f"topk(10, {c.q.gauge('sum', 'vllm_lora_running_requests', by=('adapter',))})", "{{adapter}}"), unit="none",
        ),
        graph(
            "Waiting requests by adapter", "Waiting requests of the 10 LoRA adapters with the most.",
            "one adapter alone: it competes for a slot.",
            q(f"topk(10, {c.q.gauge('sum', 'vllm_lora_waiting_requests', by=('adapter',))})", "{{adapter}}"), unit="none",
        ),
    )  # fmt: skip


def _cost(c: Context) -> tuple[Panel, ...]:
    flops = "vllm_estimated_flops_total"
    return (
        graph(
            "Operations per second and GPU", "Estimated floating point operations per GPU, mean over the engines.",
            "divide by the GPU's peak for the model FLOPS utilisation.",
            q(ratio(c.q.per_second(flops), f"count({c.q.select(RUNNING)})"), "operations"), unit="short",
        ),
        graph(
            "Memory traffic per GPU", "Estimated bytes read and written per second and GPU.",
            "close to the GPU's bandwidth: decode is limited by memory, as it should be.",
            q(c.q.per_second("vllm_estimated_read_bytes_total"), "read"),
            q(c.q.per_second("vllm_estimated_written_bytes_total"), "written"), unit="Bps",
        ),
    )  # fmt: skip
