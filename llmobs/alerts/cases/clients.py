"""Cases of the alerts on what clients do and get."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.alerts.cases.model import FOREVER, Case, Cases, Check, Knobs, Series, flat, grow, histogram


def _failures(reason: str) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        least = k.p("min_failures") / 300
        fails = least * 3
        many = min(0.9, k.t * 2)
        good = (
            f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}',
            (grow(fails * (1 - many) / many),),
        )
        name = f'vllm_request_failed_total{{{k.replica},reason="{reason}"}}'
        none = [k.seen()]
        yield k.case("too large a share", [*none, good, (name, (flat(0, 300), grow(fails)))], 650, k.fires())
        plenty = (good[0], (grow(fails * (1 - k.t * 0.5) / (k.t * 0.5)),))
        yield k.case("a small share", [*none, plenty, (name, (flat(0, 300), grow(fails)))], 650)
        alone = (good[0], (flat(0),))
        yield k.case("a large share of hardly anything", [*none, alone, (name, (flat(0, 300), grow(least * 0.3)))], 650)
        yield k.case("an old count and no traffic", [*none, (name, (flat(500),))], 650)
        burst = [*none, (good[0], (grow(least * 3),)), (name, (flat(0, 300), grow(least * 9, 300), flat(least * 2700)))]
        yield k.case("fires once and resolves", burst, 600, k.fires(), also=[Check(at=3600, fires=())])

    return cases


def nan_logits(k: Knobs) -> Iterator[Case]:
    name = f"vllm_corrupted_requests_total{{{k.replica}}}"
    yield k.case("a corrupted answer", [(name, (flat(0, 300), flat(k.t + 2)))], 330, k.fires())
    yield k.case("none new", [(name, (flat(7),))], 330)


def admission(k: Knobs) -> Iterator[Case]:
    name = f'vllm_request_admission_rejections_total{{{k.replica},reason="max_num_queued_reqs"}}'
    yield k.case("requests are turned away", [(name, (flat(0), grow(k.t * 1.5 / 60)))], 400, k.fires())
    yield k.case("once in a while", [(name, (flat(0), grow(k.t * 0.5 / 60)))], 400)


def kv_transfer(k: Knobs) -> Iterator[Case]:
    name = f'vllm_kv_transfer_failures_total{{{k.replica},kind="nixl_failed_transfer"}}'
    yield k.case("transfers fail", [(name, (flat(0, 300), flat(k.t + 3)))], 360, k.fires(kind="nixl_failed_transfer"))
    yield k.case("none new", [(name, (flat(4),))], 360)


def prompt_shift(k: Knobs) -> Iterator[Case]:
    rate = max(1.0, k.p("min_requests") / 100)
    ended = (f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}', (grow(rate),))

    def prompts(now: float) -> list[Series]:
        parts = ((rate, {"+Inf": 1.0}, 128, 14400), (rate, {"+Inf": 1.0}, now, FOREVER))
        return [k.seen(), ended, *histogram("vllm_requests_prompt_tokens", k.replica, *parts)]

    yield k.case("128 tokens become many more", prompts(128 * k.t * 2), 14400 + 420, k.fires(), interval=60)
    yield k.case("the normal spread", prompts(128 * (1 + (k.t - 1) * 0.5)), 14400 + 420, interval=60)
    quiet = (ended[0], (grow(k.p("min_requests") / 300 * 0.3),))
    yield k.case(
        "one long document in a quiet hour", [k.seen(), quiet, *prompts(128 * k.t * 2)[2:]], 14400 + 420, interval=60
    )


def near_limit(k: Knobs) -> Iterator[Case]:
    rate = max(1.0, k.p("min_prompts") / 300 / k.t * 2)
    ended = (f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}', (grow(rate),))
    near = f"vllm_prompts_near_limit_total{{{k.replica}}}"
    yield k.case("many prompts near the limit", [k.seen(), ended, (near, (grow(rate * k.t * 1.5),))], 400, k.fires())
    yield k.case("a few", [k.seen(), ended, (near, (grow(rate * k.t * 0.5),))], 400)


CLIENTS: dict[str, Cases] = {
    "VllmErrorRatio": _failures("error"),
    "VllmAbortStorm": _failures("abort"),
    "VllmPromptsTooLong": _failures("context_length"),
    "VllmNaNLogits": nan_logits,
    "VllmAdmissionRejecting": admission,
    "VllmKVTransferFailures": kv_transfer,
    "VllmPromptLengthShift": prompt_shift,
    "VllmPromptsNearLimit": near_limit,
}
