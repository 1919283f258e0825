"""SLO and error budget: how much of the promise is left, and how fast it goes."""

from __future__ import annotations

from llmobs.alerts.slo import PERIOD, WINDOWS
from llmobs.dashboards.boards.context import Context
from llmobs.dashboards.panels import (
    GREEN,
    ORANGE,
    RED,
    Board,
    Column,
    Line,
    Lookup,
    Panel,
    Section,
    cell,
    graph,
    now,
    q,
    stat,
    table,
)

_OBJECTIVE = "model:vllm_slo_objective:ratio"
_LEFT = "model:vllm_slo_budget_remaining:ratio"
_REQUESTS, _BAD = "model:vllm_slo_requests:rate5m", "model:vllm_slo_bad:rate5m"
_LEGEND = "{{model_name}} {{slo}}"
_PERIOD_SECONDS = 30 * 86400
_SEVERITY = {"critical": RED, "warning": ORANGE}


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-slo",
        title="vLLM SLO and Error Budget",
        question="Does each model keep its promise, how much error budget is left, and how fast does it burn?",
        filters=("model",),
        variables=(
            Lookup(
                name="slo", label="Objective", query=f"label_values({_OBJECTIVE}, slo)", multi=True, all_value=".+",
                description="availability, ttft, inter_token, e2e: set under alerts.slo.",
            ),
        ),
        time_from="now-7d",
        sections=(
            Section(title="Objectives", panels=_objectives(c)),
            Section(title="Error budget left", panels=_budget(c)),
            Section(title="Burn rate in four windows", panels=_burn(c)),
            Section(title="Goodput", panels=_goodput(c)),
        ),
    )  # fmt: skip


def _errors(c: Context, window: str) -> str:
    return c.recorded(f"model:vllm_slo_errors:ratio_rate{window}")


def _burn_rate(c: Context, window: str) -> str:
    """Share of bad events ÷ share allowed: 1 spends the budget exactly in its period."""
    return f"{_errors(c, window)} / (1 - {c.recorded(_OBJECTIVE)} > 0)"


def _objectives(c: Context) -> tuple[Panel, ...]:
    factor = c.limits.value("VllmAvailabilityBudgetBurn")
    burning = tuple(
        Line(at=factor * times, color=_SEVERITY[severity]) for _, _, times, _, severity in reversed(WINDOWS)
    )
    return (
        table(
            "Objectives", "One row per model and objective: promise, budget left, errors and burn rate.",
            "red burn rate: an alert fires or is about to; a negative budget: no risky change until it recovers.",
            cell(c.recorded(_OBJECTIVE)), cell(c.recorded(_LEFT)), cell(_errors(c, "1h")),
            *(cell(_burn_rate(c, long)) for long, *_ in WINDOWS), cell(c.recorded(_REQUESTS)),
            columns=(
                Column(source="model_name", title="Model"), Column(source="slo", title="Objective", width=110),
                Column(source="Value #A", title="Promise", unit="percentunit", decimals=2, width=90),
                Column(
                    source="Value #B", title="Budget left", unit="percentunit", decimals=1, width=110, base=RED,
                    lines=(Line(at=0, color=ORANGE), Line(at=0.25, color=GREEN)),
                ),
                Column(source="Value #C", title="Bad, last hour", unit="percentunit", decimals=3, width=120),
                *(
                    Column(source=f"Value #{ref}", title=f"Burn {long}", unit="short", decimals=2, width=95, lines=burning)
                    for ref, (long, *_) in zip("DEFG", WINDOWS)
                ),
                Column(source="Value #H", title="Events/s", unit="short", decimals=2, width=90),
            ),
            unit="none", height=8, sort=("Budget left", False), no_value="No recording rules",
        ),
    )  # fmt: skip


def _budget(c: Context) -> tuple[Panel, ...]:
    left = c.recorded(_LEFT)
    return (
        stat(
            "Least budget left", "The smallest error budget of all models and objectives selected.",
            "negative: overspent; stop risky changes.",
            now(f"min({left})"), unit="percentunit", decimals=1, width=4, height=8, base=RED, minimum=None,
            lines=(Line(at=0, color=ORANGE), Line(at=0.25, color=GREEN)), no_value="No recording rules",
        ),
        graph(
            "Budget left", f"Share of the error budget of {PERIOD} that is left: the 10 smallest.",
            "a step down is one incident; a slope is a service that is a little too slow all the time.",
            q(f"bottomk(10, {left})", _LEGEND), unit="percentunit", minimum=None, width=12,
            lines=c.limits.lines("VllmErrorBudgetExhausted"), no_value="No recording rules",
        ),
        graph(
            "Budget gone in", "Time until the budget is used up at the burn rate of the last hour, if within 90 days: the 10 shortest.",
            "days: find the cause this week. hours: now.",
            q(
                f"bottomk(10, clamp_min({left}, 0) * {_PERIOD_SECONDS} / ({_burn_rate(c, '1h')} > 0)"
                f" < {3 * _PERIOD_SECONDS})",
                _LEGEND,
            ),
            unit="dtdurations", width=8, no_value="Not within 90 days",
        ),
    )  # fmt: skip


def _burn(c: Context) -> tuple[Panel, ...]:
    factor = c.limits.value("VllmAvailabilityBudgetBurn")
    return tuple(
        graph(
            f"Burn rate over {long}",
            f"Bad events ÷ allowed, over {long}; the alert asks for more than {factor * times:g} here and over {short}.",
            "the short windows show what happens now, the long ones what it costs.",
            q(f"topk(10, {_burn_rate(c, long)})", _LEGEND), unit="short", width=6,
            lines=(Line(at=factor * times, color=_SEVERITY[severity]),), no_value="No traffic",
        )
        for long, short, times, _, severity in WINDOWS
    )  # fmt: skip


def _goodput(c: Context) -> tuple[Panel, ...]:
    good = f"{c.recorded(_REQUESTS)} - {c.recorded(_BAD)}"
    return (
        graph(
            "Goodput: events that keep the promise", "Good events per second of each model and objective (10 largest).",
            "this is the capacity that counts; it falls before requests per second do.",
            q(f"topk(10, {good})", _LEGEND), unit="ops",
        ),
        graph(
            "Share of good events", "Good ÷ all events over 5 minutes: the 10 worst.",
            "compare with the promise in the table above.",
            q(f"bottomk(10, 1 - {_errors(c, '5m')})", _LEGEND), unit="percentunit", maximum=1, no_value="No traffic",
        ),
        graph(
            "Promise and result over 30 days", "The objective, and the share of good events over the budget's period.",
            "the result below the promise: the promise is broken this month.",
            q(f"min by (slo) (1 - {_errors(c, PERIOD)})", "{{slo}} result"),
            q(f"max by (slo) ({c.recorded(_OBJECTIVE)})", "{{slo}} promise"), unit="percentunit", minimum=None, maximum=1,
            dashed=("promise$",), no_value="No traffic", width=24,
        ),
    )  # fmt: skip
