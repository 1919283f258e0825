"""Parts of Grafana's field configuration: threshold steps, value mappings, overrides, links, transformations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmobs.dashboards.panels import Column, Line, Panel

Json = dict[str, Any]

#: Carries the time range and every variable to the board that a link opens.
KEEP = "${__url_time_range}&${__all_variables}"


def steps(base: str, lines: Sequence[Line]) -> Json:
    """Threshold steps. The base has a real null, not the text that grafanalib writes."""
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": line.color, "value": line.at} for line in lines)],
    }


def mappings(words: Mapping[float, tuple[str, str]]) -> list[Json]:
    """Words and colours in the place of values."""
    if not words:
        return []
    options = {
        f"{value:g}": {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}]


def override(matcher: str, option: Any, properties: Mapping[str, Any]) -> Json:
    """One override: which fields, and what is different about them."""
    return {
        "matcher": {"id": matcher, "options": option},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def data_link(link: tuple[str, str]) -> Json:
    """A link from a value to a board; `link` is title and path. Variables and time go along."""
    title, path = link
    url = path if "?" in path or "://" in path else f"{path}?{KEEP}"
    return {"title": title, "url": url, "targetBlank": False}


def panel_link(link: tuple[str, str]) -> Json:
    """A link in the corner of a panel."""
    title, path = link
    return {
        "asDropdown": False, "icon": "dashboard", "includeVars": True, "keepTime": True, "tags": [],
        "targetBlank": False, "title": title, "tooltip": "", "type": "link", "url": f"{path}?{KEEP}",
    }  # fmt: skip


def series_overrides(panel: Panel) -> list[Json]:
    """Fixed colours and dashed lines of single series."""
    found = [
        override("byName", name, {"color": {"mode": "fixed", "fixedColor": color}})
        for name, color in panel.colors.items()
    ]
    found += [
        override(
            "byRegexp",
            f"/{pattern}/",
            {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}, "custom.fillOpacity": 0, "custom.lineWidth": 1},
        )
        for pattern in panel.dashed
    ]
    return found


def column_override(column: Column) -> Json:
    """How one column of a table looks."""
    properties: Json = {}
    if column.unit:
        properties["unit"] = column.unit
    if column.decimals is not None:
        properties["decimals"] = column.decimals
    if column.width is not None:
        properties["custom.width"] = column.width
    if column.words:
        properties["mappings"] = mappings(column.words)
    if column.lines or column.words:
        properties["thresholds"] = steps(column.base, column.lines)
        properties["color"] = {"mode": "thresholds"}
        properties["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    if column.plain:
        properties["custom.cellOptions"] = {"type": "auto"}
    if column.gauge:
        properties["min"], properties["max"] = 0, 1
        properties["thresholds"] = steps(column.base, column.lines)
        properties["custom.cellOptions"] = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    if column.link:
        properties["links"] = [data_link(column.link)]
    return override("byName", column.title, properties)


def arrange(columns: Sequence[Column]) -> list[Json]:
    """Choice, order and titles of a table's columns."""
    choose: Json = {"id": "filterFieldsByName", "options": {"include": {"names": [c.source for c in columns]}}}
    order: Json = {
        "id": "organize",
        "options": {
            "excludeByName": {},
            "indexByName": {c.source: index for index, c in enumerate(columns)},
            "renameByName": {c.source: c.title for c in columns},
        },
    }
    return [choose, order]
