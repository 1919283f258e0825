"""What a board is made of, as data: panels, queries, sections. Nothing here knows Grafana's JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from llmobs.dashboards.promql import metrics_in

Kind = Literal["graph", "stat", "heatmap", "bars", "table", "states", "traces", "text"]
#: What a panel needs besides an engine; `llmobs generate dashboards --without` names these.
Part = Literal["gpu", "tempo", "spec"]

GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = (
    "green", "yellow", "orange", "red", "blue", "purple", "#8e8e8e",
)  # fmt: skip

#: One colour for one thing on every board.
PHASE_COLORS = {"queue": ORANGE, "prefill": BLUE, "decode": GREEN}
QUANTILE_COLORS = {"p50": GREEN, "p95": YELLOW, "p99": RED, "mean": GREY}
FAILURE_COLORS = {
    "oom": "dark-red", "engine_dead": RED, "error": "light-red", "timeout": ORANGE, "abort": YELLOW,
    "rejected": PURPLE, "invalid": BLUE, "context_length": "light-blue",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question to Prometheus or, with `traceql`, to Tempo.

    `instant` asks for the end of the time range only, `table` for rows instead of series, `exemplars` also for the
    traces behind the observations.
    """

    text: str
    legend: str = ""
    instant: bool = False
    table: bool = False
    exemplars: bool = False
    buckets: bool = False
    traceql: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A threshold: from `at` upwards (or downwards, where small is bad) the colour is `color`."""

    at: float
    color: str = RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its `source` field, its title, unit, colour steps, words for values, and width in pixels.

    `gauge` draws a bar, `plain` takes the panel's own colours away.
    """

    source: str
    title: str
    unit: str = ""
    lines: tuple[Line, ...] = ()
    base: str = GREEN
    words: Mapping[float, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    gauge: bool = False
    decimals: int | None = None
    width: int | None = None
    link: tuple[str, str] | None = None
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `shows` says what it shows, `act` what to do when it looks wrong; metrics are named from the queries.

    `unit` is an id of Grafana's list. `lines` are drawn at `at` and colour the values. `words` put text and colour in
    the place of values. `colors` fixes the colour of a series by its legend. `width` is in 24ths, `height` in rows.
    """

    kind: Kind
    title: str
    shows: str
    act: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    width: int = 12
    height: int = 8
    lines: tuple[Line, ...] = ()
    base: str = GREEN
    words: Mapping[float, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    colors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    columns: tuple[Column, ...] = ()
    stacked: bool = False
    bars: bool = False
    log: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    no_value: str = "No data"
    dashed: tuple[str, ...] = ()
    legend_table: bool = True
    link: tuple[str, str] | None = None
    needs: frozenset[Part] = frozenset()
    transformations: tuple[Mapping[str, Any], ...] = ()
    sort: tuple[str, bool] | None = None
    sparkline: bool = False
    big: bool = False
    scheme: str = "Oranges"
    rows_named: bool = False
    text: str = ""

    @property
    def description(self) -> str:
        """The text behind the panel's (i): what it shows, which metrics it reads, what to do."""
        metrics = dict.fromkeys(name for q in self.queries if not q.traceql for name in metrics_in(q.text))
        rules = dict.fromkeys(name for q in self.queries if not q.traceql for name in _recorded(q.text))
        traces = [q.text for q in self.queries if q.traceql]
        reads = [", ".join(f"`{name}`" for name in (*metrics, *rules))] if metrics or rules else []
        reads += [f"spans in Tempo: `{text}`" for text in traces[:1]]
        parts = [self.shows]
        if reads:
            parts.append("Reads: " + "; ".join(reads) + ".")
        parts.append("What to do: " + self.act)
        return "\n\n".join(parts)


def _recorded(text: str) -> list[str]:
    """Names of recorded series in an expression: they hold a colon, which nothing else does."""
    return re.findall(r"[a-z_][a-z0-9_]*:[a-z0-9_:]+", re.sub(r'"[^"]*"', '""', text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row of a board with its panels. Optional features are collapsed, so that nobody looks at an empty wall."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A variable with fixed choices (text, value); the first is the default."""

    name: str
    label: str
    choices: tuple[tuple[str, str], ...]
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A variable whose choices come from a query; `default` is chosen while it is among them."""

    name: str
    label: str
    query: str
    default: str = ""
    multi: bool = False
    all_value: str = ""
    regex: str = ""
    numeric: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard: the question it answers is its description."""

    uid: str
    title: str
    question: str
    sections: tuple[Section, ...]
    variables: tuple[Choice | Lookup, ...] = ()
    annotations: bool = True
    #: A board without this part is not made at all.
    needs: frozenset[Part] = frozenset()
    #: Variables that no query of this board uses are left out.
    filters: tuple[str, ...] = ("model", "target", "engine")
    time_from: str = "now-1h"


def graph(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """A time series panel."""
    return Panel(kind="graph", title=title, shows=shows, act=act, queries=queries, **more)


def stat(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """One big figure, the last of its series."""
    return Panel(kind="stat", title=title, shows=shows, act=act, queries=queries, **{"width": 3, "height": 4, **more})


def heatmap(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """A heatmap: of a histogram's buckets, or (`rows_named`) one row per series."""
    return Panel(kind="heatmap", title=title, shows=shows, act=act, queries=queries, **more)


def bars(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """Horizontal bars, one per series."""
    return Panel(kind="bars", title=title, shows=shows, act=act, queries=queries, **more)


def table(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """A table of instant queries, joined on their common labels."""
    return Panel(kind="table", title=title, shows=shows, act=act, queries=queries, **{"width": 24, **more})


def states(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """A band per series, coloured by its value."""
    return Panel(kind="states", title=title, shows=shows, act=act, queries=queries, **more)


def traces(title: str, shows: str, act: str, *queries: Query, **more: Any) -> Panel:
    """A table of traces or spans from Tempo."""
    needs = frozenset[Part]({"tempo"})
    return Panel(kind="traces", title=title, shows=shows, act=act, queries=queries, needs=needs, **more)


def q(text: str, legend: str = "", **more: Any) -> Query:
    """A range query."""
    return Query(text=text, legend=legend, **more)


def cell(text: str) -> Query:
    """A column of a table: the last value, one row per label set."""
    return Query(text=text, instant=True, table=True)


def now(text: str, legend: str = "") -> Query:
    """The last value only."""
    return Query(text=text, legend=legend, instant=True)
