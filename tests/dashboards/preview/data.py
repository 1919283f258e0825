"""What Prometheus answers to a panel's queries, in the shape in which panels draw it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Ask = Callable[[str, bool], list[Json]]


@dataclass
class Series:
    """A line: its legend, its labels, its points (None is a gap)."""

    name: str
    labels: dict[str, str]
    points: list[float | None]

    @property
    def last(self) -> float | None:
        return next((p for p in reversed(self.points) if p is not None), None)


def legend(pattern: str, labels: dict[str, str]) -> str:
    """Fill a legend in; without one, the labels speak."""
    if pattern and pattern != "__auto":
        return re.sub(r"{{(\w+)}}", lambda m: labels.get(m[1], ""), pattern)
    shown = ", ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__")
    return shown or "value"


def lines(panel: Json, ask: Ask, times: list[float]) -> list[Series]:
    """Every series of a panel on a common time axis."""
    found = []
    for target in panel["targets"]:
        for series in ask(target["expr"], target["instant"]):
            labels = series["metric"]
            values = dict(series.get("values") or [series["value"]])
            known = {round(float(at)): _number(v) for at, v in values.items()}
            if target["instant"]:
                points: list[float | None] = [_number(v) for v in values.values()]
            else:
                points = [known.get(round(t)) for t in times]
            found.append(Series(legend(target["legendFormat"], labels), labels, points))
    return found


def _number(text: str) -> float | None:
    value = float(text)
    return None if math.isnan(value) or math.isinf(value) else value


def buckets(panel: Json, ask: Ask, times: list[float]) -> list[Series]:
    """Rows of a heatmap of a histogram, lowest first: observations of each bucket, not cumulative."""
    found = sorted(lines(panel, ask, times), key=lambda s: float(s.labels["le"].replace("+Inf", "inf")))
    rows, below = [], [0.0] * len(times)
    for series in found:
        points = [None if p is None else max(0.0, p - b) for p, b in zip(series.points, below)]
        rows.append(Series(series.labels["le"], series.labels, list(points)))
        below = [b if p is None else p for p, b in zip(series.points, below)]
    return rows


def rows(panel: Json, ask: Ask) -> tuple[list[str], list[Json]]:
    """Columns and rows of a table after its transformations."""
    several = len(panel["targets"]) > 1
    merged: dict[tuple[tuple[str, str], ...], Json] = {}
    for target in panel["targets"]:
        value = f"Value #{target['refId']}" if several else "Value"
        for series in ask(target["expr"], True):
            labels = {k: v for k, v in series["metric"].items() if k != "__name__"}
            key = tuple(sorted(labels.items()))
            merged.setdefault(key, {**labels})[value] = float(series["value"][1])
    found = _joined(list(merged.values()))
    columns = list(dict.fromkeys(k for row in found for k in row))
    for step in panel.get("transformations", []):
        columns, found = _transform(step, columns, found)
    for sort in panel["options"]["sortBy"]:
        name = sort["displayName"]
        found.sort(
            key=lambda r: (r.get(name) is None, r.get(name) if r.get(name) is not None else 0), reverse=sort["desc"]
        )
    return columns, found


def _joined(found: list[Json]) -> list[Json]:
    """Rows whose labels are part of another row's labels are merged into it, as Grafana's merge does."""
    whole = sorted(found, key=lambda r: -sum(not k.startswith("Value") for k in r))
    kept: list[Json] = []
    for row in whole:
        labels = {k: v for k, v in row.items() if not k.startswith("Value")}
        hosts = [k for k in kept if labels.items() <= k.items() and not (row.keys() - labels.keys()) & k.keys()]
        for host in hosts:
            host.update({k: v for k, v in row.items() if k.startswith("Value")})
        if not hosts:
            kept.append(dict(row))
    return kept


def _transform(step: Json, columns: list[str], found: list[Json]) -> tuple[list[str], list[Json]]:
    options = step["options"]
    if step["id"] == "filterFieldsByName":
        return [c for c in options["include"]["names"] if c in columns], found
    if step["id"] == "organize":
        order = options["indexByName"]
        columns = sorted(columns, key=lambda c: order.get(c, 99))
        names = options["renameByName"]
        return [names.get(c, c) for c in columns], [{names.get(k, k): v for k, v in row.items()} for row in found]
    if step["id"] == "groupingToMatrix":
        corner = f"{options['rowField']}\\{options['columnField']}"
        matrix: dict[str, Json] = {}
        for row in found:
            key = row[options["rowField"]]
            matrix.setdefault(key, {corner: key})[row[options["columnField"]]] = row[options["valueField"]]
        return list(dict.fromkeys(k for row in matrix.values() for k in row)), list(matrix.values())
    if step["id"] == "convertFieldType":
        for conversion in options["conversions"]:
            for row in found:
                row[conversion["targetField"]] = float(row[conversion["targetField"]])
    if step["id"] == "sortBy":
        for sort in options["sort"]:
            found.sort(key=lambda r: r[sort["field"]], reverse=sort["desc"])
    return columns, found
