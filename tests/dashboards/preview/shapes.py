"""What all drawings share: text, rectangles, colours by threshold, mapping and override, the time axis."""

from __future__ import annotations

import re
import time
from html import escape
from typing import Any

from tests.dashboards.preview.units import color

Json = dict[str, Any]
GRID, INK, SOFT = "#e4e7eb", "#24292e", "#6a737d"
SCHEMES = {
    "Oranges": ((255, 245, 235), (253, 141, 60), (127, 39, 4)),
    "Greens": ((237, 248, 233), (116, 196, 118), (0, 68, 27)),
    "Spectral": ((60, 130, 190), (254, 224, 139), (190, 20, 60)),
}


def label(
    x: float, y: float, words: str, *, size: int = 11, fill: str = SOFT, anchor: str = "start", bold: bool = False
) -> str:
    """A line of text."""
    weight = ' font-weight="600"' if bold else ""
    style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """A filled rectangle."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}"{more}/>'


def cut(words: str, width: float, size: int = 11) -> str:
    """Shorten a text to a width, in the middle, where names differ least."""
    room = max(4, int(width / (size * 0.64)))
    return words if len(words) <= room else words[: room // 2] + "…" + words[-(room - room // 2 - 1) :]


def step_color(value: float | None, thresholds: Json) -> str:
    found = thresholds["steps"][0]["color"]
    for step in thresholds["steps"][1:]:
        if value is not None and value >= step["value"]:
            found = step["color"]
    return color(found)


def mapped(value: float, defaults: Json) -> tuple[str, str] | None:
    for mapping in defaults.get("mappings", []):
        hit = mapping["options"].get(f"{value:g}")
        if hit:
            return hit["text"], color(hit["color"])
    return None


def overridden(panel: Json, name: str) -> dict[str, Any]:
    """Properties that the overrides give to a series."""
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        hit = (
            matcher["options"] == name if matcher["id"] == "byName" else re.search(matcher["options"].strip("/"), name)
        )
        if hit:
            found.update({p["id"]: p["value"] for p in override["properties"]})
    return found


def nothing(panel: Json, width: float, height: float, words: str = "") -> str:
    words = words or panel["fieldConfig"]["defaults"].get("noValue", "No data")
    return label(width / 2, height / 2, words, size=14, anchor="middle")


def time_axis(times: list[float], left: float, width: float, y: float) -> str:
    out, count = [], max(2, int(width / 110))
    for i in range(count + 1):
        at = times[0] + (times[-1] - times[0]) * i / count
        x = left + width * i / count
        anchor = "start" if i == 0 else "end" if i == count else "middle"
        out.append(label(x, y, time.strftime("%H:%M:%S", time.gmtime(at)), size=10, anchor=anchor))
    return "".join(out)


def shade(scheme: str, share: float) -> str:
    low, middle, high = SCHEMES[scheme]
    a, b, part = (low, middle, share * 2) if share < 0.5 else (middle, high, share * 2 - 1)
    return "#" + "".join(f"{round(x + (y - x) * part):02x}" for x, y in zip(a, b))
