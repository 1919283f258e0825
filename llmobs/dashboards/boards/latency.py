"""Latency and phases: where each millisecond of a request went."""

from __future__ import annotations

from llmobs.dashboards.boards.context import INTERPOLATED, Context
from llmobs.dashboards.panels import (
    GREEN,
    ORANGE,
    PHASE_COLORS,
    YELLOW,
    Board,
    Line,
    Lookup,
    Panel,
    Query,
    Section,
    graph,
    heatmap,
    q,
    stat,
    traces,
)

TTFT = "vllm_time_to_first_token_seconds"
ITL = "vllm_inter_token_latency_seconds"
TPOT = "vllm_time_per_output_token_seconds"
E2E = "vllm_e2e_request_latency_seconds"
QUEUE = "vllm_request_queue_time_seconds"
PREFILL = "vllm_request_prefill_time_seconds"
DECODE = "vllm_request_decode_time_seconds"


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-latency",
        title="vLLM Latency and Phases",
        question="How long do requests take, in which phase, and how many meet the objective?",
        variables=(_objective(c, "ttft_slo", "TTFT objective", TTFT), _objective(c, "tpot_slo", "TPOT objective", TPOT)),
        sections=(
            Section(title="Goodput against the chosen objective", panels=_goodput(c)),
            Section(title="First token", panels=_pair(c, "TTFT", TTFT, _TTFT, "VllmTTFTP95High")),
            Section(title="Between tokens", panels=_pair(c, "Inter-token latency", ITL, _ITL, "VllmInterTokenP95High")),
            Section(title="Whole request", panels=_pair(c, "End to end", E2E, _E2E, "VllmE2EP95High")),
            Section(title="Phases", panels=_phases(c)),
            Section(title="Queue", panels=_pair(c, "Queue time", QUEUE, _QUEUE)),
            Section(title="Prefill", panels=_pair(c, "Prefill time", PREFILL, _PREFILL)),
            Section(title="Decode", panels=_pair(c, "Decode time", DECODE, _DECODE)),
            Section(title="Lengths", panels=_lengths(c)),
            Section(title="By prompt length, from traces", panels=_traces(), collapsed=True),
        ),
    )  # fmt: skip


def _objective(c: Context, name: str, label: str, histogram: str) -> Lookup:
    bucket = c.q.select(f"{histogram}_bucket")
    return Lookup(
        name=name, label=label, query=f"label_values({bucket}, le)", regex="/^(?!\\+Inf)(.*)$/", numeric=True,
        default=c.limits.boundary(histogram),
        description="Seconds. The choices are the histogram's own bucket boundaries, so the share is exact.",
    )  # fmt: skip


_TTFT = (
    "Time from arrival to the first token.",
    "compare queue and prefill below: one of them makes it.",
)
_ITL = (
    "Time between two outputs of a sequence, one observation per step.",
    "look at batch size and preemptions (Scheduling) and at clocks and power (GPU).",
)
_E2E = (
    "Time from arrival to the last token.",
    "grows with the output length: read it together with the lengths below.",
)
_QUEUE = (
    f"Time from entering the queue to being scheduled first. {INTERPOLATED}",
    "more than a few percent of TTFT: too few replicas, or the batch is full.",
)
_PREFILL = (
    f"Time from being scheduled first to the first token. {INTERPOLATED}",
    "compare prompt lengths and hit rate; chunked prefill shares steps with decode.",
)
_DECODE = (
    "Time from the first to the last token.",
    "divide by the output length (TPOT) before blaming the GPU.",
)


def _pair(c: Context, title: str, histogram: str, texts: tuple[str, str], alert: str = "") -> tuple[Panel, ...]:
    shows, act = texts
    return (
        c.quantiles(title, histogram, shows, act, alert),
        heatmap(
            f"{title}: distribution",
            f"{shows} Observations per second and bucket: two bands are two kinds of requests.",
            "a band that moves up is everybody; a new thin band is one client. Diamonds open the trace.",
            Query(text=c.q.buckets(histogram), legend="{{le}}", buckets=True, exemplars=True),
            unit="s",
        ),
    )


def _goodput(c: Context) -> tuple[Panel, ...]:
    ttft, tpot = c.q.share_within(TTFT, "$ttft_slo"), c.q.share_within(TPOT, "$tpot_slo")
    lines = (Line(at=0.95, color=YELLOW), Line(at=0.99, color=GREEN))
    common = {"unit": "percentunit", "maximum": 1, "decimals": 2, "no_value": "No traffic", "base": ORANGE}
    return (
        stat(
            "TTFT met", "Share of requests whose first token came within the chosen objective.",
            "below target: look at queue and prefill.", q(ttft), lines=lines, width=4, height=8, **common,
        ),
        stat(
            "TPOT met", "Share of requests whose mean time per output token was within the chosen objective.",
            "below target: decode is slow; look at batch size and GPU.", q(tpot), lines=lines, width=4, height=8, **common,
        ),
        stat(
            "Goodput", "Requests per second that met both objectives, at most: the smaller of the two shares. "
            "Histograms cannot tell which request met both; it is at least the sum of the shares less one.",
            "this, not requests per second, is the capacity that counts.",
            q(f"{c.requests()} * (({ttft} < {tpot}) or {tpot})"), unit="reqps", width=4, height=8, no_value="No traffic",
            base="blue",
        ),
        graph(
            "Objectives met over time",
            "Share of requests within the chosen TTFT and TPOT objectives, exact at bucket boundaries. “Both at least” "
            "is the sum of the shares less one.",
            "a drop of one line names the phase: TTFT is queue and prefill, TPOT is decode.",
            q(ttft, "TTFT"), q(tpot, "TPOT"), q(f"clamp_min({ttft} + {tpot} - 1, 0)", "both, at least"),
            unit="percentunit", maximum=1, width=12, height=8, no_value="No traffic", dashed=("both, at least",),
        ),
    )  # fmt: skip


def _phases(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Mean time per phase",
            "Mean seconds of a finished request in queue, prefill and decode, stacked.",
            "the phase that grew names the cause.",
            q(c.phase_mean(), "{{phase}}"), unit="s", stacked=True, colors=PHASE_COLORS, no_value="No traffic", width=8,
        ),
        graph(
            "Phase ratio over time",
            "Share of each phase in the time of finished requests; the three sum to 1.",
            "a growing queue share is saturation; a growing prefill share is longer prompts or a colder cache.",
            q(c.phase_share(), "{{phase}}"),
            unit="percentunit", stacked=True, maximum=1, colors=PHASE_COLORS, no_value="No traffic", width=8,
        ),
        graph(
            "Prefill time per computed token",
            "Seconds of prefill for each prompt token that had to be computed.",
            "flat while prefill time grows: the prompts are longer or colder. Growing: prefill itself is slower.",
            q(
                f"{c.q.per_second(f'{PREFILL}_sum')} / ({c.q.per_second('vllm_prefill_tokens_computed_total')} > 0)",
                "seconds per token",
            ),
            unit="s", no_value="No traffic", width=8,
        ),
    )  # fmt: skip


def _lengths(c: Context) -> tuple[Panel, ...]:
    return (
        heatmap(
            "Prompt length", "Prompt tokens of finished sequences.",
            "a new band explains a new TTFT: ask whose traffic it is.",
            Query(text=c.q.buckets("vllm_requests_prompt_tokens"), legend="{{le}}", buckets=True), unit="short", width=8,
        ),
        heatmap(
            "Output length", "Generated tokens of finished sequences.",
            "longer outputs make end-to-end time grow without any fault.",
            Query(text=c.q.buckets("vllm_requests_generation_tokens"), legend="{{le}}", buckets=True), unit="short",
            width=8,
        ),
        heatmap(
            "Computed prompt length", "Prompt tokens that had to be computed, per finished sequence.",
            "compare with the prompt length: the difference came from the cache.",
            Query(text=c.q.buckets("vllm_requests_prefill_computed_tokens"), legend="{{le}}", buckets=True),
            unit="short", width=8,
        ),
    )  # fmt: skip


def _traces() -> tuple[Panel, ...]:
    def prefill(condition: str) -> str:
        return f'{{ name = "llm.prefill" && {condition} }} | quantile_over_time(duration, 0.5, 0.95)'

    length = "span.llmobs.input_length"
    common = {"unit": "s", "width": 8, "needs": frozenset({"tempo"})}
    act = "compare the three: if only long prompts are slow, look at max_num_batched_tokens and at the hit rate."
    return (
        graph(
            "Prefill of short prompts", "Prefill spans of prompts up to 1,024 tokens: median and p95.", act,
            Query(text=prefill(f"{length} <= 1024"), traceql=True), **common,
        ),
        graph(
            "Prefill of medium prompts", "Prefill spans of prompts of 1,025 to 8,192 tokens: median and p95.", act,
            Query(text=prefill(f"{length} > 1024 && {length} <= 8192"), traceql=True), **common,
        ),
        graph(
            "Prefill of long prompts", "Prefill spans of prompts over 8,192 tokens: median and p95.", act,
            Query(text=prefill(f"{length} > 8192"), traceql=True), **common,
        ),
        traces(
            "Slowest prefills", "Traces with the slowest prefill of the time range.", "open one and read its attributes.",
            Query(text='{ name = "llm.prefill" && duration > 500ms } | select(span.llmobs.input_length)', traceql=True),
            width=24, height=8,
        ),
    )  # fmt: skip
