"""Panels over time: graphs, heatmaps, states."""

from __future__ import annotations

from typing import Any

from tests.dashboards.preview.data import Ask, Series, buckets, lines
from tests.dashboards.preview.shapes import (
    GRID,
    INK,
    Json,
    cut,
    label,
    mapped,
    nothing,
    overridden,
    rect,
    shade,
    time_axis,
)
from tests.dashboards.preview.units import PALETTE, color, text, ticks


def graph(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    found = [s for s in lines(panel, ask, times) if s.last is not None]
    if not found:
        return nothing(panel, width, height)
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults["custom"], defaults["unit"]
    table = panel["options"]["legend"]["displayMode"] == "table"
    shown = min(len(found), max(1, int((height - 90) / 16)), 11) if table else 1
    legend_height = shown * 16 + 6 if table else 18
    left, top, bottom = 58.0, 6.0, height - legend_height - 18
    stacked = custom["stacking"]["mode"] == "normal"
    shapes: list[tuple[Series, list[float | None], list[float | None]]] = []
    base: list[float] = [0.0] * len(times)
    for series in found:
        under: list[float | None] = list(base) if stacked else [None] * len(times)
        over = [None if p is None else p + b for p, b in zip(series.points, base)] if stacked else series.points
        if stacked:
            base = [b if o is None else o for o, b in zip(over, base)]
        shapes.append((series, under, list(over)))
    values = [v for _, _, over in shapes for v in over if v is not None]
    marks = (
        [s["value"] for s in defaults["thresholds"]["steps"][1:]] if custom["thresholdsStyle"]["mode"] != "off" else []
    )
    low = min([*values, defaults["min"]]) if "min" in defaults else min(values)
    high = max(values)
    near = [m for m in marks if m <= max(high * 4, high + 1e-9)]
    high = max([high, *near, low + 1e-9])
    if "max" in defaults:
        high = max(high, min(defaults["max"], high * 1.0) if high > defaults["max"] else high)
    high += (high - low) * 0.06
    if low == 0 and high <= 1e-6:
        high = 1.0

    def at(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    span = width - left - 4
    xs = [left + span * i / max(1, len(times) - 1) for i in range(len(times))]
    out = []
    for tick in ticks(low, high, unit):
        out.append(f'<line x1="{left}" x2="{width - 4}" y1="{at(tick):.1f}" y2="{at(tick):.1f}" stroke="{GRID}"/>')
        out.append(label(left - 6, at(tick) + 4, text(tick, unit), size=10, anchor="end"))
    out.append(time_axis(times, left, span, bottom + 13))
    for i, (series, under, over) in enumerate(shapes):
        special = overridden(panel, series.name)
        tint = color(special["color"]["fixedColor"]) if "color" in special else PALETTE[i % len(PALETTE)]
        dash = ' stroke-dasharray="7 5"' if "custom.lineStyle" in special else ""
        if custom["drawStyle"] == "bars":
            for x, v in zip(xs, over):
                if v:
                    out.append(rect(x - 2, at(v), 4, bottom - at(v), tint))
            continue
        for piece in _pieces(over):
            path = " ".join(f"{xs[j]:.1f},{at(over[j] or 0.0):.1f}" for j in piece)
            if len(piece) == 1:
                out.append(
                    f'<circle cx="{xs[piece[0]]:.1f}" cy="{at(over[piece[0]] or 0.0):.1f}" r="2" fill="{tint}"/>'
                )
            if stacked:
                back = " ".join(f"{xs[j]:.1f},{at(under[j] or 0.0):.1f}" for j in reversed(piece))
                out.append(f'<polygon points="{path} {back}" fill="{tint}" fill-opacity="0.45"/>')
            out.append(f'<polyline points="{path}" fill="none" stroke="{tint}" stroke-width="1.5"{dash}/>')
    for step in defaults["thresholds"]["steps"][1:]:
        if marks and low <= step["value"] <= high:
            y = at(step["value"])
            style = f'stroke="{color(step["color"])}" stroke-dasharray="4 4"'
            out.append(f'<line x1="{left}" x2="{width - 4}" y1="{y:.1f}" y2="{y:.1f}" {style}/>')
    out.append(_legend(panel, shapes, width, bottom + 20, shown, table=table))
    return "".join(out)


def _pieces(points: list[float | None]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for i, point in enumerate(points):
        if point is None:
            if found[-1]:
                found.append([])
        else:
            found[-1].append(i)
    return [piece for piece in found if piece]


def _legend(panel: Json, shapes: list[Any], width: float, y: float, shown: int, *, table: bool) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    out, x = [], 8.0
    for i, (series, _, _) in enumerate(shapes):
        special = overridden(panel, series.name)
        tint = color(special["color"]["fixedColor"]) if "color" in special else PALETTE[i % len(PALETTE)]
        if table:
            if i >= shown:
                break
            row = y + 11 + i * 16
            name = (
                series.name
                if i < shown - 1 or len(shapes) == shown
                else f"{series.name}  (+{len(shapes) - shown} more)"
            )
            out.append(rect(8, row - 6, 12, 4, tint))
            out.append(label(26, row, cut(name, width - 220), fill=INK))
            peak = max(p for p in series.points if p is not None)
            out.append(label(width - 110, row, text(series.last or 0.0, defaults["unit"]), fill=INK, anchor="end"))
            out.append(label(width - 6, row, "max " + text(peak, defaults["unit"]), anchor="end", size=10))
        else:
            out.append(rect(x, y + 4, 12, 4, tint))
            out.append(label(x + 17, y + 10, series.name, fill=INK))
            x += 34 + len(series.name) * 6.2
    return "".join(out)


def heatmap(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    named = panel["options"]["rowsFrame"]["layout"] == "unknown"
    found = lines(panel, ask, times) if named else buckets(panel, ask, times)
    if not named:
        used = [i for i, s in enumerate(found) if any(p for p in s.points)]
        found = found[max(0, used[0] - 1) : used[-1] + 2] if used else []
    if not found:
        return nothing(panel, width, height, "No traffic")
    unit = panel["options"]["yAxis"]["unit"]
    left = min(190.0, max(len(s.name) for s in found) * 6.2 + 10) if named else 58.0
    right, bottom = 58.0, height - 20
    each, span = (bottom - 4) / len(found), width - left - right
    values = [p for s in found for p in s.points if p is not None]
    settings = panel["options"]["color"]
    high = settings.get("max") or max(values, default=1.0) or 1.0
    out = []
    for row, series in enumerate(found):
        y = bottom - (row + 1) * each if not named else 4 + row * each
        name = series.name if named else "≤ " + text(float(series.name.replace("+Inf", "inf")), unit)
        if named or each >= 11 or row % 3 == 0:
            out.append(label(left - 6, y + each / 2 + 4, cut(name, left), size=10, anchor="end"))
        cell = span / len(series.points)
        for i, point in enumerate(series.points):
            if point is None or (point == 0 and not named):
                continue
            share = min(1.0, max(0.0, point / high)) ** (1.0 if named else 0.5)
            out.append(rect(left + i * cell, y, cell + 0.4, max(1.0, each - 1), shade(settings["scheme"], share)))
    out.append(time_axis(times, left, span, height - 6))
    cells = panel["options"]["cellValues"]["unit"]
    part = (bottom - 20) / 40
    out += [
        rect(width - 50, bottom - (i + 1) * part, 10, part + 0.5, shade(settings["scheme"], i / 39)) for i in range(40)
    ]
    out.append(label(width, 14, text(high, cells), size=10, anchor="end"))
    out.append(label(width, bottom, text(0.0, cells), size=10, anchor="end"))
    return "".join(out)


def states(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    found = lines(panel, ask, times)
    if not found:
        return nothing(panel, width, height)
    defaults = panel["fieldConfig"]["defaults"]
    left, bottom = min(230.0, max(len(s.name) for s in found) * 6.4 + 10), height - 40
    each, span = min(34.0, bottom / len(found)), width - left - 4
    out, seen = [], {}
    for row, series in enumerate(found):
        out.append(label(left - 6, row * each + each / 2 + 4, cut(series.name, left), fill=INK, anchor="end"))
        cell = span / len(series.points)
        for i, point in enumerate(series.points):
            words = mapped(point, defaults) if point is not None else None
            if words:
                seen[words[0]] = words[1]
                out.append(rect(left + i * cell, row * each + 3, cell + 0.4, each - 6, words[1]))
    out.append(time_axis(times, left, span, height - 24))
    x = left
    for name, tint in seen.items():
        out.append(rect(x, height - 13, 12, 8, tint) + label(x + 17, height - 5, name, fill=INK))
        x += 34 + len(name) * 6.4
    return "".join(out)
