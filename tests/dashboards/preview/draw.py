"""Panels of the moment: stats, bars, tables; and which drawing belongs to which type."""

from __future__ import annotations

from typing import Any

from tests.dashboards.preview.curves import graph, heatmap, states
from tests.dashboards.preview.data import Ask, lines, rows
from tests.dashboards.preview.shapes import (
    GRID,
    INK,
    SOFT,
    Json,
    cut,
    label,
    mapped,
    nothing,
    overridden,
    rect,
    step_color,
)
from tests.dashboards.preview.units import PALETTE, color, text


def stat(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    found = [s for s in lines(panel, ask, times) if s.last is not None]
    if not found:
        return nothing(panel, width, height)
    defaults = panel["fieldConfig"]["defaults"]
    out, each = [], height / len(found) if height > 100 else width / len(found)
    upright = height > 100
    for i, series in enumerate(found):
        value = series.last or 0.0
        words = mapped(value, defaults)
        fixed = overridden(panel, series.name).get("color")
        tint = words[1] if words else color(fixed["fixedColor"]) if fixed else step_color(value, defaults["thresholds"])
        shown = words[0] if words else text(value, defaults["unit"], defaults.get("decimals"))
        x, y, w, h = (0, i * each, width, each) if upright else (i * each, 0, each, height)
        filled = panel["options"]["colorMode"] == "background" and tint != color("text")
        if filled:
            out.append(rect(x, y, w, h, tint))
        named = panel["options"]["textMode"] == "value_and_name"
        size = min(34, int(h * 0.42), int(w / max(1, len(shown)) * 1.55))
        ink = "#ffffff" if filled else tint
        out.append(
            label(
                x + w / 2,
                y + h / 2 + size * (0.15 if named else 0.36),
                shown,
                size=size,
                fill=ink,
                anchor="middle",
                bold=True,
            )
        )
        if named:
            out.append(
                label(
                    x + w / 2,
                    y + h / 2 + size * 0.15 + 16,
                    cut(series.name, w),
                    fill=ink if filled else SOFT,
                    anchor="middle",
                )
            )
    return "".join(out)


def bars(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    found = [s for s in lines(panel, ask, times) if s.last is not None]
    if not found:
        return nothing(panel, width, height)
    defaults = panel["fieldConfig"]["defaults"]
    values = [s.last or 0.0 for s in found]
    low = min(0.0, *values) if "min" not in defaults else defaults["min"]
    high = defaults.get("max", max(*values, 0.0, 1e-12) if len(values) > 1 else max(values[0], 1e-12))
    name_width = min(width * 0.34, max(len(s.name) for s in found) * 6.6 + 8)
    room = width - name_width - 74
    each = min(40.0, height / len(found))
    zero = name_width + room * (0 - low) / (high - low)
    out = []
    for i, series in enumerate(found):
        value, y = series.last or 0.0, i * each
        fixed = overridden(panel, series.name).get("color")
        tint = color(fixed["fixedColor"]) if fixed else PALETTE[i % len(PALETTE)]
        end = name_width + room * (value - low) / (high - low)
        out.append(label(name_width - 6, y + each / 2 + 4, cut(series.name, name_width), fill=INK, anchor="end"))
        out.append(rect(name_width, y + each * 0.15, room, each * 0.7, "#f3f4f6"))
        out.append(rect(min(zero, end), y + each * 0.15, max(1.0, abs(end - zero)), each * 0.7, tint))
        out.append(
            label(
                width,
                y + each / 2 + 4,
                text(value, defaults["unit"], defaults.get("decimals")),
                fill=INK,
                anchor="end",
                bold=True,
            )
        )
    return "".join(out)


def table(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    del times
    columns, found = rows(panel, ask)
    if not found:
        return nothing(panel, width, height)
    defaults = panel["fieldConfig"]["defaults"]
    special = {c: overridden(panel, c) for c in columns}
    fixed = {c: float(special[c]["custom.width"]) for c in columns if "custom.width" in special[c]}
    rest = max(60.0, (width - sum(fixed.values())) / max(1, len(columns) - len(fixed)))
    scale = width / sum(fixed.get(c, rest) for c in columns)
    out, x = [], 0.0
    room = int((height - 38) / 22)
    for column in columns:
        w = fixed.get(column, rest) * scale
        out.append(label(x + 5, 15, cut(column, w - 8, 11), bold=True, fill="#0550ae"))
        for i, row in enumerate(found[:room]):
            out.append(_cell(row.get(column), special[column], defaults, x, 24 + i * 22, w))
        x += w
    if len(found) > room:
        out.append(label(width, height - 3, f"{len(found) - room} more on the next page", size=10, anchor="end"))
    return "".join(out)


def _cell(value: Any, special: Json, defaults: Json, x: float, y: float, w: float) -> str:
    frame = f'<line x1="{x:.1f}" x2="{x + w:.1f}" y1="{y + 21}" y2="{y + 21}" stroke="{GRID}"/>'
    if value is None:
        return frame
    if isinstance(value, str):
        return frame + label(x + 5, y + 15, cut(value, w - 8), fill=INK)
    words = mapped(value, {"mappings": special.get("mappings", [])})
    shown = words[0] if words else text(value, special.get("unit", defaults["unit"]), special.get("decimals"))
    kind = special.get("custom.cellOptions", defaults["custom"]["cellOptions"])["type"]
    thresholds = special.get("thresholds", defaults["thresholds"])
    tint = words[1] if words else step_color(value, thresholds)
    out = frame
    if kind == "gauge":
        part = min(1.0, max(0.0, value))
        out += rect(x + 4, y + 5, (w - 52) * part, 12, tint)
        return out + label(x + w - 4, y + 15, shown, fill=INK, anchor="end")
    if kind == "color-background" and tint != "none" and (words or "unit" in special or "color" in defaults):
        out += rect(x + 1, y + 1, w - 2, 20, tint, ' fill-opacity="0.75"')
        return out + label(x + 5, y + 15, cut(shown, w - 8), fill="#ffffff", bold=True)
    return out + label(x + 5, y + 15, cut(shown, w - 6), fill=INK)


DRAW = {
    "stat": stat, "bargauge": bars, "timeseries": graph, "heatmap": heatmap, "state-timeline": states, "table": table,
}  # fmt: skip
