"""KV and prefix cache: whether there is room, and what the cache saves."""

from __future__ import annotations

from llmobs.dashboards.boards.context import ENGINE_LEGEND, LIMIT, REPLICA, Context
from llmobs.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
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

USAGE = "vllm_kv_cache_usage_ratio"
COMPUTED, CACHED = "vllm_prefill_tokens_computed_total", "vllm_prefill_tokens_cached_total"


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-cache",
        title="vLLM KV and Prefix Cache",
        question="Is there room in the KV cache, and how much work does the prefix cache save?",
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Room", panels=_room(c)),
            Section(title="Hits", panels=_hits(c)),
            Section(title="What the cache saved", panels=_saved(c)),
            Section(title="Pressure: preemptions and evictions", panels=_pressure(c)),
            Section(title="Life of a block (--kv-cache-metrics)", panels=_blocks(c), collapsed=True),
            Section(title="KV transfer and offload", panels=_transfer(c), collapsed=True),
        ),
    )


def _now(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    return (
        stat(
            "Fullest KV cache", "Used share of the fullest KV cache.",
            "full is healthy while nothing waits and nothing is preempted.",
            q(c.q.gauge("max", USAGE)), unit="percentunit", decimals=0, width=4,
            lines=limits.lines("VllmKVCacheHigh", "VllmKVCacheExhausted"),
        ),
        stat(
            "Capacity", "Tokens that the KV caches of all engines hold together.",
            "too small for the traffic: lower max_model_len, raise gpu_memory_utilization, or use an fp8 cache.",
            q(c.q.gauge("sum", "vllm_kv_cache_capacity_tokens")), unit="short", width=4, base=BLUE,
        ),
        stat(
            "Hit rate", "Prompt tokens found in the local prefix cache, of those looked up.",
            "falling: prompts no longer share a beginning, or the router spreads conversations over replicas.",
            q(c.hit_rate()), unit="percentunit", decimals=1, width=4, base=BLUE, no_value="No lookups",
        ),
        stat(
            "Prompt tokens saved", "Share of all prompt tokens that did not have to be computed, from any cache.",
            "compare with the hit rate: the difference is the external cache.",
            q(f"{c.q.per_second(CACHED)} / ({c.q.per_second(CACHED)} + {c.q.per_second(COMPUTED)} > 0)"),
            unit="percentunit", decimals=1, width=4, base=BLUE, no_value="No traffic",
        ),
        stat(
            "Preemptions per second", "Requests thrown out of the batch because the KV cache was full.",
            "each one computes its tokens again: lower max_num_seqs or add memory.",
            q(c.q.per_second("vllm_preemptions_total")), unit="ops", width=4, lines=(Line(at=0.01, color=ORANGE),),
        ),
        stat(
            "First cache full in", "Shortest time until a KV cache is full at its growth of the last window.",
            "minutes: scale out now. Nothing shown: no cache grows.",
            q(c.q.gauge("min", "vllm_kv_cache_fill_seconds")), unit="dtdurations", width=4, no_value="Not growing",
            base="red", lines=(Line(at=600, color=ORANGE), Line(at=1800, color=GREEN)),
        ),
    )  # fmt: skip


def _room(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    by = ("engine", *REPLICA)
    per_request = f"({c.q.mean('vllm_requests_prompt_tokens')} + {c.q.mean('vllm_requests_generation_tokens')})"
    fits = f"{c.q.gauge('sum', 'vllm_kv_cache_capacity_tokens')} / ({per_request} > 0)"
    return (
        graph(
            "KV cache usage", "Used share of the 10 fullest KV caches.",
            "one engine alone: imbalance. All: too much load for the memory.",
            q(f"topk(10, {c.q.gauge('max', USAGE, by=by)})", ENGINE_LEGEND),
            *c.tiers("VllmKVCacheHigh"),
            unit="percentunit", maximum=1, lines=limits.lines("VllmKVCacheHigh", "VllmKVCacheExhausted"), dashed=(LIMIT,),
        ),
        graph(
            "Highest usage between scrapes", "The peak of the peak interval, so that no spike is lost, beside the mean "
            "usage and the share that is free.",
            "peaks far above the mean: bursts; the queue absorbs them or requests are preempted.",
            q(c.q.gauge("max", "vllm_kv_cache_usage_ratio_peak"), "peak"),
            q(c.q.gauge("avg", USAGE), "mean"), q(c.q.gauge("avg", "vllm_kv_cache_free_ratio"), "free"),
            unit="percentunit", maximum=1, colors={"peak": "red", "mean": "blue", "free": "green"},
        ),
        graph(
            "What if: requests that fit",
            "Requests of the mean length now served that the KV caches hold at once, beside those running.",
            "running close to the line: the next burst is preempted or waits.",
            q(fits, "fit"), q(c.q.gauge("sum", "vllm_num_running_requests"), "running"),
            unit="none", colors={"fit": "green", "running": "blue"}, no_value="No traffic",
        ),
        graph(
            "What if: rate needed to fill the cache",
            "Request rate at which the KV caches would be full, by Little's law: requests that fit ÷ their mean time in "
            "the engine; beside the rate now.",
            "the distance of the two lines is the head-room before preemptions begin.",
            q(f"{fits} / ({c.q.mean('vllm_request_inference_time_seconds')} > 0)", "needed to fill"),
            q(c.requests(), "now"), unit="reqps", colors={"needed to fill": "red", "now": "blue"}, no_value="No traffic",
        ),
    )  # fmt: skip


def _hits(c: Context) -> tuple[Panel, ...]:
    def rate(cache: str) -> str:
        return ratio(
            c.q.per_second(f"vllm_{cache}_cache_hits_total"), c.q.per_second(f"vllm_{cache}_cache_queries_total")
        )

    return (
        graph(
            "Hit rate: local, external, multimodal",
            "Hits ÷ lookups of the prefix cache, the external cache (KV connector; tokens) and the multimodal processor "
            "cache (items).",
            "local falls: check routing and prompt templates. External low: check its store.",
            q(c.hit_rate(), "local"), q(rate("external"), "external"), q(rate("multimodal"), "multimodal"),
            unit="percentunit", maximum=1, no_value="No lookups",
        ),
        graph(
            "Hit rate by model", "Hits ÷ lookups of the local prefix cache for each model (the 10 busiest names).",
            "one model alone falls: its clients changed their prompts.",
            q(f"topk(10, {c.hit_rate(by=('model_name',))})", "{{model_name}}"),
            unit="percentunit", maximum=1, no_value="No lookups",
        ),
        graph(
            "Hit rate by replica, worst 10", "Hits ÷ lookups over the window, the ten lowest.",
            "an outlier: conversations do not return to the replica that knows them.",
            q(f"bottomk(10, {c.q.gauge('min', 'vllm_gpu_cache_hit_rate', by=('engine', *REPLICA))})", ENGINE_LEGEND),
            unit="percentunit", maximum=1, no_value="No lookups",
        ),
        graph(
            "Hit rate of rescheduled requests", "Hits ÷ lookups of requests scheduled again after a preemption, beside "
            "the hit rate since start.",
            "low: preempted requests find their blocks evicted and pay the whole prefill twice.",
            q(
                ratio(
                    c.q.per_second("vllm_prefix_cache_rescheduled_hits_total"),
                    c.q.per_second("vllm_prefix_cache_rescheduled_queries_total"),
                ),
                "rescheduled",
            ),
            q(c.q.gauge("avg", "vllm_gpu_cache_hit_rate_since_start"), "since start"),
            unit="percentunit", maximum=1, no_value="No preemptions",
        ),
    )  # fmt: skip


def _saved(c: Context) -> tuple[Panel, ...]:
    per_token = f"({c.q.per_second('vllm_request_prefill_time_seconds_sum')} / ({c.q.per_second(COMPUTED)} > 0))"
    return (
        graph(
            "Prefill tokens per second: computed and cached",
            "Prompt tokens that were computed, and those that came from a cache.",
            "computed grows and cached falls: the cache went cold.",
            q(c.q.per_second(COMPUTED), "computed"), q(c.q.per_second(CACHED), "cached"),
            stacked=True, colors={"computed": ORANGE, "cached": GREEN}, width=8,
        ),
        graph(
            "Prefill time saved", "Seconds of prefill that the cache saved per second: cached tokens × the time one "
            "computed token takes now.",
            "1 means that the cache does the work of one engine that only prefills.",
            q(f"{c.q.per_second(CACHED)} * {per_token}", "saved"), unit="short", width=8, no_value="No traffic",
        ),
        graph(
            "Prompt tokens by source", "Prompt tokens per second: computed here, found here, or transferred.",
            "external_kv_transfer at 0 with a prefill/decode split: the transfer does not work.",
            q(c.q.per_second("vllm_prompt_tokens_by_source_total", by=("source",)), "{{source}}"),
            stacked=True, width=8,
        ),
    )  # fmt: skip


def _pressure(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    return (
        graph(
            "Preemptions by replica", "Requests thrown out of the batch, by replica (the 10 most).",
            "lower max_num_seqs, raise gpu_memory_utilization, or add replicas.",
            q(f"topk(10, {c.q.gauge('max', 'vllm_preemptions_per_second', by=('engine', *REPLICA))})", ENGINE_LEGEND),
            unit="ops", width=8,
        ),
        graph(
            "Preemptions per finished request", "Preemptions ÷ finished sequences.",
            "above the line, work is thrown away faster than it is worth.",
            q(ratio(c.q.per_second("vllm_preemptions_total"), c.requests()), "per request"),
            unit="short", width=8, lines=limits.lines("VllmPreemptionStorm"), no_value="No traffic",
        ),
        heatmap(
            "Preemptions of a request", "How often finished sequences were preempted; the lowest bucket is 0 or 1.",
            "a sequence preempted many times is a long one in a cache that is too small.",
            Query(text=c.q.buckets("vllm_requests_preemptions"), legend="{{le}}", buckets=True), unit="none", width=8,
        ),
    )  # fmt: skip


def _blocks(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Evictions per second, sampled", "Blocks evicted; vLLM samples one block in a hundred.",
            "many evictions of blocks that were idle for a short time: the cache is too small for the shared prefixes.",
            q(c.q.per_second("vllm_kv_block_idle_before_evict_seconds_count"), "evictions"), unit="ops", width=6,
        ),
        heatmap(
            "Idle time before eviction", "Time from last use to eviction of a sampled block.",
            "seconds: blocks are thrown away before they can be used again.",
            Query(text=c.q.buckets("vllm_kv_block_idle_before_evict_seconds"), legend="{{le}}", buckets=True),
            unit="s", width=6,
        ),
        heatmap(
            "Time between two uses", "Time between two uses of a sampled block.",
            "if it is longer than the idle time before eviction, more memory would raise the hit rate.",
            Query(text=c.q.buckets("vllm_kv_block_reuse_gap_seconds"), legend="{{le}}", buckets=True), unit="s", width=6,
        ),
        heatmap(
            "Lifetime of a block", "Time from allocation to eviction of a sampled block.",
            "shorter than a conversation: follow-up questions start cold.",
            Query(text=c.q.buckets("vllm_kv_block_lifetime_seconds"), legend="{{le}}", buckets=True), unit="s", width=6,
        ),
    )  # fmt: skip


def _transfer(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "KV transfer time", "p50 and p95 of KV transfers between engines.",
            "slow: the network or its RDMA set-up.",
            q(c.q.quantile(0.5, "vllm_kv_transfer_seconds"), "p50"),
            q(c.q.quantile(0.95, "vllm_kv_transfer_seconds"), "p95"), unit="s", width=8,
        ),
        graph(
            "KV transfer failures", "Failed transfers and offloads per second, by kind.",
            "any is a fault of the connector: requests compute their prompt again.",
            q(c.q.per_second("vllm_kv_transfer_failures_total", by=("kind",)), "{{kind}}"), unit="ops", width=8,
            colors={}, lines=(Line(at=0.01),),
        ),
        graph(
            "Offload throughput", "Bytes per second between the KV cache and its offload store.",
            "store without load: what is offloaded is never used again.",
            q(c.q.per_second("vllm_kv_offload_bytes_total", by=("direction",)), "{{direction}}"), unit="Bps", width=8,
            colors={"load": BLUE, "store": PURPLE},
        ),
        graph(
            "Offload time", "Seconds spent moving blocks, per second.",
            "close to 1: the copy engine is the bottleneck.",
            q(c.q.per_second("vllm_kv_offload_seconds_total", by=("direction",)), "{{direction}}"), unit="short", width=12,
            colors={"load": BLUE, "store": PURPLE},
        ),
        graph(
            "Cached tokens by tier", "Prompt tokens per second by the tier that supplied them.",
            "device is fastest; a growing share of disk or p2p costs TTFT.",
            q(c.q.per_second("vllm_cached_tokens_by_tier_total", by=("tier",)), "{{tier}}"), stacked=True, width=12,
        ),
    )  # fmt: skip
