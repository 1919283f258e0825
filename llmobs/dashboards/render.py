"""Panels as data → Grafana panels, by kind."""

from __future__ import annotations

from collections.abc import Callable

from grafanalib import core

from llmobs.dashboards.fields import (
    Json,
    arrange,
    column_override,
    data_link,
    mappings,
    panel_link,
    series_overrides,
    steps,
)
from llmobs.dashboards.modern import modern_panel, prom_target, tempo_target
from llmobs.dashboards.panels import Panel, Query

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
TEMPO = {"type": "tempo", "uid": "${tempo_datasource}"}

_HIDE_NOTHING = {"legend": False, "tooltip": False, "viz": False}

TYPES = {
    "graph": "timeseries", "stat": "stat", "heatmap": "heatmap", "bars": "bargauge", "table": "table",
    "states": "state-timeline", "traces": "table", "text": "text",
}  # fmt: skip


def grafana_panel(panel: Panel, x: int, y: int) -> core.Panel:
    """Return the grafanalib panel at a grid position."""
    options, defaults, overrides = _KINDS[panel.kind](panel)
    source = TEMPO if any(q.traceql for q in panel.queries) else PROMETHEUS
    return modern_panel(
        kind=TYPES[panel.kind],
        title=panel.title,
        description=panel.description,
        dataSource=source,
        targets=[_target(panel, q) for q in panel.queries],
        gridPos=core.GridPos(h=panel.height, w=panel.width, x=x, y=y),
        links=[panel_link(panel.link)] if panel.link else [],
        transformations=_transformations(panel),
        options=options,
        defaults=defaults,
        overrides=overrides,
    )


def _target(panel: Panel, query: Query) -> core.Target:
    if query.traceql:
        return tempo_target(expr=query.text, datasource=TEMPO, table="spans" if "select(" in query.text else "traces")
    return prom_target(
        expr=query.text,
        legendFormat=query.legend,
        instant=query.instant,
        exemplar=query.exemplars,
        format="table" if query.table else "heatmap" if query.buckets else "time_series",
        datasource=PROMETHEUS,
    )


def _transformations(panel: Panel) -> list[Json]:
    found = [dict(t) for t in panel.transformations]
    if panel.kind == "table" and panel.columns and not panel.transformations:
        if len(panel.queries) > 1:
            found.insert(0, {"id": "merge", "options": {}})
        found += arrange(panel.columns)
    return found


def _common(panel: Panel, *, color: Json) -> Json:
    defaults: Json = {
        "color": color,
        "links": [data_link(panel.link)] if panel.link and panel.kind in ("graph", "stat", "bars") else [],
        "noValue": panel.no_value,
        "thresholds": steps(panel.base, panel.lines),
        "unit": panel.unit,
    }
    if panel.words:
        # Linters skip the unit where mappings exist, even an empty list: the key is written only when it is needed.
        defaults["mappings"] = mappings(panel.words)
    for key, value in (("min", panel.minimum), ("max", panel.maximum), ("decimals", panel.decimals)):
        if value is not None:
            defaults[key] = value
    return defaults


def _reduce() -> Json:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _graph(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults = _common(panel, color={"mode": "palette-classic"})
    defaults["custom"] = {
        "axisBorderShow": False, "axisCenteredZero": False, "axisColorMode": "text", "axisLabel": "",
        "axisPlacement": "auto", "barAlignment": 0, "drawStyle": "bars" if panel.bars else "line",
        "fillOpacity": 100 if panel.bars else 30 if panel.stacked else 8, "gradientMode": "none",
        "hideFrom": _HIDE_NOTHING, "insertNulls": False, "lineInterpolation": "linear", "lineWidth": 1,
        "pointSize": 4, "scaleDistribution": {"type": "log", "log": 10} if panel.log else {"type": "linear"},
        "showPoints": "auto", "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        "thresholdsStyle": {"mode": "dashed" if panel.lines else "off"},
    }  # fmt: skip
    if panel.log:
        # A logarithmic axis has no 0.
        defaults.pop("min", None)
    options = {
        "legend": {
            "calcs": ["lastNotNull", "max"] if panel.legend_table else [],
            "displayMode": "table" if panel.legend_table else "list", "placement": "bottom", "showLegend": True,
        },
        "tooltip": {"hideZeros": False, "mode": "multi", "sort": "desc"},
    }  # fmt: skip
    return options, defaults, series_overrides(panel)


def _stat(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults = _common(panel, color={"mode": "thresholds"})
    several = len(panel.queries) > 1 or any("{{" in q.legend for q in panel.queries)
    options = {
        "colorMode": "background" if panel.big else "value", "graphMode": "area" if panel.sparkline else "none",
        "justifyMode": "center", "orientation": "auto", "percentChangeColorMode": "standard",
        "reduceOptions": _reduce(), "showPercentChange": False,
        "textMode": "value_and_name" if several else "value", "wideLayout": True,
    }  # fmt: skip
    return options, defaults, series_overrides(panel)


def _heatmap(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults: Json = {"custom": {"hideFrom": _HIDE_NOTHING, "scaleDistribution": {"type": "linear"}}}
    unit = "short" if panel.rows_named else panel.unit
    color: Json = {
        "exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "reverse": False,
        "scale": "linear" if panel.rows_named else "exponential", "scheme": panel.scheme, "steps": 64,
    }  # fmt: skip
    if panel.rows_named:
        color |= {"min": panel.minimum or 0}
        if panel.maximum is not None:
            color |= {"max": panel.maximum}
    options: Json = {
        "calculate": False, "cellGap": 1, "cellValues": {"unit": panel.unit if panel.rows_named else "reqps"},
        "color": color, "exemplars": {"color": "rgba(255,0,255,0.7)"}, "filterValues": {"le": 1e-9},
        "legend": {"show": True}, "rowsFrame": {"layout": "unknown" if panel.rows_named else "auto"},
        "showValue": "never", "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }  # fmt: skip
    if panel.rows_named:
        # 0 is a value here (an empty cache), not an absent observation.
        options.pop("filterValues")
    return options, defaults, []


def _bars(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults = _common(panel, color={"mode": "thresholds" if panel.lines else "palette-classic"})
    options = {
        "displayMode": "basic", "legend": {
            "calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False,
        },
        "maxVizHeight": 60, "minVizHeight": 12, "minVizWidth": 8, "namePlacement": "left", "orientation": "horizontal",
        "reduceOptions": _reduce(), "showUnfilled": True, "sizing": "auto", "valueMode": "color",
    }  # fmt: skip
    return options, defaults, series_overrides(panel)


def _table(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults: Json = {
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False},
        "noValue": panel.no_value,
        "thresholds": steps(panel.base, panel.lines),
        "unit": panel.unit,
    }
    if panel.lines:
        defaults["color"] = {"mode": "thresholds"}
        defaults["custom"]["cellOptions"] = {"type": "color-background", "mode": "basic"}
    if panel.maximum is not None:
        defaults |= {"min": panel.minimum or 0, "max": panel.maximum}
    sort_by = [{"displayName": panel.sort[0], "desc": panel.sort[1]}] if panel.sort else []
    options: Json = {
        "cellHeight": "sm",
        "enablePagination": True,
        "frameIndex": 0,
        "showHeader": True,
        "sortBy": sort_by,
    }
    return options, defaults, [column_override(c) for c in panel.columns]


def _states(panel: Panel) -> tuple[Json, Json, list[Json]]:
    defaults = _common(panel, color={"mode": "thresholds"})
    defaults["custom"] = {
        "axisPlacement": "auto", "fillOpacity": 80, "hideFrom": _HIDE_NOTHING, "lineWidth": 0,
    }  # fmt: skip
    options = {
        "alignValue": "left", "legend": {
            "calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True,
        },
        "mergeValues": True, "rowHeight": 0.9, "showValue": "auto",
        "tooltip": {"hideZeros": False, "mode": "single", "sort": "none"},
    }  # fmt: skip
    return options, defaults, []


def _text(panel: Panel) -> tuple[Json, Json, list[Json]]:
    return {"mode": "markdown", "content": panel.text}, {}, []


_KINDS: dict[str, Callable[[Panel], tuple[Json, Json, list[Json]]]] = {
    "graph": _graph, "stat": _stat, "heatmap": _heatmap, "bars": _bars, "table": _table, "states": _states,
    "traces": _table, "text": _text,
}  # fmt: skip


def layout(panels: list[Panel], top: int) -> tuple[list[tuple[Panel, int, int]], int]:
    """Place panels from left to right, a new line where 24 columns are full; return positions and the next free row."""
    placed: list[tuple[Panel, int, int]] = []
    x, y, tallest = 0, top, 0
    for panel in panels:
        if x + panel.width > 24:
            x, y, tallest = 0, y + tallest, 0
        placed.append((panel, x, y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return placed, y + tallest


def any_tempo(panels: list[Panel]) -> bool:
    """Return whether one of the panels asks Tempo."""
    return any(q.traceql for panel in panels for q in panel.queries)
