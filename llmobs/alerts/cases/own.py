"""Cases of the alerts on llmobs itself."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.alerts.cases.model import Case, Cases, Knobs, Series, flat, gone, grow


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


OWN: dict[str, Cases] = {
    "LlmobsWatchdog": watchdog,
    "LlmobsDown": llmobs_down,
    "LlmobsCollectorFailing": collector_failing,
    "LlmobsCollectorStale": collector_stale,
    "LlmobsCollectorOverrun": collector_overrun,
    "LlmobsGpuUnreadable": _own("llmobs_nvml_error", ',reason="no_permission"', 1, 0, reason="no_permission"),
    "LlmobsHookRemoved": _own("llmobs_hook_active", ',target="t",hook="spans"', 0, 1, hook="spans"),
    "LlmobsConfigReloadFailed": _own("llmobs_config_last_reload_successful", "", 0, 1),
}
