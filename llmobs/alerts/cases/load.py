"""Cases of the alerts on load, speed and caches."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.alerts.cases.model import FOREVER, Case, Cases, Knobs, Series, flat, grow, histogram, lost


def _gauge(name: str, low: float, high: float, *, wait: float = 300) -> Cases:
    """A gauge of a replica against the threshold, given as shares of it."""

    def cases(k: Knobs) -> Iterator[Case]:
        series = f"{name}{{{k.replica}}}"
        yield k.case("above the threshold", [(series, (flat(0, wait), flat(k.t * high)))], wait, k.fires())
        yield k.case("below it", [(series, (flat(0, wait), flat(k.t * low)))], wait)
        yield k.case(
            "one spike between two evaluations",
            [(series, (flat(0, wait), flat(k.t * high, 15), flat(0)))],
            wait + 15,
            interval=15,
        )

    return cases


def kv_exhausted(k: Knobs) -> Iterator[Case]:
    full = (f"vllm_kv_cache_usage_ratio_peak{{{k.replica}}}", (flat(k.t + (1 - k.t) / 2),))
    waiting = f"vllm_request_waiting_queue_length_peak{{{k.replica}}}"
    preempting = (f"vllm_preemptions_per_second{{{k.replica}}}", (flat(0.5),))
    yield k.case("full and requests wait", [full, (waiting, (flat(3),))], 0, k.fires())
    yield k.case("full and requests are preempted", [full, (waiting, (flat(0),)), preempting], 0, k.fires())
    yield k.case("full and nothing waits is healthy", [full, (waiting, (flat(0),))], 0)
    room = (f"vllm_kv_cache_usage_ratio_peak{{{k.replica}}}", (flat(k.t - 0.02),))
    yield k.case("requests wait with room in the cache", [room, (waiting, (flat(3),))], 0)


def tokens_dropped(k: Knobs) -> Iterator[Case]:
    tokens, running, waiting = (f"{n}{{{k.replica}}}" for n in (
        "vllm_decode_tokens_total", "vllm_num_running_requests", "vllm_request_waiting_queue_length"))  # fmt: skip
    load = k.p("min_requests") + 5
    idle = (waiting, (flat(0),))
    slow, fine = 100 * (1 - k.t - 0.1), 100 * (1 - k.t + 0.1)
    yield k.case(
        "slower at the same load",
        [(tokens, (grow(100, 900), grow(slow))), (running, (flat(load),)), idle],
        1050,
        k.fires(),
    )
    yield k.case(
        "slower because there is less to do",
        [(tokens, (grow(100, 900), grow(slow))), (running, (flat(load, 900), flat(load * 0.4))), idle],
        1050,
    )
    yield k.case("a little slower", [(tokens, (grow(100, 900), grow(fine))), (running, (flat(load),)), idle], 1050)
    yield k.case("no traffic at all", [(tokens, (flat(5),)), (running, (flat(0),)), idle], 1050)
    reset = [(tokens, (flat(0, 15), grow(100, 900), flat(0, 30), grow(100))), (running, (flat(load),)), idle]
    yield k.case("a counter that starts again", reset, 1110)

    def replica(n: str, share: float, until: float) -> list[Series]:
        labels = f'instance="{n}:9401",target="t",model_name="{k.model}",engine="0"'
        return [
            (f"vllm_decode_tokens_total{{{labels}}}", (grow(100 * share, until), lost())),
            (f"vllm_num_running_requests{{{labels}}}", (flat(load * share, until), lost())),
            (f"vllm_request_waiting_queue_length{{{labels}}}", (flat(0, until), lost())),
        ]

    yield k.case("one of two replicas is no longer seen", [*replica("a", 0.95, 900), *replica("b", 0.05, 2000)], 900)


def timeouts(k: Knobs) -> Iterator[Case]:
    name = f'vllm_request_failed_total{{{k.replica},reason="timeout"}}'
    yield k.case("more than the limit a minute", [(name, (flat(0), grow(k.t * 1.4 / 60)))], 400, k.fires())
    yield k.case("fewer", [(name, (flat(0), grow(k.t * 0.6 / 60)))], 400)


def _cache(k: Knobs, before: float, now: float, rate: float, turn: float) -> list[Series]:
    return [
        (f"vllm_prefix_cache_queries_total{{{k.replica}}}", (grow(rate),)),
        (f"vllm_prefix_cache_hits_total{{{k.replica}}}", (grow(rate * before, turn), grow(rate * now))),
    ]


def hit_rate_low(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_tokens") * 3
    yield k.case(
        "below the model's own usual", _cache(k, 0.8, 0.8 * k.t * 0.8, rate, 14400), 14400 + 400, k.fires(), interval=60
    )
    yield k.case("a little below", _cache(k, 0.8, 0.8 * min(1, k.t * 1.2), rate, 14400), 14400 + 400, interval=60)
    yield (
        k.case("always that low", _cache(k, 0.05, 0.05, rate, 14400), 14400 + 400, interval=60)
        if not k.p("floor")
        else k.case(
            "above the floor",
            _cache(k, k.p("floor") + 0.02, k.p("floor") + 0.02, rate, 14400),
            14400 + 400,
            interval=60,
        )
    )
    yield k.case("hardly any traffic", _cache(k, 0.8, 0.1, k.p("min_tokens") * 0.5, 14400), 14400 + 400, interval=60)


def running_near_limit(k: Knobs) -> Iterator[Case]:
    limit = (f"vllm_max_num_running_requests{{{k.replica}}}", (flat(100),))
    running = f"vllm_num_running_requests{{{k.replica}}}"
    yield k.case("the batch is full", [limit, (running, (flat(100),))], 0, k.fires())
    yield k.case("there is room", [limit, (running, (flat(100 * k.t - 2),))], 0)
    none = (f"vllm_max_num_running_requests{{{k.replica}}}", (flat(0),))
    yield k.case("a limit of 0 is no limit", [none, (running, (flat(100),))], 0)


def _p95(name: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        enough = k.p("min_requests") / 300 * 3
        bounds = {f"{k.t * 0.5!r}": 0.5, f"{k.t * 0.9!r}": 0.5, f"{k.t * 2!r}": 1.0, "+Inf": 1.0}
        fast = {**bounds, f"{k.t * 0.5!r}": 0.9, f"{k.t * 0.9!r}": 0.99}
        yield k.case(
            "p95 above the threshold", histogram(name, k.replica, (enough, bounds, k.t, FOREVER)), 600, k.fires()
        )
        yield k.case("p95 below it", histogram(name, k.replica, (enough, fast, k.t / 2, FOREVER)), 600)
        few = k.p("min_requests") / 300 * 0.5
        yield k.case("slow, but only a few requests", histogram(name, k.replica, (few, bounds, k.t, FOREVER)), 600)
        other = [
            (n.replace(f'"{k.model}"', '"another"'), p)
            for n, p in histogram(name, k.replica, (enough * 20, fast, 0.1, FOREVER))
        ]
        mixed = [*histogram(name, k.replica, (enough, bounds, k.t, FOREVER)), *other]
        yield k.case("a busy fast model does not hide it", mixed, 600, k.fires())

    return cases


def _phase(histogram_name: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        usual = k.p("min_seconds") * 1.2
        rate = max(1.0, k.p("min_requests") / 100)
        ended = (f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}', (grow(rate),))

        def mean(now: float, per_second: float = rate) -> list[Series]:
            parts = ((per_second, {"+Inf": 1.0}, usual, 7200), (per_second, {"+Inf": 1.0}, now, FOREVER))
            return [k.seen(), ended, *histogram(histogram_name, k.replica, *parts)]

        yield k.case("slower than an hour ago", mean(usual * (k.t + 0.5)), 7200 + 420, k.fires(), interval=60)
        yield k.case("a little slower", mean(usual * (k.t - 0.3)), 7200 + 420, interval=60)
        quiet = (ended[0], (grow(k.p("min_requests") / 300 * 0.3),))
        yield k.case(
            "slow, but hardly a request", [k.seen(), quiet, *mean(usual * (k.t + 0.5))[2:]], 7200 + 420, interval=60
        )

    return cases


def queue_growing(k: Knobs) -> Iterator[Case]:
    waiting, drain = (
        f"vllm_request_waiting_queue_length{{{k.replica}}}",
        f"vllm_request_queue_drain_seconds{{{k.replica}}}",
    )
    start = k.p("min_waiting") + 5
    slow = (drain, (flat(k.p("min_drain") * 2),))
    yield k.case("more arrive than finish", [(waiting, (flat(start, 60), grow(k.t * 1.5))), slow], 400, k.fires())
    yield k.case("nothing finishes", [(waiting, (flat(start, 60), grow(k.t * 1.5)))], 400, k.fires())
    yield k.case("long but steady", [(waiting, (flat(start * 3),)), slow], 400)
    yield k.case(
        "growing and gone in seconds", [(waiting, (flat(start, 60), grow(k.t * 1.5))), (drain, (flat(1),))], 400
    )


def kv_predicted(k: Knobs) -> Iterator[Case]:
    usage = f"vllm_kv_cache_usage_ratio{{{k.replica}}}"
    yield k.case("grows towards full", [(usage, (flat(0.4, 60), grow(0.4 / 1200)))], 1000, k.fires())
    yield k.case("grows slowly", [(usage, (flat(0.55, 60), grow(0.02 / 1200)))], 1000)
    yield k.case("grows from nearly empty", [(usage, (flat(0.0, 60), grow(0.3 / 1200)))], 900)
    yield k.case("high and steady", [(usage, (flat(0.8),))], 1000)


def preemption_storm(k: Knobs) -> Iterator[Case]:
    done = (f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}', (grow(1),))
    thrown = f"vllm_preemptions_total{{{k.replica}}}"
    storm = max(k.t * 2, k.p("min_events") / 100)
    yield k.case("many a request is thrown out", [k.seen(), done, (thrown, (grow(storm),))], 400, k.fires())
    calm = k.t * 0.5
    yield k.case("a few", [k.seen(), done, (thrown, (grow(calm),))], 400)
    idle = (done[0], (flat(7),))
    yield k.case("nothing finishes at all", [k.seen(), idle, (thrown, (grow(storm),))], 400, k.fires())


def hit_rate_collapse(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_tokens") * 3
    yield k.case("halved within minutes", _cache(k, 0.8, 0.8 * k.t * 0.5, rate, 3600), 3600 + 400, k.fires())
    yield k.case("a little lower", _cache(k, 0.8, 0.8 * min(1, k.t * 1.4), rate, 3600), 3600 + 400)
    low = k.p("min_before") * 0.5
    yield k.case("there was nothing to lose", _cache(k, low, 0, rate, 3600), 3600 + 400)


def spec_drop(k: Knobs) -> Iterator[Case]:
    drafts = k.p("min_tokens") * 5

    def spec(now: float, rate: float = drafts) -> list[Series]:
        return [
            (f"vllm_spec_decode_draft_tokens_total{{{k.replica}}}", (grow(rate),)),
            (f"vllm_spec_decode_accepted_tokens_total{{{k.replica}}}", (grow(rate * 0.78, 14400), grow(rate * now))),
        ]

    yield k.case("78 % become far fewer", spec(0.78 * k.t * 0.6), 14400 + 420, k.fires(), interval=60)
    yield k.case("the normal spread of 2 %", spec(0.76), 14400 + 420, interval=60)
    yield k.case("hardly any drafts", spec(0.1, k.p("min_tokens") * 0.5), 14400 + 420, interval=60)


def imbalance(k: Knobs) -> Iterator[Case]:
    def replica(n: str, load: float) -> list[Series]:
        labels = f'instance="{n}:9401",target="t",model_name="{k.model}",engine="0"'
        return [
            (f"vllm_num_running_requests{{{labels}}}", (flat(load),)),
            (f"vllm_request_waiting_queue_length{{{labels}}}", (flat(0),)),
        ]

    busy = k.p("min_requests") * 5
    yield k.case("one carries the load", [*replica("a", busy), *replica("b", busy * (1 - k.t) * 0.5)], 600, k.fires())
    yield k.case("even enough", [*replica("a", busy), *replica("b", busy * min(1, (1 - k.t) * 1.5))], 600)
    yield k.case("a single replica", replica("a", busy), 600)
    yield k.case("hardly any load", [*replica("a", k.p("min_requests") * 0.5), *replica("b", 0)], 600)


def idle_gpu(k: Knobs) -> Iterator[Case]:
    name = f"vllm_gpu_idle_while_waiting_seconds_total{{{k.target}}}"
    yield k.case("idle while requests wait", [k.seen(), (name, (grow(min(1, k.t * 1.5)),))], 400, k.fires())
    yield k.case("short gaps", [k.seen(), (name, (grow(k.t * 0.4),))], 400)


LOAD: dict[str, Cases] = {
    "VllmQueueLong": _gauge("vllm_request_waiting_queue_length", 0.9, 1.1),
    "VllmKVCacheHigh": _gauge("vllm_kv_cache_usage_ratio", 0.95, 1.05),
    "VllmKVCacheExhausted": kv_exhausted,
    "VllmTokensDropped": tokens_dropped,
    "VllmTimeouts": timeouts,
    "VllmCacheHitRateLow": hit_rate_low,
    "VllmRunningNearLimit": running_near_limit,
    "VllmTTFTP95High": _p95("vllm_time_to_first_token_seconds"),
    "VllmInterTokenP95High": _p95("vllm_inter_token_latency_seconds"),
    "VllmE2EP95High": _p95("vllm_e2e_request_latency_seconds"),
    "VllmPrefillSlow": _phase("vllm_request_prefill_time_seconds"),
    "VllmDecodeSlow": _phase("vllm_inter_token_latency_seconds"),
    "VllmQueueGrowing": queue_growing,
    "VllmKVCacheExhaustionPredicted": kv_predicted,
    "VllmPreemptionStorm": preemption_storm,
    "VllmCacheHitRateCollapse": hit_rate_collapse,
    "VllmSpecAcceptanceDrop": spec_drop,
    "VllmReplicaImbalance": imbalance,
    "VllmIdleGpuWhileWaiting": idle_gpu,
}
