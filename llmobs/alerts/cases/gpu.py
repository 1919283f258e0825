"""Cases of the alerts on memory and GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.alerts.cases.model import FOREVER, Case, Cases, Check, Knobs, Series, flat, gone, grow, histogram
from llmobs.alerts.rules.gpu import XID_TIERS

GIB = 1024.0**3


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


GPUS: dict[str, Cases] = {
    "GpuMemoryCreep": memory_creep,
    "VllmAllocatorCreep": allocator_creep,
    "GpuMemoryUnaccounted": _gpu_share("nvidia_gpu_memory_unaccounted_bytes", "nvidia_gpu_memory_total_bytes"),
    "GpuMemoryAlmostFull": _gpu_share("nvidia_gpu_memory_free_bytes", "nvidia_gpu_memory_total_bytes", inverse=True),
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
}
