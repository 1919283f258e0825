"""Cases of the alerts on memory, GPUs, error budgets, canaries, and llmobs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from llmobs.alerts.cases.model import Case, Check, Knobs, Series, flat, gone, grow, histogram
from llmobs.alerts.rules.gpu import XID_TIERS
from llmobs.alerts.slo import WINDOWS

FOREVER = float("inf")
GIB = 1024.0**3
Cases = Callable[[Knobs], Iterator[Case]]


def memory_creep(k: Knobs) -> Iterator[Case]:
    total = 80 * GIB
    rate = 0.1 * total / (k.t * 0.5)  # the free tenth is gone in half of the limit

    def gpu(growth: float, started: float = -1e6, load: tuple[float, float] = (4, 4)) -> list[Series]:
        return [
            *k.beside(),
            (f"nvidia_gpu_memory_total_bytes{{{k.gpu}}}", (flat(total),)),
            (f"nvidia_gpu_memory_used_bytes{{{k.gpu}}}", (flat(total * 0.85), grow(growth))),
            (f"nvidia_gpu_memory_free_bytes{{{k.gpu}}}", (flat(total * 0.1),)),
            (f"vllm_start_time_seconds{{{k.target}}}", (flat(started),)),
            (f"vllm_num_running_requests{{{k.replica}}}", (flat(load[0], 21600), flat(load[1]))),
        ]

    yield k.case("grows at flat load", gpu(rate), 8 * 3600, k.fires(), interval=300)
    yield k.case("does not grow", gpu(0), 8 * 3600, interval=300)
    yield k.case("grows because the model was loaded", gpu(rate, started=6 * 3600), 8 * 3600, interval=300)
    yield k.case("grows with the load", gpu(rate, load=(4, 60)), 8 * 3600, interval=300)


def allocator_creep(k: Knobs) -> Iterator[Case]:
    def worker(growth: float, started: float = -1e6) -> list[Series]:
        labels = f'{k.replica},rank="0"'
        return [
            (f"vllm_worker_memory_reserved_bytes{{{labels}}}", (flat(60 * GIB), grow(growth))),
            (f"vllm_worker_memory_allocated_bytes{{{labels}}}", (flat(55 * GIB),)),
            (f"vllm_start_time_seconds{{{k.target}}}", (flat(started),)),
        ]

    yield k.case("reserved grows, allocated does not", worker(k.t * 1.5 / 21600), 8 * 3600, k.fires(), interval=300)
    yield k.case("hardly grows", worker(k.t * 0.5 / 21600), 8 * 3600, interval=300)
    yield k.case("the first hours", worker(k.t * 1.5 / 21600, 6 * 3600), 8 * 3600, interval=300)


def _gpu_share(part: str, whole: str, *, inverse: bool = False) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        def gpu(share: float) -> list[Series]:
            value = 1 - share if inverse else share
            return [
                *k.beside(),
                (f"{part}{{{k.gpu}}}", (flat(value * 80 * GIB),)),
                (f"{whole}{{{k.gpu}}}", (flat(80 * GIB),)),
            ]

        yield k.case("above the threshold", gpu(k.t + (1 - k.t) / 2), 0, k.fires())
        yield k.case("below it", gpu(k.t * 0.9), 0)
        none = [
            *k.beside(),
            (f"{part}{{{k.gpu}}}", (flat(0 if inverse else GIB),)),
            (f"{whole}{{{k.gpu}}}", (flat(0),)),
        ]
        yield k.case("a total of 0 is unknown, not infinite", none, 0)

    return cases


def host_memory(k: Knobs) -> Iterator[Case]:
    used, limit = f"vllm_host_memory_used_bytes{{{k.target}}}", f"vllm_host_memory_limit_bytes{{{k.target}}}"
    near = (used, (flat(100 * GIB * (k.t + (1 - k.t) / 2)),))
    yield k.case("close to the limit", [k.seen(), near, (limit, (flat(100 * GIB),))], 0, k.fires())
    yield k.case("far from it", [k.seen(), (used, (flat(50 * GIB),)), (limit, (flat(100 * GIB),))], 0)
    yield k.case("no limit", [k.seen(), near], 0)


def _gpu_gauge(name: str, *, below: bool = False, more: str = "") -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        series = f"{name}{{{k.gpu}{more}}}"
        t = k.t if k.effective.threshold is not None else 0
        on, off = (t - 1, t + 1) if below else (t + 1, t - 1 if t > 1 else 0)
        yield k.case("the state holds", [*k.beside(), (series, (flat(off, 120), flat(on)))], 120, k.fires())
        yield k.case("it does not", [*k.beside(), (series, (flat(off),))], 120)
        twice = [*k.beside(), (series, (flat(on),)), ('llmobs_watchdog{instance="b:9401"}', (flat(1),))]
        yield k.case("one alert per GPU", twice, 120, k.fires())

    return cases


def _xid(tier: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        code = XID_TIERS[tier][0]
        seen = 'nvidia_gpu_xid_last_seen_timestamp_seconds{{{0},xid="{1}"}}'
        hit = [*k.beside(), (seen.format(k.gpu, code), (gone(300), flat(300)))]
        yield k.case("an Xid of this tier", hit, 330, k.fires(xid=code), also=[Check(at=300 + k.t + 120, fires=())])
        for other in (t for t in XID_TIERS if t != tier):
            elsewhere = [*k.beside(), (seen.format(k.gpu, XID_TIERS[other][0]), (gone(300), flat(300)))]
            yield k.case(f"an Xid of the tier {other}", elsewhere, 330)
        old = [*k.beside(), (seen.format(k.gpu, code), (flat(-100000),))]
        yield k.case("an old one", old, 330)
        unknown = [
            ('llmobs_watchdog{instance="a:9401"}', (flat(1),)),
            (seen.format('instance="a:9401",uuid="unknown"', code), (gone(300), flat(300))),
        ]
        yield k.case("without a known GPU or model", unknown, 330, k.fires(xid=code, uuid="unknown", model_name=""))

    return cases


def gpu_lost(k: Knobs) -> Iterator[Case]:
    error = 'nvidia_gpu_error{{{0},reason="{1}"}}'
    lost = [
        *k.beside(),
        (error.format(k.gpu, "lost"), (flat(0, 300), flat(1))),
        (error.format(k.gpu, "hung"), (flat(0),)),
    ]
    yield k.case("a GPU falls off the bus", lost, 300, k.fires(reason="lost"))
    yield k.case("all answer", [*k.beside(), (error.format(k.gpu, "lost"), (flat(0),))], 300)


def gpu_missing(k: Knobs) -> Iterator[Case]:
    def gpus(*parts: tuple[Series, ...]) -> list[Series]:
        return [('llmobs_nvml_up{instance="a:9401"}', (flat(1),)), *(s for part in parts for s in part)]

    stays = (('nvidia_gpu_up{instance="a:9401",uuid="GPU-1"}', (flat(1),)),)
    leaves = (('nvidia_gpu_up{instance="a:9401",uuid="GPU-2"}', (flat(1, 600), gone())),)
    alone = (('nvidia_gpu_up{instance="a:9401",uuid="GPU-1"}', (flat(1, 600), gone())),)
    yield k.case("one of two is gone", gpus(stays, leaves), 960, k.fires())
    yield k.case("both are gone", gpus(alone, leaves), 960, k.fires())
    yield k.case("all are there", gpus(stays), 960)


def ecc(k: Knobs) -> Iterator[Case]:
    name = f'nvidia_gpu_ecc_errors_total{{{k.gpu},severity="uncorrected"}}'
    yield k.case("a new error", [*k.beside(), (name, (flat(0, 300), flat(k.t + 2)))], 360, k.fires())
    yield k.case("errors from before the sidecar started", [*k.beside(), (name, (flat(9),))], 360)
    corrected = name.replace("uncorrected", "corrected")
    yield k.case("corrected ones", [*k.beside(), (corrected, (flat(0, 300), flat(50)))], 360)


def _latency(k: Knobs, before: float, after: float, turn: float) -> list[Series]:
    parts = ((50.0, {"+Inf": 1.0}, before, turn), (50.0, {"+Inf": 1.0}, after, FOREVER))
    return histogram("vllm_inter_token_latency_seconds", k.replica, *parts)


def _throttle(reason: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        flag = f'nvidia_gpu_clock_event_active{{{k.gpu},reason="{reason}"}}'
        slower = _latency(k, 0.03, 0.03 * k.p("slower") * 1.5, 7200)
        yield k.case(
            "throttled and slower",
            [*k.beside(), (flag, (flat(0, 7200), flat(1))), *slower],
            7500,
            k.fires(),
            interval=60,
        )
        same = _latency(k, 0.03, 0.03, 7200)
        yield k.case(
            "throttled, and nobody notices", [*k.beside(), (flag, (flat(0, 7200), flat(1))), *same], 7500, interval=60
        )
        yield k.case("slower without throttling", [*k.beside(), (flag, (flat(0),)), *slower], 7500, interval=60)

    return cases


def pcie(k: Knobs) -> Iterator[Case]:
    def gpu(generation: float, width: float, busy: float) -> list[Series]:
        values = {
            "nvidia_gpu_pcie_link_generation": generation, "nvidia_gpu_pcie_link_generation_max": 4,
            "nvidia_gpu_pcie_link_width": width, "nvidia_gpu_pcie_link_width_max": 16, "nvidia_gpu_utilization_ratio": busy,
        }  # fmt: skip
        return [*k.beside(), *((f"{name}{{{k.gpu}}}", (flat(value),)) for name, value in values.items())]

    busy = (1 + k.p("min_utilization")) / 2
    yield k.case("half the lanes under load", gpu(4, 8, busy), 0, k.fires())
    yield k.case("a lower generation under load", gpu(1, 16, busy), 0, k.fires())
    yield k.case("a sleeping link of an idle GPU", gpu(1, 16, 0.0), 0)
    yield k.case("the full link", gpu(4, 16, busy), 0)


def slower_gpu(k: Knobs) -> Iterator[Case]:
    def gpus(last: float, busy: float) -> list[Series]:
        made: list[Series] = list(k.beside())
        for i, clock in ((1, last), (2, 1.0), (3, 1.0), (4, 1.0)):
            labels = f'instance="a:9401",uuid="GPU-{i}"'
            made += [
                (f'nvidia_gpu_clock_hertz{{{labels},clock="sm"}}', (flat(clock * 1.9e9),)),
                (f"nvidia_gpu_utilization_ratio{{{labels}}}", (flat(busy),)),
            ]
        return made

    busy = (1 + k.p("min_utilization")) / 2
    yield k.case("one clocks lower under load", gpus(k.t * 0.8, busy), 300, k.fires())
    yield k.case("all alike", gpus(0.98, busy), 300)
    yield k.case("idle GPUs", gpus(k.t * 0.8, 0.0), 300)


def xid_listener(k: Knobs) -> Iterator[Case]:
    def own(listener: float, nvml: float) -> list[Series]:
        return [
            ('llmobs_xid_listener_up{instance="a:9401"}', (flat(listener),)),
            ('llmobs_nvml_up{instance="a:9401"}', (flat(nvml),)),
        ]

    yield k.case("NVML works, the listener does not", own(0, 1), 0, k.fires())
    yield k.case("a host without GPUs", own(0, 0), 0)
    yield k.case("both work", own(1, 1), 0)


def _bad_share(k: Knobs, slo: str, share: float, rate: float, turn: float, until: float = FOREVER) -> list[Series]:
    """Traffic whose share of bad events is `share` between `turn` and `until`, else 0."""
    parts = ((0.0, turn), (share, until - turn), (0.0, FOREVER)) if until < FOREVER else ((0.0, turn), (share, FOREVER))
    if slo == "availability":
        good = (
            f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}',
            tuple(grow(rate * (1 - s), t) for s, t in parts),
        )
        bad = (f'vllm_request_failed_total{{{k.replica},reason="error"}}', tuple(grow(rate * s, t) for s, t in parts))
        return [k.seen(), good, bad]
    name, bound = _HISTOGRAMS[slo]
    return histogram(name, k.replica, *((rate, {bound: 1 - s, "+Inf": 1.0}, 1.0, t) for s, t in parts))


#: Objective → its histogram and boundary; the generator replaces the boundary by the one in effect.
_HISTOGRAMS = {
    "ttft": ("vllm_time_to_first_token_seconds", "<ttft>"),
    "inter_token": ("vllm_inter_token_latency_seconds", "<inter_token>"),
    "e2e": ("vllm_e2e_request_latency_seconds", "<e2e>"),
}


def _burn(slo: str, budget: float) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        def labels(window: str, severity: str) -> dict[str, str]:
            own = severity if k.effective.severity == "critical" else k.effective.severity
            return {**k.fires(slo=slo), "window": window, "severity": own}

        def for_of(i: int) -> str:
            return WINDOWS[i][3] if k.effective.for_ == k.effective.alert.for_ else k.effective.for_

        rate = max(10.0, k.p("min_bad"))
        fast = min(0.95, 16 * budget * k.t)
        begun = 7200.0
        yield k.case(
            "a burn of 16 pages within the hour", _bad_share(k, slo, fast, rate, begun), begun + 3600,
            *_sorted(labels("1h", "critical")), interval=60, for_="2m",
        )  # fmt: skip
        slow = 1.1 * budget * k.t
        yield k.case(
            "a burn of 1.1 does not page",
            _bad_share(k, slo, slow, rate, begun),
            begun + 3600,
            interval=60,
            for_=for_of(1),
        )
        yield k.case(
            "a burst of five minutes is over",
            _bad_share(k, slo, fast, rate, begun, begun + 300),
            begun + 1500,
            interval=60,
            for_="2m",
        )
        few = k.p("min_bad") / 3600 * 0.5
        yield k.case(
            "all of a handful of requests", _bad_share(k, slo, 1.0, few, begun), begun + 3600, interval=60, for_="2m"
        )
        yield k.case("no traffic", [k.seen()], begun, interval=60)

    return cases


def _sorted(*labels: dict[str, str]) -> tuple[dict[str, str], ...]:
    return labels


def budget_exhausted(k: Knobs) -> Iterator[Case]:
    yield k.case(
        "twice the budget was spent",
        _bad_share(k, "availability", 0.01 * (1 - min(k.t, 0.9)), 10, 600),
        7200,
        k.fires(slo="availability"),
        interval=60,
    )
    yield k.case("a little was spent", _bad_share(k, "availability", 0.0005, 10, 600), 7200, interval=60)


def boundary_missing(k: Knobs) -> Iterator[Case]:
    other = histogram("vllm_time_to_first_token_seconds", k.replica, (2.0, {"123.0": 1.0, "+Inf": 1.0}, 1.0, FOREVER))
    yield k.case("the boundary is no bucket bound", other, 600, k.fires(slo="ttft"), interval=60)
    good = histogram("vllm_time_to_first_token_seconds", k.replica, (2.0, {"<ttft>": 1.0, "+Inf": 1.0}, 1.0, FOREVER))
    yield k.case("it is one", good, 600, interval=60)


def _both(k: Knobs, name: str, canary: float, stable: float, more: str = "") -> list[Series]:
    replica = 'instance="{0}:9401",target="t",model_name="{1}",engine="0"'
    return [
        (f"{name}{{{replica.format('a', k.model)},<canary>{more}}}", (grow(canary),)),
        (f"{name}{{{replica.format('b', k.model)},<stable>{more}}}", (grow(stable),)),
    ]


def _e2e(k: Knobs, canary: float, stable: float, rate: float) -> list[Series]:
    bounds = [0.5 * 1.2**i for i in range(40)]
    made: list[Series] = []
    for n, label, p95 in (("a", "<canary>", canary), ("b", "<stable>", stable)):
        labels = f'instance="{n}:9401",target="t",model_name="{k.model}",engine="0",{label}'
        # A steep distribution that ends at p95.
        shares = {f"{b:.4f}": min(1.0, (b / p95) ** 2) for b in bounds}
        made += histogram("vllm_e2e_request_latency_seconds", labels, (rate, {**shares, "+Inf": 1.0}, p95 / 2, FOREVER))
    return made


def canary_oom(k: Knobs) -> Iterator[Case]:
    base = [k.seen("<canary>")]
    name = f'vllm_oom_total{{{k.target},<canary>,kind="cuda"}}'
    yield k.case("the canary runs out of memory", [*base, (name, (flat(0, 300), flat(k.t + 1)))], 330, k.fires())
    stable = name.replace("<canary>", "<stable>")
    yield k.case("one of the others does", [k.seen("<stable>"), (stable, (flat(0, 300), flat(k.t + 1)))], 330)
    lost = f'vllm_request_failed_total{{{k.replica},<canary>,reason="oom"}}'
    yield k.case("requests of the canary failed for it", [*base, (lost, (flat(0, 300), flat(k.t + 2)))], 330, k.fires())


def canary_tokens(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4

    def pair(canary: float, per_second: float = rate) -> list[Series]:
        running = [(n, (flat(10),)) for n, _ in _both(k, "vllm_num_running_requests", 0, 0)]
        return [*_both(k, "vllm_decode_tokens_total", canary * 300, 300), *running, *_e2e(k, 10, 10, per_second)]

    yield k.case("slower beyond the limit", pair(1 - k.t * 2), 1200, k.fires())
    yield k.case("a little slower", pair(1 - k.t * 0.5), 1200)
    yield k.case("too few requests to judge", pair(1 - k.t * 2, rate / 8), 1200)


def canary_latency(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4
    yield k.case("p95 is worse", _e2e(k, 10 * k.t * 1.4, 10, rate), 1200, k.fires())
    yield k.case("p95 is alike", _e2e(k, 10, 10, rate), 1200)
    yield k.case("too few requests to judge", _e2e(k, 10 * k.t * 1.4, 10, rate / 8), 1200)


def canary_failures(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4

    def pair(canary: float, per_second: float = rate) -> list[Series]:
        failed = _both(k, "vllm_request_failed_total", per_second * canary, per_second * 0.001, ',reason="error"')
        good = _both(k, "vllm_request_finished_total", per_second * (1 - canary), per_second, ',finished_reason="stop"')
        return [*failed, *good, *_e2e(k, 10, 10, per_second)]

    yield k.case("more failures", pair(k.t * 3 + 0.01), 1200, k.fires())
    yield k.case("about as many", pair(k.t * 0.5), 1200)
    yield k.case("too few requests to judge", pair(k.t * 3 + 0.01, rate / 8), 1200)


def watchdog(k: Knobs) -> Iterator[Case]:
    yield k.case("always", [('llmobs_watchdog{instance="a:9401"}', (flat(1),))], 0, k.fires())
    yield k.case("no sidecar reports", [('llmobs_watchdog{instance="a:9401"}', (gone(),))], 60)


def llmobs_down(k: Knobs) -> Iterator[Case]:
    up = 'up{job="llmobs",instance="a:9401"}'
    watchdog_until = ('llmobs_watchdog{instance="a:9401"}', (flat(1, 300), gone()))
    yield k.case("does not answer any more", [watchdog_until, (up, (flat(1, 300), flat(0)))], 330, k.fires())
    yield k.case("answers", [('llmobs_watchdog{instance="a:9401"}', (flat(1),)), (up, (flat(1),))], 330)
    yield k.case("another job is down", [('up{job="node",instance="c:9100"}', (flat(0),))], 330)


def _state(k: Knobs, word: str) -> Series:
    return (f'vllm_engine_state{{{k.target},state="{word}"}}', (flat(1),))


def collector_failing(k: Knobs) -> Iterator[Case]:
    success = ('llmobs_collector_success{instance="a:9401",collector="engine",target="t"}', (flat(0),))
    yield k.case("fails while the target is up", [success, _state(k, "ready")], 0, k.fires(collector="engine"))
    yield k.case("fails because the target is down", [success, _state(k, "unreachable")], 0)
    gpu = ('llmobs_collector_success{instance="a:9401",collector="gpu"}', (flat(0),))
    yield k.case("a host without GPUs", [gpu], 0)
    yield k.case("succeeds", [(success[0], (flat(1),)), _state(k, "ready")], 0)


def collector_stale(k: Knobs) -> Iterator[Case]:
    last = 'llmobs_collector_last_success_timestamp_seconds{instance="a:9401",collector="engine",target="t"}'
    yield k.case(
        "the last success is old", [(last, (flat(0),)), _state(k, "ready")], k.t + 60, k.fires(collector="engine")
    )
    yield k.case("it is recent", [(last, (flat(0, 15), grow(1))), _state(k, "ready")], k.t + 60)
    yield k.case("never a success is not stale", [(last, (gone(),)), _state(k, "ready")], k.t + 60)
    yield k.case("the target is down", [(last, (flat(0),)), _state(k, "unreachable")], k.t + 60)


def collector_overrun(k: Knobs) -> Iterator[Case]:
    labels = 'instance="a:9401",collector="engine",target="t"'
    every = (f"llmobs_collector_interval_seconds{{{labels}}}", (flat(5),))
    late = f"llmobs_cycle_overruns_total{{{labels}}}"
    yield k.case(
        "many cycles are late", [every, (late, (grow(min(1, k.t * 2) / 5),))], 660, k.fires(collector="engine")
    )
    yield k.case("one now and then", [every, (late, (grow(k.t * 0.3 / 5),))], 660)


def _own(name: str, labels: str, on: float, off: float, **more: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        series = f'{name}{{instance="a:9401"{labels}}}'
        yield k.case("the state holds", [(series, (flat(off, 120), flat(on)))], 120, k.fires(**more))
        yield k.case("it does not", [(series, (flat(off),))], 120)

    return cases


def with_boundaries(case: Case, boundaries: dict[str, str], canary: dict[str, str]) -> Case:
    """Return the case with the objectives' boundaries and the canary's label in effect."""
    words = {**{f'"<{slo}>"': f'"{bound}"' for slo, bound in boundaries.items()}, **canary}

    def put(name: str) -> str:
        for word, value in words.items():
            name = name.replace(word, value)
        return name

    return replace(case, series=tuple((put(name), parts) for name, parts in case.series))


def rest(budgets: dict[str, float]) -> dict[str, Cases]:
    """Return the cases by alert; `budgets` is objective → 1 − target."""
    return {
        "GpuMemoryCreep": memory_creep,
        "VllmAllocatorCreep": allocator_creep,
        "GpuMemoryUnaccounted": _gpu_share("nvidia_gpu_memory_unaccounted_bytes", "nvidia_gpu_memory_total_bytes"),
        "GpuMemoryAlmostFull": _gpu_share(
            "nvidia_gpu_memory_free_bytes", "nvidia_gpu_memory_total_bytes", inverse=True
        ),
        "GpuMemoryHeadroomLow": _gpu_gauge("nvidia_gpu_memory_headroom_bytes", below=True),
        "VllmHostMemoryHigh": host_memory,
        "GpuXidNode": _xid("node"),
        "GpuXidReset": _xid("reset"),
        "GpuXidApplication": _xid("application"),
        "GpuLost": gpu_lost,
        "GpuMissing": gpu_missing,
        "GpuRecoveryActionNeeded": _gpu_gauge("nvidia_gpu_recovery_action"),
        "GpuEccUncorrectable": ecc,
        "GpuRowRemapFailed": _gpu_gauge("nvidia_gpu_row_remap_failed"),
        "GpuRowRemapPending": _gpu_gauge("nvidia_gpu_row_remap_pending"),
        "GpuThermalThrottling": _throttle("hw_thermal"),
        "GpuPowerBrake": _throttle("hw_power_brake"),
        "GpuSwThermalSlowdown": _gpu_gauge("nvidia_gpu_clock_event_active", more=',reason="sw_thermal"'),
        "GpuTemperatureHigh": _gpu_gauge("nvidia_gpu_temperature_celsius"),
        "GpuPcieLinkDegraded": pcie,
        "GpuSlowerThanPeers": slower_gpu,
        "GpuXidListenerDown": xid_listener,
        "VllmAvailabilityBudgetBurn": _burn("availability", budgets["availability"]),
        "VllmTTFTBudgetBurn": _burn("ttft", budgets["ttft"]),
        "VllmInterTokenBudgetBurn": _burn("inter_token", budgets["inter_token"]),
        "VllmE2EBudgetBurn": _burn("e2e", budgets["e2e"]),
        "VllmErrorBudgetExhausted": budget_exhausted,
        "VllmSLOBoundaryMissing": boundary_missing,
        "CanaryOutOfMemory": canary_oom,
        "CanaryTokensSlower": canary_tokens,
        "CanaryLatencyWorse": canary_latency,
        "CanaryFailuresUp": canary_failures,
        "LlmobsWatchdog": watchdog,
        "LlmobsDown": llmobs_down,
        "LlmobsCollectorFailing": collector_failing,
        "LlmobsCollectorStale": collector_stale,
        "LlmobsCollectorOverrun": collector_overrun,
        "LlmobsGpuUnreadable": _own("llmobs_nvml_error", ',reason="no_permission"', 1, 0, reason="no_permission"),
        "LlmobsHookRemoved": _own("llmobs_hook_active", ',target="t",hook="spans"', 0, 1, hook="spans"),
        "LlmobsConfigReloadFailed": _own("llmobs_config_last_reload_successful", "", 0, 1),
    }
