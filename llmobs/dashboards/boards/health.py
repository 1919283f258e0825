"""vLLM Production Health: the on-call board."""

from __future__ import annotations

from llmobs.dashboards.boards.context import (
    COMPARE,
    ENGINE_LEGEND,
    LIMIT,
    REPLICA,
    REPLICA_LEGEND,
    STATE_WORDS,
    Context,
)
from llmobs.dashboards.panels import (
    FAILURE_COLORS,
    PHASE_COLORS,
    RED,
    Board,
    Choice,
    Column,
    Line,
    Panel,
    Query,
    Section,
    bars,
    cell,
    graph,
    heatmap,
    now,
    q,
    stat,
    states,
    table,
)
from llmobs.dashboards.promql import ratio

GREW = Choice(
    name="baseline",
    label="Grew since",
    choices=(("1 hour ago", "1h"), ("15 minutes ago", "15m"), ("Yesterday", "1d"), ("Last week", "7d")),
    description="What the phases are compared with in “Which phase grew”.",
)


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-health",
        title="vLLM Production Health",
        question="Is vLLM serving well, and if not, what is wrong: queue, prefill, decode, cache, GPU, memory, client?",
        variables=(COMPARE, GREW),
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Top 3 latency breakdown: queue, prefill, decode", panels=_breakdown(c)),
            Section(title="KV cache usage heatmap", panels=_cache(c)),
            Section(title="Error rate by reason", panels=_errors(c)),
            Section(title="Golden signals, now and then", panels=_golden(c)),
            Section(title="Which replica", panels=_replicas(c)),
        ),
    )


def _now(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    return (
        stat(
            "Replicas down",
            "Watched servers that could not be read in the last cycle; the second figure is how many are watched.",
            "find the replica in “Which replica” below; `unreachable` was up and is gone, `starting` still loads.",
            now(f"count({c.q.select('vllm_up')}) - {c.q.gauge('sum', 'vllm_up')}", "down"),
            now(f"count({c.q.select('vllm_up')})", "watched"),
            lines=(Line(at=1),),
            colors={"watched": "text"},
            link=("Fleet", c.board("llmobs-fleet")),
            big=True,
        ),
        stat(
            "Requests per second",
            "Sequences that finished, per second.",
            "zero with a queue is a stall; zero without one is no traffic: look upstream.",
            q(c.requests()),
            unit="reqps", decimals=1, big=True, base="blue", link=("Scheduling", c.board("llmobs-scheduling")),
        ),
        stat(
            "Failed requests",
            "Share of requests that failed by the service's own fault (oom, engine_dead, error).",
            "open “Error rate by reason”; `oom` and `engine_dead` first.",
            q(c.error_share()),
            unit="percentunit", decimals=2, big=True, no_value="No traffic",
            lines=limits.lines("VllmErrorRatio"),
        ),
        stat(
            "TTFT p95",
            "95 of 100 requests got their first token within this time.",
            "see the breakdown below: queue means too few replicas, prefill means long prompts or a cold cache.",
            q(c.q.quantile(0.95, "vllm_time_to_first_token_seconds")),
            unit="s", big=True, no_value="No traffic", link=("Latency", c.board("llmobs-latency")),
            lines=limits.lines("VllmTTFTP95High"),
        ),
        stat(
            "Inter-token p95",
            "95 of 100 gaps between two outputs of a sequence were shorter.",
            "decode is slow: batch too large, GPU throttled, or preemptions.",
            q(c.q.quantile(0.95, "vllm_inter_token_latency_seconds")),
            unit="s", big=True, no_value="No traffic", link=("Latency", c.board("llmobs-latency")),
            lines=limits.lines("VllmInterTokenP95High"),
        ),
        stat(
            "Waiting",
            "Requests in the longest waiting queue of an engine.",
            "growing means that requests arrive faster than they finish: add replicas or shed load.",
            q(c.q.gauge("max", "vllm_request_waiting_queue_length")),
            unit="none", big=True, link=("Scheduling", c.board("llmobs-scheduling")),
            lines=limits.lines("VllmQueueLong"),
        ),
        stat(
            "KV cache usage",
            "The fullest KV cache.",
            "full is healthy while nothing waits and nothing is preempted; otherwise lower max_num_seqs or add memory.",
            q(c.q.gauge("max", "vllm_kv_cache_usage_ratio")),
            unit="percentunit", decimals=0, big=True, link=("KV cache", c.board("llmobs-cache")),
            lines=limits.lines("VllmKVCacheHigh", "VllmKVCacheExhausted"),
        ),
        stat(
            "Alerts firing",
            "Critical and warning alerts that fire now; none also where Prometheus has no rules loaded.",
            "open the alert and its runbook.",
            now(f'count(ALERTS{{{c.outside}alertstate="firing", severity=~"critical|warning"}})'),
            unit="none", big=True, no_value="None", lines=(Line(at=1, color=RED),),
        ),
    )  # fmt: skip


def _breakdown(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Top 3 latency breakdown",
            "Mean time per finished request in the queue, in prefill and in decode, stacked: the height is the mean "
            "latency inside the engine.",
            "queue grew: too few replicas. prefill grew: longer prompts or a colder cache. decode grew: longer "
            "outputs, larger batch, slower GPU.",
            q(c.phase_mean(), "{{phase}}"),
            unit="s", stacked=True, colors=PHASE_COLORS, width=14, no_value="No traffic",
            link=("Latency and phases", c.board("llmobs-latency")),
        ),
        bars(
            "Which phase grew",
            "Mean time per request and phase now, less the same at the time chosen under “Grew since”.",
            "start with the longest bar to the right; a negative bar got faster.",
            q(f"{c.phase_mean()} - {c.phase_mean('$baseline')}", "{{phase}}"),
            unit="s", width=5, minimum=None, colors=PHASE_COLORS, no_value="No traffic then or now",
        ),
        bars(
            "Share of time",
            "Share of each phase in the time of the requests that finished.",
            "a healthy chat service spends most time in decode; more than a tenth in the queue is a warning.",
            q(c.phase_share(), "{{phase}}"),
            unit="percentunit", width=5, maximum=1, colors=PHASE_COLORS, decimals=0, no_value="No traffic",
        ),
    )  # fmt: skip


def _cache(c: Context) -> tuple[Panel, ...]:
    gpu = ratio(
        c.q.gpu("nvidia_gpu_memory_used_bytes", by=("instance",)),
        c.q.gpu("nvidia_gpu_memory_total_bytes", by=("instance",)),
    )
    return (
        heatmap(
            "KV cache usage heatmap: engines",
            "One row per engine (the 40 fullest), the fuller the redder: an uneven load is one look.",
            "one red row among pale ones: the router does not balance. All red with a queue: add replicas.",
            q(f"topk(40, {c.q.gauge('max', 'vllm_kv_cache_usage_ratio', by=('engine', *REPLICA))})", ENGINE_LEGEND),
            unit="percentunit", rows_named=True, maximum=1, link=("KV cache", c.board("llmobs-cache")),
        ),
        heatmap(
            "KV cache usage heatmap: GPU memory",
            "Used share of the memory of each GPU (the 40 fullest), beside the usage of the caches that live in it.",
            "vLLM takes its share at start, so a steady colour is right; one row growing is a leak.",
            q(f"topk(40, {gpu})", "{{uuid}} · {{instance}}"),
            unit="percentunit", rows_named=True, maximum=1, needs=frozenset({"gpu"}),
            link=("GPU", c.board("llmobs-gpu")),
        ),
    )  # fmt: skip


def _errors(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Error rate by reason",
            "Failed requests per second by reason, stacked.",
            "oom: runbook of out of memory. engine_dead: the engine restarted. timeout and abort: clients gave up, "
            "look at the latency. rejected: queue limits. invalid and context_length: the caller's mistake.",
            q(c.failed(by=("reason",)), "{{reason}}"),
            unit="reqps", stacked=True, colors=FAILURE_COLORS, width=14,
        ),
        bars(
            "Failures in this time range",
            "Failed requests in the time range shown, by reason.",
            "a single oom is worth a look; see the annotations for its moment.",
            *(
                now(c.q.during_range("vllm_request_failed_total", f'reason="{reason}"'), reason)
                for reason in FAILURE_COLORS
            ),
            unit="none", decimals=0, width=6, colors=FAILURE_COLORS,
        ),
        stat(
            "Out of memory",
            "Out-of-memory events in the time range shown, by kind.",
            "any is a fault: read the failure journal before the restart policy hides it.",
            now(c.q.during_range("vllm_oom_total", by=("kind",)), "{{kind}}"),
            unit="none", decimals=0, width=4, height=8, lines=(Line(at=0.5),), no_value="Not known",
        ),
    )  # fmt: skip


def _golden(c: Context) -> tuple[Panel, ...]:
    def both(expression: str, then: str) -> tuple[Query, Query]:
        return q(expression, "now"), q(then, "then")

    offset = "$compare"
    waiting = "vllm_request_waiting_queue_length"
    tokens = "vllm_decode_tokens_total"
    look = "switch “Overlay” on: a difference from the same hour of another day is a change, not the daily swing."
    common = {"width": 8, "height": 7, "dashed": ("then", LIMIT), "legend_table": False}
    limits = c.limits
    return (
        graph(
            "Requests per second, now and then", "Finished sequences per second.", look,
            *both(c.requests(), c.requests(offset=offset)), unit="reqps", **common,
        ),
        graph(
            "Failures per second, now and then", "Failed requests per second, all reasons.", look,
            *both(c.failed(), c.failed(offset=offset)), unit="reqps", **common,
        ),
        graph(
            "Waiting requests, now and then", "Requests in the longest waiting queue of an engine.", look,
            *both(c.q.gauge("max", waiting), c.q.gauge("max", waiting, offset=offset)), *c.tiers("VllmQueueLong"),
            unit="none", lines=limits.lines("VllmQueueLong"), **common,
        ),
        graph(
            "TTFT p95, now and then", "95th percentile of the time to the first token.", look,
            *c.latency("vllm_time_to_first_token_seconds", 0.95), *c.tiers("VllmTTFTP95High"), unit="s", no_value="No traffic",
            lines=limits.lines("VllmTTFTP95High"), **common,
        ),
        graph(
            "Inter-token latency p95, now and then", "95th percentile of the gap between two outputs.", look,
            *c.latency("vllm_inter_token_latency_seconds", 0.95), *c.tiers("VllmInterTokenP95High"), unit="s", no_value="No traffic",
            lines=limits.lines("VllmInterTokenP95High"), **common,
        ),
        graph(
            "Generated tokens per second, now and then", "Tokens generated by all engines.", look,
            *both(c.q.per_second(tokens), c.q.per_second(tokens, offset=offset)), **common,
        ),
    )  # fmt: skip


def _replicas(c: Context) -> tuple[Panel, ...]:
    return (
        states(
            "State of the replicas",
            "State of each replica over time; the 20 worst when there are more.",
            "`stalled` hangs although /health says 200: keep the evidence before a restart. `dead` lost its engine. "
            "`livelock` preempts a request again and again that never fits.",
            q(f"topk(20, {c.state()})", REPLICA_LEGEND),
            words=STATE_WORDS, unit="none", minimum=None, width=16, height=9,
        ),
        table(
            "Why a target cannot be read",
            "Targets that failed in the last cycle, with the reason in one word.",
            "refused: the process is gone. timeout: it hangs or is overloaded. auth, tls, dns: configuration.",
            cell(f"max by (instance, target, reason) ({c.q.select('vllm_target_error')} == 1)"),
            columns=(
                Column(source="target", title="Target"),
                Column(source="instance", title="Sidecar"),
                Column(source="reason", title="Reason", width=110),
            ),
            unit="none", width=8, height=9, no_value="All targets can be read",
        ),
    )  # fmt: skip
