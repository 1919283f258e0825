"""A board as a page, and the page as a picture."""

from __future__ import annotations

import re
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from tests.conftest import find
from tests.dashboards.preview.data import Ask
from tests.dashboards.preview.draw import DRAW
from tests.dashboards.preview.shapes import label

Json = dict[str, Any]
WIDTH, ROW, GAP, HEAD = 1560, 30, 8, 64


def placed(board: Json) -> Iterator[tuple[Json, int]]:
    """Every row and panel with its line on the page; collapsed rows are unfolded."""
    shift = 0
    for panel in board["panels"]:
        yield panel, panel["gridPos"]["y"] + shift
        inner = panel.get("panels", [])
        for one in inner:
            yield one, one["gridPos"]["y"] + shift
        if inner:
            shift += max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in inner) - panel["gridPos"]["y"] - 1


def svg(board: Json, ask: Ask, times: list[float], note: str) -> tuple[str, int]:
    """Return the drawing of a board and its height."""
    parts, bottom = [], 0.0
    for panel, line in placed(board):
        grid = panel["gridPos"]
        x, y = grid["x"] * (WIDTH + GAP) / 24, HEAD + line * (ROW + GAP)
        w, h = grid["w"] * (WIDTH + GAP) / 24 - GAP, grid["h"] * (ROW + GAP) - GAP
        bottom = max(bottom, y + h)
        if panel["type"] == "row":
            folded = "  (folded in Grafana)" if panel["collapsed"] else ""
            parts.append(label(x + 2, y + 21, f"▾ {panel['title']}{folded}", size=15, fill="#24292e", bold=True))
            continue
        drawn = inside(panel, ask, times, w - 16, h - 36)
        parts.append(
            f'<g transform="translate({x + 4:.1f} {y:.1f})"><rect width="{w:.1f}" height="{h}" rx="3" fill="#ffffff" '
            f'stroke="#d8dee4"/>{label(9, 18, panel["title"], size=12, fill="#24292e", bold=True)}'
            f'<svg x="8" y="28" width="{w - 16:.1f}" height="{h - 36}">{drawn}</svg></g>'
        )
    height = int(bottom + 14)
    head = label(6, 26, board["title"], size=20, fill="#24292e", bold=True) + label(
        6, 48, board["description"], size=13
    )
    head += label(WIDTH, 26, note, size=12, anchor="end", fill="#9a3412", bold=True)
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(times[-1]))
    head += label(WIDTH, 46, f"{(times[-1] - times[0]) / 60:.0f} minutes until {stamp}", size=11, anchor="end")
    return f'<rect width="100%" height="100%" fill="#f4f5f5"/>{head}{"".join(parts)}', height


def inside(panel: Json, ask: Ask, times: list[float], width: float, height: float) -> str:
    """Return the drawing of one panel, without its frame."""
    if panel["datasource"]["type"] == "tempo":
        wrapped = textwrap.wrap(panel["targets"][0]["query"], max(20, int(width / 6.6)))[:5]
        words = "".join(label(10, height / 2 + 18 + i * 15, line, size=11) for i, line in enumerate(wrapped))
        return label(10, height / 2 - 6, "From Tempo, which is not part of this preview:", size=12, bold=True) + words
    return DRAW[panel["type"]](panel, ask, times, width, height)


def picture(board: Json, ask: Ask, times: list[float], out: Path, note: str) -> None:
    """Draw a board into a PNG by Chromium."""
    drawing, height = svg(board, ask, times, note)
    page = (
        "<!doctype html><meta charset=utf-8>"
        "<style>body{margin:0}svg{display:block;font-family:'DejaVu Sans',sans-serif}</style>"
        f"<title>{escape(board['title'])}</title>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 12}" height="{height}">{drawing}</svg>'
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        subprocess.run(
            [
                find("chromium") or "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={folder}/profile", f"--window-size={WIDTH + 12},{height}",
                f"--screenshot={out}", file.as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    with Image.open(out) as image:  # few colours are enough, and keep the repository small
        small = image.convert("RGB").quantize(160, dither=Image.Dither.NONE)
    small.save(out, optimize=True)


def texts(drawing: str) -> list[str]:
    """Every text of a drawing."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", drawing)
