"""The error budgets of the objectives: multi-window, multi-burn-rate."""

from __future__ import annotations

from llmobs.alerts.model import MODEL, Alert, Knob
from llmobs.alerts.rules.common import SYMPTOMS
from llmobs.alerts.slo import WINDOWS

#: Replaced by the generator for each pair of windows: the long and short window and the factor between them.
_EXPR = (
    'model:vllm_slo_errors:ratio_rate<long>{{slo="{0}"}} > $threshold * <factor> * (1 - model:vllm_slo_objective:ratio{{slo="{0}"}})\n'
    'and on ($model, slo) model:vllm_slo_errors:ratio_rate<short>{{slo="{0}"}} > $threshold * <factor> * (1 - model:vllm_slo_objective:ratio{{slo="{0}"}})\n'
    'and on ($model, slo) model:vllm_slo_bad:rate<long>{{slo="{0}"}} * <long_seconds> >= $min_bad'
)
_THRESHOLD = Knob(
    value=1, unit="times the burn rates " + " / ".join(f"{w[2]:g}" for w in WINDOWS),
    why="14.4 spends 2 % of a month's budget in an hour; one factor scales all four windows",
)  # fmt: skip
_MIN_BAD = Knob(
    value=10, unit="bad events in the long window", why="three slow requests of a quiet night must not page"
)


def _budget(name: str, slo: str, question: str, what: str, causes: tuple[str, ...], **more: str) -> Alert:
    return Alert(
        name=name, group="slo", scope=(*MODEL, "slo"), severity="critical", for_="2m", keep_firing_for="5m",
        question=question, expr=_EXPR.format(slo), threshold=_THRESHOLD, params={"min_bad": _MIN_BAD},
        summary="{{ $value | humanizePercentage }} of the " + what + " of {{ $labels.model_name }} were too slow or failed; the error budget burns <factor> times too fast (over <long>)",
        impact="At this rate the month's error budget is gone in days or hours.",
        causes=causes, first="curl -s http://SIDECAR:9401/metrics | grep -E 'phase_ratio|failed_total'",
        stop=more["stop"], prevent=("slo", more["prevent"]),
        inhibited_by=(*SYMPTOMS, *more.get("also", "").split()), dashboard="llmobs-slo",
        confirm=("model:vllm_slo_errors:ratio_rate1h", "model:vllm_slo_errors:ratio_rate5m", "model:vllm_slo_budget_remaining:ratio"),
        tune="Change the objective (alerts.slo), not the factors: an objective nobody misses is too loose, one that is "
             "always missed is a wish. The windows are made for a budget of 30 days.",
        trace=more.get("trace", ""),
    )  # fmt: skip


BUDGETS = (
    _budget(
        "VllmAvailabilityBudgetBurn", "availability", "Do too many requests fail for this model's objective?", "requests",
        ("the failures by reason say which: out of memory, engine dead, time-outs, rejections",),
        stop="rollback", prevent="health", also="VllmErrorRatio VllmRestartLoop", trace="{ status = error }",
    ),
    _budget(
        "VllmTTFTBudgetBurn", "ttft", "Do too many answers start too late for this model's objective?", "first tokens",
        ("queue: traffic above capacity", "prefill: longer prompts or lost cache hits"), stop="prefill", prevent="batch",
        also="VllmAvailabilityBudgetBurn", trace='{ name = "http.server.request" && span.gen_ai.request.model = "<model>" && duration > 2s }',
    ),
    _budget(
        "VllmInterTokenBudgetBurn", "inter_token", "Do too many tokens come too late for this model's objective?", "tokens",
        ("long prefills between decode steps", "a batch that is too large", "a throttling GPU"), stop="decode", prevent="batch",
        also="GpuThermalThrottling VllmTTFTBudgetBurn VllmAvailabilityBudgetBurn", trace='{ name = "llm.decode.step" && duration > 200ms }',
    ),
    _budget(
        "VllmE2EBudgetBurn", "e2e", "Do too many answers take too long for this model's objective?", "answers",
        ("queue, prefill or decode: the phase ratio says which", "outputs became longer"), stop="prefill", prevent="batch",
        also="VllmTTFTBudgetBurn VllmInterTokenBudgetBurn VllmAvailabilityBudgetBurn",
    ),
    Alert(
        name="VllmErrorBudgetExhausted", group="slo", scope=(*MODEL, "slo"), severity="info", for_="1h",
        question="Is the month's error budget used up?",
        expr="model:vllm_slo_budget_remaining:ratio < $threshold",
        threshold=Knob(value=0, unit="ratio", why="nothing is left of it"),
        metric="model:vllm_slo_budget_remaining:ratio",
        summary="The 30-day error budget ({{ $labels.slo }}) of {{ $labels.model_name }} is used up: {{ $value | humanizePercentage }} left",
        impact="The objective is missed this month.", causes=("one large incident or many small ones: the burn-rate board shows when",),
        first="open the SLO board over 30 days", stop="nothing", prevent=("slo",), dashboard="llmobs-slo",
        confirm=("model:vllm_slo_budget_remaining:ratio", "model:vllm_slo_errors:ratio_rate30d"),
        tune="Stop risky changes until it recovers, or loosen the objective.",
    ),
    Alert(
        name="VllmSLOBoundaryMissing", group="slo", scope=(*MODEL, "slo"), severity="warning", for_="30m",
        question="Is an objective blind because its boundary is not among the buckets?",
        expr="model:vllm_slo_requests:rate5m > 0 unless on ($model, slo) model:vllm_slo_bad:rate5m",
        summary="The {{ $labels.slo }} objective of {{ $labels.model_name }} cannot be measured: its boundary is no bucket bound",
        impact="No alert and no budget for this objective.",
        causes=("--custom-histogram-buckets of the server", "a boundary in alerts.slo that vLLM does not have"),
        first="curl -s http://SIDECAR:9401/metrics | grep time_to_first_token_seconds_bucket",
        stop="config", prevent=("slo",), dashboard="llmobs-slo",
        confirm=("vllm_time_to_first_token_seconds_bucket", "vllm_e2e_request_latency_seconds_bucket"),
        tune="Set the boundary to one of the bounds on the server's page.",
    ),
)  # fmt: skip
