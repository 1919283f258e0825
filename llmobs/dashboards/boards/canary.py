"""Canary: two versions side by side, with the limits at which to roll back."""

from __future__ import annotations

from dataclasses import dataclass

from llmobs.dashboards.boards.context import GOOD, Context
from llmobs.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    Board,
    Choice,
    Line,
    Lookup,
    Panel,
    Query,
    Section,
    graph,
    now,
    q,
    stat,
)
from llmobs.dashboards.promql import RANGE

STABLE, CANARY = '$split="$stable"', '$split="$candidate"'
_COLORS = {"stable": BLUE, "candidate": ORANGE}


def board(c: Context) -> Board:
    """Return the board."""
    labels = c.settings.version_labels
    values = f"label_values({c.q.select('vllm_up')}, $split)"
    return Board(
        uid="llmobs-canary",
        title="vLLM Canary",
        question="Is the candidate as good as the stable version, or must it be rolled back?",
        variables=(
            Choice(
                name="split", label="Compare by", choices=tuple((label, label) for label in labels),
                description="The constant label, set per target in llmobs, that tells the two versions apart.",
            ),
            Lookup(name="stable", label="Stable", query=values, description="Value of the label for the version in service."),
            Lookup(name="candidate", label="Candidate", query=values, description="Value of the label for the new version."),
        ),
        sections=(
            Section(title="Difference, with the limits for rolling back", panels=_difference(c)),
            Section(title="Side by side", panels=_side_by_side(c)),
            Section(title="What was asked of them", panels=_asked(c)),
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Worse:
    """How much worse the candidate may be: p95 and tokens per request as a share, failures in points."""

    latency: float
    tokens: float
    failures: float


def _limits(c: Context) -> _Worse:
    return _Worse(
        latency=round(c.limits.value("CanaryLatencyWorse") - 1, 6),
        tokens=c.limits.value("CanaryTokensSlower"),
        failures=c.limits.value("CanaryFailuresUp"),
    )


def _failed_share(c: Context, which: str) -> str:
    failed = c.failed(which, 'reason=~"error|oom|engine_dead|timeout"')
    finished = c.requests(which, GOOD)
    return f"{failed} / ({finished} + {failed} > 0)"


def _tokens_each(c: Context, which: str) -> str:
    """Generated tokens per second and running request, so that two versions with different shares of traffic compare."""
    running = f"sum (avg_over_time({c.q.select('vllm_num_running_requests', which)}[{RANGE}]))"
    return f"{c.q.per_second('vllm_decode_tokens_total', which)} / ({running} > 0)"


def _relative(candidate: str, stable: str) -> str:
    return f"({candidate}) / ({stable} > 0) - 1"


def _difference(c: Context) -> tuple[Panel, ...]:
    worse = _limits(c)
    slower = (Line(at=worse.latency / 2, color=ORANGE), Line(at=worse.latency))
    common = {"unit": "percentunit", "decimals": 1, "width": 3, "minimum": None, "big": True, "no_value": "No traffic"}

    def quantile(histogram: str) -> str:
        return _relative(c.q.quantile(0.95, histogram, CANARY), c.q.quantile(0.95, histogram, STABLE))

    return (
        stat(
            "TTFT p95, Δ", "p95 time to first token of the candidate against stable; positive is slower.",
            "red: roll back.", q(quantile("vllm_time_to_first_token_seconds")), lines=slower, **common,
        ),
        stat(
            "End to end p95, Δ", "p95 request latency of the candidate against stable.",
            "red: roll back, after a look at the output lengths.", q(quantile("vllm_e2e_request_latency_seconds")), lines=slower, **common,
        ),
        stat(
            "Inter-token p95, Δ", "p95 gap between outputs of the candidate against stable.",
            "red: roll back.", q(quantile("vllm_inter_token_latency_seconds")), lines=slower, **common,
        ),
        stat(
            "Tokens/s each, Δ", "Generated tokens per second and running request, candidate against stable; "
            "negative is slower.",
            "red: roll back.",
            q(_relative(_tokens_each(c, CANARY), _tokens_each(c, STABLE))), base=RED,
            lines=(Line(at=-worse.tokens, color=ORANGE), Line(at=0, color=GREEN)), **common,
        ),
        stat(
            "Failed share, Δ", "Share of failed requests, candidate less stable, in points.",
            "red: roll back.",
            q(f"({_failed_share(c, CANARY)}) - ({_failed_share(c, STABLE)})"),
            lines=(Line(at=worse.failures / 2, color=ORANGE), Line(at=worse.failures)), **common,
        ),
        stat(
            "Hit rate, Δ", "Prefix cache hit rate, candidate less stable, in points.",
            "a new replica starts cold: judge after its cache is warm.",
            q(f"({c.hit_rate(CANARY)}) - ({c.hit_rate(STABLE)})"), base=ORANGE, lines=(Line(at=-0.05, color=GREEN),),
            **{**common, "no_value": "No lookups"},
        ),
        stat(
            "Out of memory, candidate", "Out-of-memory events of the candidate in the time range shown.",
            "any: roll back.",
            now(c.q.during_range("vllm_oom_total", CANARY)), lines=(Line(at=0.5),),
            **{**common, "unit": "none", "decimals": 0, "no_value": "Not known", "width": 6},
        ),
    )  # fmt: skip


def _side_by_side(c: Context) -> tuple[Panel, ...]:
    worse = _limits(c)
    common = {"width": 8, "colors": {**_COLORS, "limit": RED}, "dashed": ("limit",)}

    def latency(title: str, histogram: str, act: str) -> Panel:
        stable, candidate = (c.q.quantile(0.95, histogram, which) for which in (STABLE, CANARY))
        return graph(
            f"{title} p95", f"95th percentile of {title}; the dashed limit is stable + {worse.latency:.0%}.",
            act, q(stable, "stable"), q(candidate, "candidate"),
            q(f"{1 + worse.latency:g} * {stable}", "limit"), unit="s", no_value="No traffic", **common,
        )  # fmt: skip

    tokens = _tokens_each(c, STABLE)
    failed = _failed_share(c, STABLE)
    return (
        latency("TTFT", "vllm_time_to_first_token_seconds", "the candidate above the limit: roll back."),
        latency("Inter-token latency", "vllm_inter_token_latency_seconds", "the candidate above the limit: roll back."),
        latency("End-to-end latency", "vllm_e2e_request_latency_seconds", "compare the output lengths first."),
        graph(
            "Tokens per second and request", "Generated tokens per second ÷ running requests; the limit is stable − "
            f"{worse.tokens:.0%}.",
            "the candidate below the limit: roll back.",
            q(tokens, "stable"), q(_tokens_each(c, CANARY), "candidate"),
            q(f"{1 - worse.tokens:g} * {tokens}", "limit"), unit="short", no_value="No traffic", **common,
        ),
        graph(
            "Failed share", f"Failed ÷ all requests; the limit is stable + {worse.failures:.1%}.",
            "the candidate above the limit: roll back.",
            q(failed, "stable"), q(_failed_share(c, CANARY), "candidate"),
            q(f"{worse.failures:g} + {failed}", "limit"), unit="percentunit", no_value="No traffic", **common,
        ),
        graph(
            "Hit rate", "Prefix cache hits ÷ lookups.", "lower for long: the candidate changed its prompt template or routing.",
            q(c.hit_rate(STABLE), "stable"), q(c.hit_rate(CANARY), "candidate"), unit="percentunit", maximum=1,
            no_value="No lookups", **common,
        ),
    )  # fmt: skip


def _asked(c: Context) -> tuple[Panel, ...]:
    def mean(histogram: str) -> tuple[Query, Query]:
        return q(c.q.mean(histogram, STABLE), "stable"), q(c.q.mean(histogram, CANARY), "candidate")

    common = {"width": 6, "colors": _COLORS, "no_value": "No traffic"}
    return (
        graph(
            "Output length", "Mean generated tokens per finished sequence.",
            "a change is a change of the model's behaviour, not of its speed.",
            *mean("vllm_requests_generation_tokens"), **common,
        ),
        graph(
            "Prompt length", "Mean prompt tokens per finished sequence.", "must be equal for a fair comparison.",
            *mean("vllm_requests_prompt_tokens"), **common,
        ),
        graph(
            "Requests per second", "Traffic of each version.", "too little for the candidate: the percentiles are noise.",
            q(c.requests(STABLE), "stable"), q(c.requests(CANARY), "candidate"), **{**common, "unit": "reqps"},
        ),
        graph(
            "Waiting", "Waiting requests of each version.", "only the candidate queues: fewer replicas or slower ones.",
            q(c.q.gauge("sum", "vllm_request_waiting_queue_length", STABLE), "stable"),
            q(c.q.gauge("sum", "vllm_request_waiting_queue_length", CANARY), "candidate"), **{**common, "unit": "none"},
        ),
    )  # fmt: skip
