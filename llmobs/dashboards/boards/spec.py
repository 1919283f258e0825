"""Speculative decoding: whether the draft model pays for itself."""

from __future__ import annotations

from llmobs.dashboards.boards.context import ENGINE_LEGEND, REPLICA, Context
from llmobs.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    YELLOW,
    Board,
    Choice,
    Line,
    Panel,
    Section,
    graph,
    heatmap,
    q,
    stat,
)
from llmobs.dashboards.promql import ratio

DRAFTS = "vllm_spec_decode_drafts_total"
PROPOSED, ACCEPTED = "vllm_spec_decode_draft_tokens_total", "vllm_spec_decode_accepted_tokens_total"
NOT_ON = "No drafts: speculation is off or idle"

COST = Choice(
    name="draft_cost",
    label="Cost of a draft token",
    choices=(
        ("2 % of a step (small draft head)", "0.02"), ("0 (n-gram)", "0"), ("5 %", "0.05"), ("10 % (draft model)", "0.1"),
        ("20 %", "0.2"),
    ),
    description="Time to propose one token ÷ time of one step of the target model; measure it once for your pair.",
)  # fmt: skip


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-spec",
        title="vLLM Speculative Decoding",
        question="How many proposed tokens are accepted, what does that gain, and what do the drafts cost?",
        variables=(COST,),
        needs=frozenset({"spec"}),
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Acceptance", panels=_acceptance(c)),
            Section(title="Gain and cost", panels=_gain(c)),
        ),
    )


def _speedup(c: Context, by: tuple[str, ...] = ()) -> str:
    """``(1 + accepted ÷ drafts) ÷ (1 + cost × proposed ÷ drafts)``, Leviathan et al. 2023, section 3.2."""
    drafts = f"({c.q.per_second(DRAFTS, by=by)} > 0)"
    return (
        f"(1 + {c.q.per_second(ACCEPTED, by=by)} / {drafts})"
        f" / (1 + $draft_cost * {c.q.per_second(PROPOSED, by=by)} / {drafts})"
    )


def _now(c: Context) -> tuple[Panel, ...]:
    rate = ratio(c.q.per_second(ACCEPTED), c.q.per_second(PROPOSED))
    return (
        stat(
            "Acceptance rate", "Accepted ÷ proposed tokens.",
            "a drop means that the draft model no longer fits the traffic: re-train it, or switch speculation off.",
            q(rate), unit="percentunit", decimals=1, width=6, no_value=NOT_ON, base=BLUE,
        ),
        stat(
            "Tokens per draft", "Tokens gained per draft, the target model's own token included; 1 is no gain.",
            "near 1: the drafts are wasted.",
            q(f"1 + {ratio(c.q.per_second(ACCEPTED), c.q.per_second(DRAFTS))}"), unit="short", decimals=2, width=6,
            base=BLUE, no_value=NOT_ON,
        ),
        stat(
            "Speed-up, estimated", "Tokens per draft ÷ its cost at the chosen cost of a draft token; above 1 it pays.",
            "below 1: switch speculation off until the draft model fits again.",
            q(_speedup(c)), unit="short", decimals=2, width=6, base="red", no_value=NOT_ON,
            lines=(Line(at=1, color=YELLOW), Line(at=1.2, color=GREEN)),
        ),
        stat(
            "Proposed tokens wasted", "Proposed tokens that were not accepted, per generated token.",
            "work that the GPU did for nothing: lower num_speculative_tokens.",
            q(
                ratio(
                    f"({c.q.per_second(PROPOSED)} - {c.q.per_second(ACCEPTED)})",
                    c.q.per_second("vllm_decode_tokens_total"),
                )
            ),
            unit="short", decimals=2, width=6, base=BLUE, no_value=NOT_ON, lines=(Line(at=2, color=ORANGE),),
        ),
    )  # fmt: skip


def _acceptance(c: Context) -> tuple[Panel, ...]:
    by = ("engine", *REPLICA)
    return (
        graph(
            "Acceptance rate over time", "Accepted ÷ proposed tokens of each model.",
            "a step down after a deployment: the draft model does not belong to this target.",
            q(ratio(c.q.per_second(ACCEPTED, by=("model_name",)), c.q.per_second(PROPOSED, by=("model_name",))), "{{model_name}}"),
            unit="percentunit", maximum=1, no_value=NOT_ON,
        ),
        graph(
            "Acceptance per position", "Accepted tokens at each position of the draft ÷ drafts.",
            "positions that are hardly ever accepted only cost: lower num_speculative_tokens to the last useful one.",
            q(
                f"{c.q.per_second('vllm_spec_decode_accepted_tokens_per_position_total', by=('position',))}"
                f" / on () group_left () ({c.q.per_second(DRAFTS)} > 0)",
                "position {{position}}",
            ),
            unit="percentunit", maximum=1, no_value=NOT_ON,
        ),
        heatmap(
            "Acceptance per position, over time", "The mean of the engines' acceptance rates over the window, one row per "
            "position.",
            "a row that fades: the tail of the draft is no longer worth it.",
            q(c.q.gauge("avg", "vllm_spec_decode_acceptance_rate_per_position", by=("position",)), "position {{position}}"),
            unit="percentunit", rows_named=True, maximum=1, scheme="Greens",
        ),
        graph(
            "Acceptance by replica, worst 10", "Accepted ÷ proposed tokens over the window, the 10 lowest engines.",
            "one alone: it runs another version of the draft model.",
            q(f"bottomk(10, {c.q.gauge('min', 'vllm_spec_decode_acceptance_rate', by=by)})", ENGINE_LEGEND),
            unit="percentunit", maximum=1, no_value=NOT_ON,
        ),
    )  # fmt: skip


def _gain(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Accepted length", "Tokens per draft over the window: mean, best and worst engine.",
            "compare with num_speculative_tokens + 1, the most that is possible.",
            q(c.q.gauge("avg", "vllm_spec_decode_mean_accepted_length"), "mean"),
            q(c.q.gauge("max", "vllm_spec_decode_mean_accepted_length"), "best"),
            q(c.q.gauge("min", "vllm_spec_decode_mean_accepted_length"), "worst"),
            unit="short", no_value=NOT_ON, width=8, colors={"mean": BLUE, "best": GREEN, "worst": ORANGE},
        ),
        graph(
            "Speed-up estimate", "(1 + accepted ÷ drafts) ÷ (1 + cost × proposed ÷ drafts), by model, at the chosen cost.",
            "below 1 speculation makes decode slower.",
            q(_speedup(c, ("model_name",)), "{{model_name}}"), unit="short", no_value=NOT_ON, width=8,
            lines=(Line(at=1, color=ORANGE),),
        ),
        graph(
            "Draft tokens per second", "Proposed tokens by fate: accepted, or computed for nothing.",
            "rejected grows: the draft cost that buys nothing.",
            q(c.q.per_second(ACCEPTED), "accepted"),
            q(f"{c.q.per_second(PROPOSED)} - {c.q.per_second(ACCEPTED)}", "rejected"), stacked=True, width=8,
            colors={"accepted": GREEN, "rejected": ORANGE}, no_value=NOT_ON,
        ),
        graph(
            "Inter-token latency p95", "The gap between two outputs, which speculation is meant to shorten.",
            "higher than without speculation at the same load: it does not pay.",
            q(c.q.quantile(0.95, "vllm_inter_token_latency_seconds"), "p95", exemplars=True), unit="s", width=12,
            no_value="No traffic",
        ),
        graph(
            "Drafts per second", "Drafts proposed by all engines.", "zero with traffic: speculation is off.",
            q(c.q.per_second(DRAFTS), "drafts"), unit="ops", width=12, no_value=NOT_ON,
        ),
    )  # fmt: skip
