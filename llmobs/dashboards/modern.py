"""grafanalib's output, made fit for today's Grafana.

grafanalib 0.7.1 writes dashboards of Grafana 5 to 9: schema 12, panels with keys of the Angular era, empty reference
ids, a hundred data points per panel, thresholds without steps. `Modern` panels are grafanalib panels with a complete
`options` and `fieldConfig`; `modernise` turns the encoded dashboard into Classic JSON of schema 39, which Grafana 10.4
reads as it is and newer ones migrate: it keeps the keys that Grafana knows and drops every other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attr
from grafanalib import core
from grafanalib._gen import DashboardEncoder

from llmobs.dashboards.fields import Json

SCHEMA_VERSION = 39

DASHBOARD_KEYS = (
    "annotations", "description", "editable", "fiscalYearStartMonth", "graphTooltip", "id", "links", "panels",
    "refresh", "schemaVersion", "tags", "templating", "time", "timepicker", "timezone", "title", "uid", "version",
)  # fmt: skip
PANEL_KEYS = (
    "datasource", "description", "fieldConfig", "gridPos", "id", "links", "options", "targets", "title",
    "transformations", "type",
)  # fmt: skip
ROW_KEYS = ("collapsed", "gridPos", "id", "panels", "title", "type")
TARGET_KEYS = (
    "datasource", "editorMode", "exemplar", "expr", "filters", "format", "instant", "legendFormat", "limit", "query",
    "queryType", "range", "refId", "spss", "tableType",
)  # fmt: skip
VARIABLE_KEYS = (
    "allValue", "current", "datasource", "description", "hide", "includeAll", "label", "multi", "name", "options",
    "query", "refresh", "regex", "skipUrlSync", "sort", "type",
)  # fmt: skip


@attr.s(auto_attribs=True)
class PromTarget(core.Target):  # type: ignore[misc]
    """A query to Prometheus with the fields grafanalib lacks."""

    exemplar: bool = False

    def to_json_data(self) -> Json:
        """Return the target; an instant one asks for the end of the range only."""
        return {
            "datasource": self.datasource, "editorMode": "code", "exemplar": self.exemplar, "expr": self.expr,
            "format": self.format, "instant": self.instant, "legendFormat": self.legendFormat or "__auto",
            "range": not self.instant, "refId": self.refId,
        }  # fmt: skip


@attr.s(auto_attribs=True)
class TempoTarget(core.Target):  # type: ignore[misc]
    """A TraceQL query: a search (`tableType` traces or spans) or TraceQL metrics."""

    table: str = "traces"

    def to_json_data(self) -> Json:
        """Return the target in the form of the Tempo data source."""
        return {
            "datasource": self.datasource, "filters": [], "limit": 20, "query": self.expr, "queryType": "traceql",
            "refId": self.refId, "spss": 3, "tableType": self.table,
        }  # fmt: skip


@attr.s(auto_attribs=True)
class Modern(core.Panel):  # type: ignore[misc]
    """A panel of any type, with options and field configuration as Grafana writes them now."""

    kind: str = "timeseries"
    options: Json = attr.Factory(dict)
    defaults: Json = attr.Factory(dict)
    overrides: list[Json] = attr.Factory(list)

    def to_json_data(self) -> Json:
        """Return the panel as grafanalib would, its type, options and fields replaced."""
        panel: Json = self.panel_json({"type": self.kind})
        panel["options"] = self.options
        panel["fieldConfig"] = {"defaults": self.defaults, "overrides": self.overrides}
        return panel


@attr.s(auto_attribs=True)
class Variable(core.Template):  # type: ignore[misc]
    """A variable whose choices may have a text that differs from the value."""

    choices: tuple[tuple[str, str], ...] = ()
    description: str = ""

    def to_json_data(self) -> Json:
        """Return the variable; choices are (text, value), the first is the default."""
        found: Json = super().to_json_data()
        found["description"] = self.description
        found["skipUrlSync"] = False
        found["regex"] = self.regex or ""
        if self.type == "custom":
            found["options"] = [
                {"selected": i == 0, "text": text, "value": value} for i, (text, value) in enumerate(self.choices)
            ]
            found["query"] = ", ".join(f"{text} : {value}" for text, value in self.choices)
            found["current"] = found["options"][0]
            found["datasource"] = None
        elif self.includeAll:
            found["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
        elif self.default:
            found["current"] = {"selected": True, "text": self.default, "value": self.default}
        else:
            found["current"] = {}
        return found


# grafanalib ships no types, so type checkers do not see the arguments that these classes inherit.
prom_target: Callable[..., core.Target] = PromTarget
tempo_target: Callable[..., core.Target] = TempoTarget
modern_panel: Callable[..., core.Panel] = Modern
variable: Callable[..., core.Template] = Variable


def modernise(dashboard: core.Dashboard) -> Json:
    """Return the dashboard as Classic JSON: known keys only, ids and reference ids set, nothing null but `id`."""
    made: Json = json.loads(json.dumps(dashboard.to_json_data(), cls=DashboardEncoder))
    made.update(schemaVersion=SCHEMA_VERSION, id=None, fiscalYearStartMonth=0, version=1)
    made["timepicker"] = {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m", "30m", "1h"]}
    made["templating"] = {"list": [_variable(v) for v in made["templating"]["list"]]}
    numbers = iter(range(1, 1000))
    made["panels"] = [_panel(p, numbers) for p in made["panels"]]
    return _only(made, DASHBOARD_KEYS, keep_null=("id",))


def _panel(panel: Json, numbers: Iterator[int]) -> Json:
    panel["id"] = next(numbers)
    if panel["type"] == "row":
        panel["panels"] = [_panel(inner, numbers) for inner in panel["panels"]]
        return _only(panel, ROW_KEYS)
    panel["targets"] = [_target(t, index) for index, t in enumerate(panel["targets"])]
    kept = _only(panel, PANEL_KEYS)
    for key in ("links", "transformations"):
        if not kept.get(key):
            kept.pop(key, None)
    if panel["type"] == "text":
        kept.pop("targets")
        kept.pop("datasource", None)
    return kept


def _target(target: Json, index: int) -> Json:
    target["refId"] = chr(ord("A") + index)
    if "expr" in target:
        target.pop("query", None)
    return _only(target, TARGET_KEYS)


def _variable(found: Json) -> Json:
    kept = _only(found, VARIABLE_KEYS)
    if found["type"] != "query":
        for key in ("allValue", "sort"):
            kept.pop(key, None)
        if found["type"] == "custom":
            for key in ("refresh", "regex"):
                kept.pop(key, None)
    elif not kept.get("allValue"):
        kept.pop("allValue", None)
    if not kept.get("description"):
        kept.pop("description", None)
    return kept


def _only(found: Mapping[str, Any], keys: tuple[str, ...], keep_null: tuple[str, ...] = ()) -> Json:
    return {key: found[key] for key in keys if key in found and (found[key] is not None or key in keep_null)}
