"""Recording rules, named level:metric:operations. What several alerts and boards need is computed once.

The level says what one series is about; the labels of `AlertSettings.scope` (cluster, namespace) come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmobs.alerts.model import MODEL, REPLICA, TARGET, Recording, duration, seconds
from llmobs.alerts.slo import BAD_REASONS, PERIOD, RATIO_WINDOWS, Objective

#: Labels that a series from outside the contract has.
FOREIGN = {"up": ("job", "instance")}


def _per(numerator: str, denominator: str) -> str:
    return f"{numerator}\n/ ({denominator} > 0)"


def _mean(histogram: str, level: str) -> str:
    return _per(f"sum by ({level}) (rate({histogram}_sum[5m]))", f"sum by ({level}) (rate({histogram}_count[5m]))")


def _ratio(part: str, whole: str) -> str:
    return _per(f"sum by ($model) (rate({part}[5m]))", f"sum by ($model) (rate({whole}[5m]))")


BASE: tuple[Recording, ...] = (
    Recording(
        name="target:vllm_model:seen1h", labels=TARGET,
        expr='group by ($target) (present_over_time(vllm_request_failed_total{reason="engine_dead"}[1h]))',
        why="Which model a target serves or served: vllm_up has no model, and a target that is down has no other series.",
    ),
    Recording(
        name="target:vllm_up:model", labels=TARGET,
        expr="target:vllm_model:seen1h * on ($joined) group_left () max by ($joined) (vllm_up)",
        why="vllm_up with the model.",
    ),
    Recording(
        name="target:vllm_down:model", labels=TARGET,
        expr='target:vllm_model:seen1h * on ($joined) group_left () sum by ($joined) (vllm_engine_state{state=~"unreachable|dead"})',
        why="1 while a target that was up is gone or dead; a target that still loads is neither up nor down.",
    ),
    Recording(
        name="instance:vllm_model:single", labels=("instance", "model_name"),
        expr="(group by ($host, model_name) (target:vllm_model:seen1h)\n"
             "and on ($host) count by ($host) (group by ($host, model_name) (target:vllm_model:seen1h)) == 1)\n"
             "or on ($host) group by ($host) (llmobs_watchdog)",
        why="The model beside a sidecar, to name it in alerts on GPUs; without model_name where there are several.",
    ),
    Recording(
        name="instance:nvidia_gpu_up:count", labels=("instance",),
        expr="count by ($host) (max by ($host, uuid) (nvidia_gpu_up) == 1)", why="GPUs that answer.",
    ),
    Recording(
        name="instance:vllm_inter_token_latency:mean5m", labels=("instance",),
        expr=_mean("vllm_inter_token_latency_seconds", "$host"), why="Whether GPU throttling is felt.",
    ),
    Recording(
        name="replica:vllm_requests_in_system:avg5m", labels=REPLICA,
        expr="sum by ($replica) (avg_over_time(vllm_num_running_requests[5m]))\n"
             "+ sum by ($replica) (avg_over_time(vllm_request_waiting_queue_length[5m]))",
        why="Load of a replica, or of one of its data-parallel engines.",
    ),
    Recording(
        name="model:vllm_requests_in_system:avg2m", labels=MODEL,
        expr="sum by ($model) (avg_over_time(vllm_num_running_requests[2m]))\n"
             "+ sum by ($model) (avg_over_time(vllm_request_waiting_queue_length[2m]))",
        why="Load of a model.",
    ),
    Recording(
        name="model:vllm_decode_tokens:rate2m", labels=MODEL,
        expr="sum by ($model) (rate(vllm_decode_tokens_total[2m]))", why="Generated tokens per second.",
    ),
    Recording(
        name="model:vllm_request_prefill_time:mean5m", labels=MODEL,
        expr=_mean("vllm_request_prefill_time_seconds", "$model"), why="Mean prefill time.",
    ),
    Recording(
        name="model:vllm_inter_token_latency:mean5m", labels=MODEL,
        expr=_mean("vllm_inter_token_latency_seconds", "$model"), why="Mean time per output.",
    ),
    Recording(
        name="model:vllm_prompt_tokens:mean5m", labels=MODEL,
        expr=_mean("vllm_requests_prompt_tokens", "$model"), why="Mean prompt length.",
    ),
    Recording(
        name="model:vllm_prefix_cache_queries:rate5m", labels=MODEL,
        expr="sum by ($model) (rate(vllm_prefix_cache_queries_total[5m]))", why="Tokens looked up per second.",
    ),
    Recording(
        name="model:vllm_prefix_cache_hits:ratio_rate5m", labels=MODEL,
        expr=_ratio("vllm_prefix_cache_hits_total", "vllm_prefix_cache_queries_total"), why="Prefix cache hit rate.",
    ),
    Recording(
        name="model:vllm_spec_decode_draft_tokens:rate5m", labels=MODEL,
        expr="sum by ($model) (rate(vllm_spec_decode_draft_tokens_total[5m]))", why="Draft tokens per second.",
    ),
    Recording(
        name="model:vllm_spec_decode_accepted:ratio_rate5m", labels=MODEL,
        expr=_ratio("vllm_spec_decode_accepted_tokens_total", "vllm_spec_decode_draft_tokens_total"),
        why="Acceptance of speculative decoding.",
    ),
    Recording(
        name="model:vllm_preemptions:rate5m", labels=MODEL,
        expr="sum by ($model) (rate(vllm_preemptions_total[5m]))", why="Preemptions per second.",
    ),
    Recording(
        name="model_reason:vllm_request_failed:rate5m", labels=(*MODEL, "reason"),
        expr="sum by ($model, reason) (rate(vllm_request_failed_total[5m]))", why="Failures per second by reason.",
    ),
    Recording(
        name="model:vllm_requests_ended:rate5m", labels=MODEL,
        expr='(sum by ($model) (rate(vllm_request_finished_total{finished_reason!~"abort|error"}[5m]))\n'
             "or 0 * sum by ($model) (model_reason:vllm_request_failed:rate5m))\n"
             "+ sum by ($model) (model_reason:vllm_request_failed:rate5m)",
        why="Requests per second that ended, well or badly.",
    ),
)  # fmt: skip


def objective_rules(objective: Objective) -> Iterator[tuple[Recording, tuple[tuple[str, float], ...]]]:
    """Yield the rules of one objective, in order, each with the models whose boundary or target differs.

    The second part is empty for rules that hold for all models; otherwise the caller renders the rule once per tier.
    """
    also = {"slo": objective.slo}
    if objective.boundary is None:
        reasons = "|".join(BAD_REASONS)
        bad = f'sum by ($model) (model_reason:vllm_request_failed:rate5m{{reason=~"{reasons}"}})'
        good = 'sum by ($model) (rate(vllm_request_finished_total{finished_reason!~"abort|error"}[5m]))'
        requests = f"({good} or 0 * {bad})\n+ {bad}"
    else:
        requests = f"sum by ($model) (rate({objective.histogram}_count[5m]))"
        good = f'sum by ($model) (rate({objective.histogram}_bucket{{le="$boundary"}}[5m]))'
        bad = f"{requests}\n- {good}"
    tiers = tuple((m, o.target) for m, o in objective.models.items())
    mine: dict[str, Any] = {"labels": (*MODEL, "slo"), "also": also}
    yield Recording(name="model:vllm_slo_requests:rate5m", expr=requests, why="Events that count.", **mine), ()
    yield Recording(name="model:vllm_slo_bad:rate5m", expr=bad, why="Those that were not good.", **mine), tiers
    yield (
        Recording(
            name="model:vllm_slo_objective:ratio",
            expr=f'0 * model:vllm_slo_requests:rate5m{{slo="{objective.slo}"}} + $objective', why="The objective.", **mine,
        ),
        tiers,
    )  # fmt: skip


def budget_rules() -> Iterator[Recording]:
    """Yield the error ratio of every window and the budget left, for all objectives at once."""
    labels = (*MODEL, "slo")
    for window in RATIO_WINDOWS:
        if window == "5m":
            bad, requests = "model:vllm_slo_bad:rate5m", "model:vllm_slo_requests:rate5m"
        else:
            # Means of the five-minute rates: the sums stay exact, and nobody reads 30 days of histograms.
            bad = f"avg_over_time(model:vllm_slo_bad:rate5m[{window}])"
            requests = f"avg_over_time(model:vllm_slo_requests:rate5m[{window}])"
            yield Recording(
                name=f"model:vllm_slo_bad:rate{window}", expr=bad, labels=labels, why="Bad events per second."
            )
        yield Recording(
            name=f"model:vllm_slo_errors:ratio_rate{window}", expr=_per(bad, requests), labels=labels,
            why="Share of bad events.",
        )  # fmt: skip
    yield Recording(
        name="model:vllm_slo_budget_remaining:ratio", labels=labels,
        expr=f"1 - model:vllm_slo_errors:ratio_rate{PERIOD} / (1 - model:vllm_slo_objective:ratio)",
        why=f"Share of the error budget of {PERIOD} that is left; negative when overspent.",
    )  # fmt: skip


def recorded_labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of every recording rule by name, without the scope's."""
    slo = ("model:vllm_slo_requests:rate5m", "model:vllm_slo_bad:rate5m", "model:vllm_slo_objective:ratio")
    return {
        **{r.name: r.labels for r in BASE},
        **dict.fromkeys(slo, (*MODEL, "slo")),
        **{r.name: r.labels for r in budget_rules()},
    }


def shortened(window: str, scale: float) -> str:
    """Return a window under `time_scale`."""
    return window if scale == 1 else duration(seconds(window) * scale)
