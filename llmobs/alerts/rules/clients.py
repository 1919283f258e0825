"""What clients do, and what they get."""

from __future__ import annotations

from llmobs.alerts.model import MODEL, REPLICA, Alert, Knob
from llmobs.alerts.rules.common import OUTAGE, SYMPTOMS


def _share(reason: str) -> str:
    matcher = f'reason=~"{reason}"' if "|" in reason else f'reason="{reason}"'
    failed = f"sum by ($model) (model_reason:vllm_request_failed:rate5m{{{matcher}}})"
    return (
        f"{failed} / (model:vllm_requests_ended:rate5m > 0) > $threshold\n"
        f"and on ($model) $span * {failed} >= $min_failures"
    )


CLIENTS = (
    Alert(
        name="VllmErrorRatio", group="clients", scope=MODEL, severity="critical", for_="2m", keep_firing_for="2m",
        question="Do requests fail through our fault?",
        expr=_share("error|oom|engine_dead"),
        threshold=Knob(value=0.05, unit="ratio", why="public rule sets page at 5 %; unlike them this has a traffic guard"),
        params={"min_failures": Knob(value=5, unit="failures in 5 minutes", why="one failure of three requests is 33 % and no incident")},
        metric="", summary="{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} fail",
        impact="Users get errors.",
        causes=("the engine died with requests in flight", "out of memory", "errors inside the engine: its log names them"),
        first="kubectl logs POD -c vllm --tail=200 | grep -iE 'error|exception'",
        stop="rollback", prevent=("memory", "health"), inhibited_by=(*SYMPTOMS, "VllmRestartLoop"),
        confirm=("model_reason:vllm_request_failed:rate5m", "vllm_http_responses_total"),
        tune="VllmAvailabilityBudgetBurn covers slower burns; this one is the fast page.",
        trace='{ status = error && span.gen_ai.request.model = "<model>" }',
    ),
    Alert(
        name="VllmAbortStorm", group="clients", scope=MODEL, severity="warning", for_="1m", keep_firing_for="5m",
        question="Do clients give up?",
        expr=_share("abort"),
        threshold=Knob(value=0.2, unit="ratio", why="people press stop now and then; one in five gives up for a reason"),
        params={"min_failures": Knob(value=20, unit="aborts in 5 minutes", why="one impatient user is no storm")},
        summary="{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} are aborted by their clients",
        impact="Users leave before the answer comes, or a client's time-out is shorter than the answer.",
        causes=("answers start too late: look at the queue and the prefill", "a gateway or client time-out that is too short",
                "a client that cancels and retries, multiplying the load"),
        first="curl -s http://SIDECAR:9401/metrics | grep failed_total",
        stop="clients", prevent=("queue",), inhibited_by=(*SYMPTOMS, "VllmErrorRatio"), dashboard="llmobs-latency",
        confirm=('model_reason:vllm_request_failed:rate5m{reason="abort"}', "vllm_request_queue_time_seconds_sum"),
        tune="Raise it for type-ahead products, where aborting is the normal case.",
    ),
    Alert(
        name="VllmNaNLogits", group="clients", scope=REPLICA, severity="critical", for_="0s",
        question="Does the model compute NaN?",
        expr="sum by ($replica) (increase(vllm_corrupted_requests_total[10m])) > $threshold",
        threshold=Knob(value=0, unit="requests in 10 minutes", why="any: the answers are garbage"),
        metric="vllm_corrupted_requests_total",
        summary="{{ $value | humanize }} answers of {{ $labels.target }} ({{ $labels.model_name }}) came from NaN logits",
        impact="Users get garbage with status 200.",
        causes=("a broken GPU: look for ECC errors and Xids", "a broken weights file or quantisation", "a kernel bug of a new release"),
        first="nvidia-smi -q -d ECC,ROW_REMAPPER",
        stop="replica", prevent=("gpu", "canary"), inhibited_by=("GpuEccUncorrectable", "GpuLost", "GpuXidReset", "GpuXidNode"),
        confirm=("vllm_corrupted_requests_total", "nvidia_gpu_ecc_errors_total"),
        tune="Do not. Needs VLLM_COMPUTE_NANS_IN_LOGITS=1; without it the metric is absent.",
    ),
    Alert(
        name="VllmAdmissionRejecting", group="clients", scope=MODEL, severity="warning", for_="1m", keep_firing_for="2m",
        question="Does the server turn requests away?",
        expr="60 * sum by ($model) (rate(vllm_request_admission_rejections_total[5m])) > $threshold",
        threshold=Knob(value=1, unit="rejections per minute", why="the limit is a safety net; steady use of it is missing capacity"),
        summary="{{ $labels.model_name }} turns away {{ $value | humanize }} requests a minute",
        impact="Callers get 429 or 503.",
        causes=("traffic above capacity", "the queue limit is lower than a normal burst", "a replica less than usual"),
        first="kubectl get pods -l app=vllm; kubectl get hpa",
        stop="overload", prevent=("queue", "seqs"), inhibited_by=SYMPTOMS, dashboard="llmobs-scheduling",
        confirm=("vllm_request_admission_rejections_total", "vllm_request_waiting_queue_length_peak"),
        tune="Raise it where clients are made to retry.",
    ),
    Alert(
        name="VllmKVTransferFailures", group="clients", scope=MODEL, severity="warning", for_="0s", keep_firing_for="5m",
        question="Do KV transfers between engines fail?",
        expr="sum by ($model, kind) (increase(vllm_kv_transfer_failures_total[5m])) > $threshold",
        threshold=Knob(value=0, unit="failures in 5 minutes", why="every failure costs a whole prefill"),
        metric="vllm_kv_transfer_failures_total",
        summary="{{ $value | humanize }} KV transfers of {{ $labels.model_name }} failed ({{ $labels.kind }})",
        impact="The prompt is computed again on the decode side, or the request fails.",
        causes=("the network between prefill and decode replicas", "a prefill replica that went away", "KV expired before it was fetched"),
        first="kubectl logs POD -c vllm --tail=200 | grep -iE 'nixl|kv.?connector|transfer'",
        stop="replica", prevent=("host",), inhibited_by=SYMPTOMS, dashboard="llmobs-cache",
        confirm=("vllm_kv_transfer_failures_total", "vllm_kv_transfer_seconds_count"),
        tune="Raise it where connectors retry by themselves.",
    ),
    Alert(
        name="VllmPromptLengthShift", group="clients", scope=MODEL, severity="warning", for_="5m", keep_firing_for="10m",
        question="Did prompts suddenly become much longer?",
        expr="model:vllm_prompt_tokens:mean5m > $threshold * avg_over_time(model:vllm_prompt_tokens:mean5m[1d] offset 10m)\n"
             "and on ($model) $span * model:vllm_requests_ended:rate5m >= $min_requests",
        threshold=Knob(value=2, unit="times the last day's mean", why="a client that sent its system message 16 times made 2048 of 128 tokens"),
        params={"min_requests": Knob(value=20, unit="requests in 5 minutes", why="one long prompt among three is no shift")},
        summary="Prompts of {{ $labels.model_name }} are {{ $value | humanize }} tokens long on average, twice the usual",
        impact="Prefill grows, p99 grows while p50 stays, the KV cache fills earlier.",
        causes=("a client repeats its system prompt or whole history", "retrieval returns more or larger passages", "a new use case"),
        first="curl -s http://SIDECAR:9401/metrics | grep prompt_outliers",
        stop="clients", prevent=("kv", "batch"), inhibited_by=OUTAGE, dashboard="llmobs-latency",
        confirm=("model:vllm_prompt_tokens:mean5m", "vllm_prompt_outliers_total", 'vllm_phase_ratio{phase="prefill"}'),
        tune="Raise it where batch jobs with long documents come and go.",
    ),
    Alert(
        name="VllmPromptsNearLimit", group="clients", scope=MODEL, severity="warning", for_="5m", keep_firing_for="10m",
        question="Do prompts come close to the longest the model accepts?",
        expr="sum by ($model) (rate(vllm_prompts_near_limit_total[5m])) / (model:vllm_requests_ended:rate5m > 0) > $threshold\n"
             "and on ($model) $span * sum by ($model) (rate(vllm_prompts_near_limit_total[5m])) >= $min_prompts",
        threshold=Knob(value=0.05, unit="ratio", why="one in twenty: the next ones are cut or refused"),
        params={"min_prompts": Knob(value=5, unit="prompts in 5 minutes", why="single long documents are normal")},
        summary="{{ $value | humanizePercentage }} of the prompts of {{ $labels.model_name }} take more than 90 % of its context",
        impact="Answers are cut short; retrieval answers get worse because the prompt is cut.",
        causes=("conversations that are never summarised", "retrieval returns too much", "--max-model-len lowered below the use case"),
        first="curl -s http://POD:8000/v1/models | grep max_model_len",
        stop="clients", prevent=("kv",), inhibited_by=OUTAGE, dashboard="llmobs-latency",
        confirm=("vllm_prompts_near_limit_total", "vllm_max_model_len_tokens"),
        tune="Raise it for models that are used with full contexts on purpose.",
    ),
    Alert(
        name="VllmPromptsTooLong", group="clients", scope=MODEL, severity="warning", for_="1m", keep_firing_for="5m",
        question="Are prompts refused because they are too long?",
        expr=_share("context_length"),
        threshold=Knob(value=0.05, unit="ratio", why="a few are the caller's mistake, one in twenty is a broken client"),
        params={"min_failures": Knob(value=10, unit="refusals in 5 minutes", why="single mistakes are normal")},
        summary="{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} are refused as too long",
        impact="Those callers get 400 and no answer.",
        causes=("a client without a length check after tokenising", "--max-model-len was lowered", "a client written for a larger model"),
        first="curl -s http://POD:8000/v1/models | grep max_model_len",
        stop="clients", prevent=("kv",), inhibited_by=OUTAGE, dashboard="llmobs-latency",
        confirm=('model_reason:vllm_request_failed:rate5m{reason="context_length"}', "vllm_max_model_len_tokens"),
        tune="Raise it for public endpoints.",
    ),
)  # fmt: skip
