"""The generated dashboards as the tests see them: boards, panels, queries with their variables filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import promql_parser

from llmobs.dashboards import boards
from llmobs.generate import Options

Json = dict[str, Any]

#: Values that stand for the variables where a query is only parsed.
VALUES = {
    "__rate_interval": "1m", "__range": "1h", "__interval": "15s", "compare": "1d", "baseline": "1h",
    "ttft_slo": "0.5", "tpot_slo": "0.5", "split": "version", "stable": "v1", "candidate": "v2", "draft_cost": "0.02",
    "job": ".+", "instance": ".+", "model": ".+", "target": ".+", "engine": ".+", "cluster": ".*", "slo": ".+",
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    board: Json
    panel: Json
    target: Json

    @property
    def where(self) -> str:
        return f"{self.board['uid']} / {self.panel['title']} / {self.target['refId']}"


@lru_cache
def all_boards(without: tuple[str, ...] = ()) -> dict[str, Json]:
    """Every board by uid, made afresh."""
    return boards(Options(without=without))


def panels(board: Json) -> Iterator[Json]:
    """Panels of a board, those in collapsed rows included, without the rows."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def every_panel() -> list[tuple[Json, Json]]:
    """Board and panel, of all boards."""
    return [(board, panel) for board in all_boards().values() for panel in panels(board)]


def prometheus_targets() -> list[Target]:
    """Every PromQL query of a panel."""
    return [Target(b, p, t) for b, p in every_panel() for t in p["targets"] if "expr" in t]


def tempo_targets() -> list[Target]:
    """Every TraceQL query of a panel."""
    return [Target(b, p, t) for b, p in every_panel() for t in p["targets"] if "expr" not in t]


def expressions() -> list[tuple[str, str]]:
    """Where, and the PromQL: of every target, annotation and query variable that holds a selector."""
    found = [(t.where, t.target["expr"]) for t in prometheus_targets()]
    for board in all_boards().values():
        found += [
            (f"{board['uid']} / annotation {a['name']}", a["target"]["expr"]) for a in board["annotations"]["list"]
        ]
    return found


def fill(text: str, values: dict[str, str] | None = None) -> str:
    """Replace variables by values, as Grafana does: `$name`, `${name}`."""
    known = VALUES if values is None else values

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in known:
            raise KeyError(f"no value for ${name}")
        return known[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


def parse(text: str) -> Any:
    """Parse PromQL with its variables filled in."""
    return promql_parser.parse(fill(text))


def nodes(expression: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node of a parsed expression with the nodes above it, the outermost first."""
    yield expression, parents
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(expression, name, None)
        if inner is not None and not isinstance(inner, (str, float)):
            yield from nodes(inner, (*parents, expression))
    for inner in getattr(expression, "args", None) or ():
        yield from nodes(inner, (*parents, expression))


def selectors(text: str) -> list[tuple[Any, tuple[Any, ...]]]:
    """Every vector selector of an expression with the nodes above it."""
    return [(n, up) for n, up in nodes(parse(text)) if isinstance(n, promql_parser.VectorSelector)]
