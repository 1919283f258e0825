"""Token heatmap and traces: latency by the position of the token, and the spans behind it."""

from __future__ import annotations

from llmobs.catalog import METRICS
from llmobs.dashboards.boards.context import Context
from llmobs.dashboards.panels import (
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Board,
    Column,
    Line,
    Panel,
    Query,
    Section,
    bars,
    graph,
    heatmap,
    now,
    q,
    table,
    traces,
)
from llmobs.dashboards.promql import ratio

STEP = "vllm_decode_step_latency_seconds"
TOKEN_BUCKETS = METRICS[STEP].values["token_bucket"]
_TEMPO = frozenset({"tempo"})


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-tokens",
        title="vLLM Token Heatmap and Traces",
        question="At which token is decoding slow, and what does the trace of a slow request say?",
        sections=(
            Section(title="LLM performance heatmap: token position × latency", panels=_position(c)),
            Section(title="Decode steps", panels=_steps(c)),
            Section(title="Slowest traces", panels=_slowest()),
            Section(title="Span durations", panels=_durations()),
            Section(title="Layers (with layer detail switched on)", panels=_layers(), collapsed=True),
        ),
    )


def _by_position(c: Context, *, exemplars: bool = False) -> tuple[Query, ...]:
    """p95 of each range of positions, one query each, so that they stand in the order of the positions."""
    return tuple(
        q(c.q.quantile(0.95, STEP, f'token_bucket="{p}"'), f"token {p}", exemplars=exemplars) for p in TOKEN_BUCKETS
    )


def _position(c: Context) -> tuple[Panel, ...]:
    within = c.q.during_range(f"{STEP}_bucket", 'le!="+Inf"', by=("le", "token_bucket"))
    whole = c.q.during_range(f"{STEP}_count", by=("token_bucket",))
    columns = {position: index + 1 for index, position in enumerate(TOKEN_BUCKETS)}
    corner = "le\\token_bucket"
    return (
        heatmap(
            "LLM performance heatmap",
            "p95 time of a decode step, one row per position of the token in the output, over time. From a histogram, so "
            "it needs no traces.",
            "darker with the position: attention over a long context. Dark at the first tokens: the step after prefill. "
            "A dark column: everything was slow then.",
            *_by_position(c),
            unit="s", rows_named=True, scheme="Spectral", height=9,
        ),
        table(
            "Token position × latency",
            "Share of decode steps no slower than the latency of the row, by the position of the token (columns), in the "
            "time range shown.",
            "the first row that is green tells how fast that position is; a column that stays red has a slow tail.",
            Query(
                text=f"{within} / on (token_bucket) group_left () ({whole} > 0) > 0",
                instant=True,
                table=True,
            ),
            unit="percentunit", width=12, height=9, maximum=1, base=RED,
            lines=(Line(at=0.5, color=ORANGE), Line(at=0.9, color=YELLOW), Line(at=0.99, color=GREEN)),
            columns=(Column(source=corner, title="≤ seconds", unit="s", plain=True),),
            transformations=(
                {
                    "id": "groupingToMatrix",
                    "options": {"columnField": "token_bucket", "rowField": "le", "valueField": "Value", "emptyValue": "null"},
                },
                {
                    "id": "convertFieldType",
                    "options": {"conversions": [{"targetField": corner, "destinationType": "number"}], "fields": {}},
                },
                {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": corner, "desc": False}]}},
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": {}, "indexByName": {corner: 0, **columns},
                        "renameByName": {corner: "≤ seconds"},
                    },
                },
            ),
        ),
    )  # fmt: skip


def _steps(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Decode step by token position: p95", "p95 time of a decode step for each range of positions.",
            "lines that fan out: latency grows with the context.",
            *_by_position(c, exemplars=True),
            unit="s", width=8, no_value="No traffic",
        ),
        bars(
            "Mean step by token position", "Mean time of a decode step in the time range shown, by position.",
            "compare the last with the first: the ratio is the price of a long context.",
            *(
                now(
                    ratio(
                        c.q.during_range(f"{STEP}_sum", f'token_bucket="{p}"'),
                        c.q.during_range(f"{STEP}_count", f'token_bucket="{p}"'),
                    ),
                    f"token {p}",
                )
                for p in TOKEN_BUCKETS
            ),
            unit="s", width=8, no_value="No traffic",
        ),
        heatmap(
            "All decode steps", "Decode steps per second by their time, all positions.",
            "two bands: steps with and without a prefill in them.",
            Query(text=c.q.buckets(STEP), legend="{{le}}", buckets=True, exemplars=True), unit="s", width=8,
        ),
    )  # fmt: skip


def _slowest() -> tuple[Panel, ...]:
    root = (
        '{ name = "http.server.request" && duration > 1s }'
        " | select(span.gen_ai.request.model, span.llmobs.input_length, span.llmobs.output_length)"
    )
    return (
        traces(
            "Slowest traces", "Requests that took more than a second, with model and lengths.",
            "open one: the longest child names the phase.",
            Query(text=root, traceql=True), width=12, height=9, unit="short",
        ),
        traces(
            "Failed traces", "Traces with an error.", "the exception is in the span's events.",
            Query(text='{ name = "http.server.request" && status = error }', traceql=True), width=12, height=9, unit="short",
        ),
        traces(
            "Span breakdown", "Spans of slow requests with their durations.", "sort by duration; queue, prefill or decode?",
            Query(
                text='{ name = "http.server.request" && duration > 1s } >> { name =~ "llm[.](queue|prefill|decode[.]loop)" }'
                " | select(duration, span.llmobs.cached_tokens)",
                traceql=True,
            ),
            width=24, height=9, unit="short",
        ),
    )  # fmt: skip


def _durations() -> tuple[Panel, ...]:
    def over_time(name: str, by: str = "") -> str:
        return f'{{ name = "{name}" }} | quantile_over_time(duration, 0.5, 0.95){by}'

    common = {"unit": "s", "width": 8, "needs": _TEMPO}
    return (
        graph(
            "Prefill spans", "Median and p95 of the prefill spans.", "compare with the metric on the latency board.",
            Query(text=over_time("llm.prefill"), traceql=True), **common,
        ),
        graph(
            "Decode spans", "Median and p95 of the whole decode loop.", "divide by the output length.",
            Query(text=over_time("llm.decode.loop"), traceql=True), **common,
        ),
        graph(
            "Decode steps by token bucket", "Median and p95 of single decode steps, by the position of the token (needs "
            "token detail).",
            "the same picture as the heatmap above, request by request.",
            Query(text=over_time("llm.decode.step", " by (span.token_bucket)"), traceql=True), **common,
        ),
        heatmap(
            "Decode step durations", "Durations of decode steps from traces.", "diamonds and cells open the trace.",
            Query(text='{ name = "llm.decode.step" } | histogram_over_time(duration)', traceql=True), unit="s", width=12,
            needs=_TEMPO,
        ),
        graph(
            "Queue spans", "Median and p95 of the time in the queue.", "grows first when replicas are too few.",
            Query(text=over_time("llm.queue"), traceql=True), unit="s", width=12, needs=_TEMPO,
        ),
    )  # fmt: skip


def _layers() -> tuple[Panel, ...]:
    layers = '{ name =~ "llm[.]layer[.][0-9]+[.]forward" }'
    return (
        heatmap(
            "Layer heatmap", "Durations of the forward passes of decoder layers.",
            "a layer apart from its peers: a slow kernel, or a layer on another device.",
            Query(text=f"{layers} | histogram_over_time(duration)", traceql=True), unit="s", width=12, needs=_TEMPO,
        ),
        graph(
            "Slowest layers", "p95 of the forward pass of each layer.", "even in a healthy model.",
            Query(text=f"{layers} | quantile_over_time(duration, 0.95) by (name)", traceql=True), unit="s", width=12,
            needs=_TEMPO,
        ),
    )  # fmt: skip
