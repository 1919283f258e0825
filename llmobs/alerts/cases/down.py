"""Cases of the alerts on what is down, blind, hung, restarting, or out of memory."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.alerts.cases.model import FOREVER, Case, Cases, Check, Knobs, Series, flat, gone, grow


def _state(k: Knobs, *parts: tuple[str, float], target: str = "t", instance: str = "a:9401") -> list[Series]:
    """The state of a target over time, and vllm_up with it."""
    labels = f'instance="{instance}",target="{target}"'
    made: list[Series] = [
        (f'vllm_engine_state{{{labels},state="{word}"}}', tuple(flat(float(now == word), s) for now, s in parts))
        for word in ("starting", "ready", "unreachable", "dead")
    ]
    made.append((f"vllm_up{{{labels}}}", tuple(flat(float(now == "ready"), s) for now, s in parts)))
    seen = f'vllm_request_failed_total{{{labels},model_name="{k.model}",engine="0",reason="engine_dead"}}'
    made.append((seen, (flat(0),)))
    return made


def _until(series: list[Series], end: float) -> list[Series]:
    """The series with an end: after it they are absent."""
    return [(name, (*parts[:-1], (parts[-1][0], parts[-1][1], end), gone())) for name, parts in series]


def model_down(k: Knobs) -> Iterator[Case]:
    both = [
        *_state(k, ("ready", 300), ("unreachable", FOREVER)),
        *_state(k, ("ready", 300), ("dead", FOREVER), instance="b:9401"),
    ]
    yield k.case("every replica is gone", both, 300, k.fires())
    one = [*_state(k, ("ready", 300), ("unreachable", FOREVER)), *_state(k, ("ready", FOREVER), instance="b:9401")]
    yield k.case("one of two is left", one, 300)
    yield k.case("a new model still loads", _state(k, ("starting", FOREVER)), 300)
    back = _state(k, ("ready", 300), ("unreachable", 300), ("ready", FOREVER))
    yield k.case("fires once and resolves", back, 300, k.fires(), also=[Check(at=900, fires=())])
    rolled = _until(_state(k, ("ready", FOREVER)), 600)
    fresh = _state(k, ("starting", 300), ("ready", FOREVER), instance="b:9401")
    yield k.case("a rolling deployment replaces the pod", [*rolled, *fresh], 600)


def target_down(k: Knobs) -> Iterator[Case]:
    other = _state(k, ("ready", FOREVER), instance="b:9401")
    yield k.case("one replica is gone", [*_state(k, ("ready", 300), ("unreachable", FOREVER)), *other], 300, k.fires())
    yield k.case("one replica still loads", [*_state(k, ("starting", FOREVER)), *other], 300)
    unknown = [(n, p) for n, p in _state(k, ("unreachable", FOREVER)) if "failed" not in n]
    yield k.case("a server that never came up has no model", unknown, 0, k.fires(model_name=""))


def starting_too_long(k: Knobs) -> Iterator[Case]:
    age = ('vllm_engine_state_age_seconds{instance="a:9401",target="t"}', (flat(0), grow(1)))
    yield k.case("loading takes longer than the limit", [*_state(k, ("starting", FOREVER)), age], k.t + 60, k.fires())
    yield k.case("loading within the limit", [*_state(k, ("starting", FOREVER)), age], k.t - 300)
    yield k.case("an old ready server", [*_state(k, ("ready", FOREVER)), age], k.t + 60)


def metrics_absent(k: Knobs) -> Iterator[Case]:
    named = {"model_name": k.model} if k.effective.match else {}
    nothing = [('vllm_up{instance="z:9401",target="z"}', (gone(),))]
    yield k.case("there is no vLLM at all", nothing, 0, k.fires(**named))
    yield k.case("there is one", _state(k, ("ready", FOREVER)), 300)
    vanish = _until(_state(k, ("ready", FOREVER)), 4200)
    yield k.case("fires although every series has vanished", vanish, 4200 + 3900, k.fires(**named))


def model_vanished(k: Knobs) -> Iterator[Case]:
    mine = _until(_state(k, ("ready", FOREVER)), 600)
    other = [
        (n.replace(f'model_name="{k.model}"', 'model_name="other"'), p)
        for n, p in _state(k, ("ready", FOREVER), instance="b:9401")
    ]
    # Five minutes after its last sample Prometheus calls a series gone.
    ended = [Check(at=600 + 4000, fires=())]
    yield k.case("the targets are gone from discovery", [*mine, *other], 960, k.fires(), also=ended)
    yield k.case("the target is there", [*_state(k, ("ready", FOREVER)), *other], 960)


def _flag(name: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        labels = k.replica
        yield k.case("the state holds", [(f"{name}{{{labels}}}", (flat(0, 300), flat(1)))], 300, k.fires())
        yield k.case("it does not", [(f"{name}{{{labels}}}", (flat(0),))], 300)
        blip = [(f"{name}{{{labels}}}", (flat(0, 300), flat(1, 15), flat(0)))]
        yield k.case("one sample of it", blip, 315, interval=15)

    return cases


def restart_loop(k: Knobs) -> Iterator[Case]:
    name = f"vllm_engine_restarts_total{{{k.target}}}"
    count = int(k.t) + 2
    steps = [flat(0, 300)] + [flat(float(i), 120) for i in range(1, count)] + [flat(float(count))]
    yield k.case("restart after restart", [k.seen(), (name, tuple(steps))], 300 + 120 * count, k.fires())
    yield k.case("one restart", [k.seen(), (name, (flat(0, 300), flat(1)))], 600)
    yield k.case("a sidecar that starts with an old count", [k.seen(), (name, (gone(300), flat(9)))], 900)


def restarted(k: Knobs) -> Iterator[Case]:
    name = f"vllm_engine_restarts_total{{{k.target}}}"
    once = [k.seen(), (name, (flat(0, 300), flat(1)))]
    yield k.case("a restart", once, 330, k.fires(), also=[Check(at=1800, fires=())])
    yield k.case("none", [k.seen(), (name, (flat(3),))], 330)


def out_of_memory(k: Knobs) -> Iterator[Case]:
    oom = f'vllm_oom_total{{{k.target},kind="cuda"}}'
    started = ('process_start_time_seconds{instance="a:9401"}', (flat(-100000),))
    yield k.case(
        "an event", [k.seen(), (oom, (flat(0, 300), flat(1)))], 330, k.fires(), also=[Check(at=3600, fires=())]
    )
    yield k.case("none", [k.seen(), started, (oom, (flat(0),))], 330)
    yield k.case("the first sample is already 1", [k.seen(), started, (oom, (gone(300), flat(1)))], 330, k.fires())
    fresh = ('process_start_time_seconds{instance="a:9401"}', (gone(300), flat(300)))
    yield k.case(
        "a sidecar that has just started finds an old count", [k.seen(), fresh, (oom, (gone(300), flat(1)))], 330
    )
    requests = f'vllm_request_failed_total{{{k.replica},reason="oom"}}'
    yield k.case("requests failed for it", [k.seen(), (requests, (flat(0, 300), flat(4)))], 330, k.fires())


DOWN: dict[str, Cases] = {
    "VllmModelDown": model_down,
    "VllmTargetDown": target_down,
    "VllmStartingTooLong": starting_too_long,
    "VllmMetricsAbsent": metrics_absent,
    "VllmModelVanished": model_vanished,
    "VllmEngineStalled": _flag("vllm_engine_stalled"),
    "VllmEngineLivelock": _flag("vllm_engine_livelock"),
    "VllmRestartLoop": restart_loop,
    "VllmRestarted": restarted,
    "VllmOutOfMemory": out_of_memory,
}
