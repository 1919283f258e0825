"""Pages and readings for the tests of the room `engine`."""

from __future__ import annotations

from pathlib import Path

from llmobs.engine.page import PageReader
from llmobs.snapshot import EngineSnapshot, EngineStats

PAGES = Path(__file__).with_name("pages")


def captured(name: str) -> str:
    """Return one of the captured pages."""
    return (PAGES / f"{name}.txt").read_text()


def read(*pages: str, version: str | None = None) -> EngineSnapshot:
    """Read pages of one server one after another; return what the last says."""
    reader = PageReader()
    for page in pages:
        snapshot = reader.read(page, taken_at=1.0, wall_time=2.0, version=version)
    return snapshot


def one(*pages: str, version: str | None = None) -> EngineStats:
    """Return the only engine of the last page."""
    (engine,) = read(*pages, version=version).engines
    return engine
