"""Canary: two versions side by side, with the limits at which to roll back."""

from __future__ import annotations

from llmobs.dashboards.boards.context import OUR_FAULT, Context
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


def _failed_share(c: Context, which: str) -> str:
    failed, finished = c.failed(which, OUR_FAULT), c.requests(which)
    return f"{failed} / ({finished} + {failed} > 0)"


def _tokens_each(c: Context, which: str) -> str:
    """Generated tokens per second and running request, so that two versions with different shares of traffic compare."""
    return (
        f"{c.q.per_second('vllm_decode_tokens_total', which)}"
        f" / ({c.q.gauge('sum', 'vllm_num_running_requests', which)} > 0)"
    )


def _relative(candidate: str, stable: str) -> str:
    return f"({candidate}) / ({stable} > 0) - 1"


def _difference(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    slower = (Line(at=limits.canary_latency_growth / 2, color=ORANGE), Line(at=limits.canary_latency_growth))
    common = {"unit": "percentunit", "decimals": 1, "width": 4, "minimum": None, "big": True, "no_value": "No traffic"}

    def quantile(histogram: str) -> str:
        return _relative(c.q.quantile(0.95, histogram, CANARY), c.q.quantile(0.95, histogram, STABLE))

    return (
        stat(
            "TTFT p95, difference", "p95 time to first token of the candidate against stable; positive is slower.",
            "red: roll back.", q(quantile("vllm_time_to_first_token_seconds")), lines=slower, **common,
        ),
        stat(
            "Inter-token p95, difference", "p95 gap between outputs of the candidate against stable.",
            "red: roll back.", q(quantile("vllm_inter_token_latency_seconds")), lines=slower, **common,
        ),
        stat(
            "Tokens/s per request, difference", "Generated tokens per second and running request, candidate against stable; "
            "negative is slower.",
            "red: roll back.",
            q(_relative(_tokens_each(c, CANARY), _tokens_each(c, STABLE))), base=RED,
            lines=(Line(at=-limits.canary_tokens_drop, color=ORANGE), Line(at=0, color=GREEN)), **common,
        ),
        stat(
            "Failed share, difference", "Share of failed requests, candidate less stable, in points.",
            "red: roll back.",
            q(f"({_failed_share(c, CANARY)}) - ({_failed_share(c, STABLE)})"),
            lines=(Line(at=limits.canary_failure_growth / 2, color=ORANGE), Line(at=limits.canary_failure_growth)), **common,
        ),
        stat(
            "Hit rate, difference", "Prefix cache hit rate, candidate less stable, in points.",
            "a new replica starts cold: judge after its cache is warm.",
            q(f"({c.hit_rate(CANARY)}) - ({c.hit_rate(STABLE)})"), base=ORANGE, lines=(Line(at=-0.05, color=GREEN),),
            **{**common, "no_value": "No lookups"},
        ),
        stat(
            "Out of memory, candidate", "Out-of-memory events of the candidate in the time range shown.",
            "any: roll back.",
            now(c.q.during_range("vllm_oom_total", CANARY)), lines=(Line(at=0.5),),
            **{**common, "unit": "none", "decimals": 0, "no_value": "Not known"},
        ),
    )  # fmt: skip


def _side_by_side(c: Context) -> tuple[Panel, ...]:
    limits = c.limits
    common = {"width": 8, "colors": {**_COLORS, "limit": RED}, "dashed": ("limit",)}

    def latency(title: str, histogram: str, act: str) -> Panel:
        stable, candidate = (c.q.quantile(0.95, histogram, which) for which in (STABLE, CANARY))
        return graph(
            f"{title} p95", f"95th percentile of {title}; the dashed limit is stable + {limits.canary_latency_growth:.0%}.",
            act, q(stable, "stable"), q(candidate, "candidate"),
            q(f"{1 + limits.canary_latency_growth:g} * {stable}", "limit"), unit="s", no_value="No traffic", **common,
        )  # fmt: skip

    tokens = _tokens_each(c, STABLE)
    failed = _failed_share(c, STABLE)
    return (
        latency("TTFT", "vllm_time_to_first_token_seconds", "the candidate above the limit: roll back."),
        latency("Inter-token latency", "vllm_inter_token_latency_seconds", "the candidate above the limit: roll back."),
        latency("End-to-end latency", "vllm_e2e_request_latency_seconds", "compare the output lengths first."),
        graph(
            "Tokens per second and request", "Generated tokens per second ÷ running requests; the limit is stable − "
            f"{limits.canary_tokens_drop:.0%}.",
            "the candidate below the limit: roll back.",
            q(tokens, "stable"), q(_tokens_each(c, CANARY), "candidate"),
            q(f"{1 - limits.canary_tokens_drop:g} * {tokens}", "limit"), unit="short", no_value="No traffic", **common,
        ),
        graph(
            "Failed share", f"Failed ÷ all requests; the limit is stable + {limits.canary_failure_growth:.1%}.",
            "the candidate above the limit: roll back.",
            q(failed, "stable"), q(_failed_share(c, CANARY), "candidate"),
            q(f"{limits.canary_failure_growth:g} + {failed}", "limit"), unit="percentunit", no_value="No traffic", **common,
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
