"""Roll-back conditions: a canary against the rest of the same model, told apart by one label."""

from __future__ import annotations

from typing import Any

from llmobs.alerts.model import MODEL, Alert, Knob

_MIN = Knob(
    value=50, unit="requests in 15 minutes", why="less is luck; at 5 % of the traffic this is the first step's worth"
)
_ENOUGH = (
    "and on ($model) sum by ($model) (increase(vllm_e2e_request_latency_seconds_count{$canary}[15m])) >= $min_requests"
)


def _speed(which: str) -> str:
    return (
        f"(sum by ($model) (rate(vllm_decode_tokens_total{{{which}}}[15m])) / "
        f"(sum by ($model) (avg_over_time(vllm_num_running_requests{{{which}}}[15m])) > 0))"
    )


def _p95(which: str) -> str:
    return (
        f"histogram_quantile(0.95, sum by ($model, le) (rate(vllm_e2e_request_latency_seconds_bucket{{{which}}}[15m])))"
    )


def _failed(which: str) -> str:
    failed = (
        f'sum by ($model) (rate(vllm_request_failed_total{{{which}, reason=~"error|oom|engine_dead|timeout"}}[15m]))'
    )
    finished = f'sum by ($model) (rate(vllm_request_finished_total{{{which}, finished_reason!~"abort|error"}}[15m]))'
    return f"({failed} / ({failed} + {finished} > 0))"


_COMMON: dict[str, Any] = {
    "group": "canary",
    "scope": MODEL,
    "stop": "rollback",
    "prevent": ("canary",),
    "dashboard": "llmobs-canary",
}

CANARY = (
    Alert(
        name="CanaryOutOfMemory", severity="critical", for_="0s",
        question="Did the canary run out of memory?",
        expr='sum by ($model) (increase(vllm_request_failed_total{$canary, reason="oom"}[10m])) > $threshold\n'
             'or sum by ($model) (group by ($target) (present_over_time(vllm_request_failed_total{$canary, reason="engine_dead"}[1h]))\n'
             "* on ($joined) group_left () sum by ($joined) (increase(vllm_oom_total{$canary}[10m]))) > $threshold",
        threshold=Knob(value=0, unit="events in 10 minutes", why="any new one: roll back"),
        summary="The canary of {{ $labels.model_name }} ran out of memory: roll back",
        impact="The users on the canary got errors; at full traffic all would.",
        causes=("the new version or flags need more memory than the old",),
        first="kubectl rollout undo deployment/CANARY",
        confirm=("vllm_oom_total", 'vllm_request_failed_total{reason="oom"}'), tune="Do not.", **_COMMON,
    ),
    Alert(
        name="CanaryTokensSlower", severity="warning", for_="5m",
        question="Does the canary generate fewer tokens per running request?",
        expr=f"1 - {_speed('$canary')} / {_speed('$stable')} > $threshold\n{_ENOUGH}",
        threshold=Knob(value=0.05, unit="ratio", why="published guides roll back at −5 % tokens/s; per running request, because the canary has less traffic"),
        params={"min_requests": _MIN},
        summary="The canary of {{ $labels.model_name }} generates {{ $value | humanizePercentage }} fewer tokens a second per request",
        impact="At full traffic the same hardware carries less.",
        causes=("the new version is slower", "its cache is still cold: wait a step", "another GPU type"),
        first="kubectl rollout pause deployment/CANARY",
        confirm=("vllm_decode_tokens_total", "vllm_num_running_requests"), tune="Compare replicas of one GPU type only.", **_COMMON,
    ),
    Alert(
        name="CanaryLatencyWorse", severity="warning", for_="5m",
        question="Is the canary's p95 worse?",
        expr=f"{_p95('$canary')} / {_p95('$stable')} > $threshold\n{_ENOUGH}",
        threshold=Knob(value=1.1, unit="times the others' p95", why="ten per cent is more than two equal groups differ by"),
        params={"min_requests": _MIN},
        summary="The canary of {{ $labels.model_name }} has a p95 latency {{ $value | humanize }} times that of the others",
        impact="Users of the canary wait longer.",
        causes=("the new version is slower", "its cache is still cold: wait a step", "it got other requests"),
        first="kubectl rollout pause deployment/CANARY",
        confirm=("vllm_e2e_request_latency_seconds_bucket", "vllm_requests_generation_tokens_sum"),
        tune="Raise it for small canaries.", **_COMMON,
    ),
    Alert(
        name="CanaryFailuresUp", severity="critical", for_="2m",
        question="Does the canary fail more often?",
        expr=f"{_failed('$canary')} - ({_failed('$stable')} or on ($model) 0 * {_failed('$canary')}) > $threshold\n{_ENOUGH}",
        threshold=Knob(value=0.01, unit="ratio", why="one request in a hundred more than the others"),
        params={"min_requests": _MIN},
        summary="The canary of {{ $labels.model_name }} fails {{ $value | humanizePercentage }} more of its requests than the others: roll back",
        impact="Users of the canary get errors.",
        causes=("the new version or flags", "an incompatible client feature"),
        first="kubectl rollout undo deployment/CANARY",
        inhibited_by=("CanaryOutOfMemory",),
        confirm=("vllm_request_failed_total", "vllm_request_finished_total"), tune="Raise it for small canaries.", **_COMMON,
    ),
)  # fmt: skip
