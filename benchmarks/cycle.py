"""CPU of one cycle on a real vLLM 0.32 page: reading, deriving, rendering; beside a generic parser alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from benchmarks._tools import PAGE, page_server, served
from llmobs.config import DeriveSettings, TargetSettings
from llmobs.derive.publish import samples
from llmobs.derive.target import Limits, advance, begin
from llmobs.engine.page import PageReader
from llmobs.exporter.render import Renderer, exposition
from llmobs.exporter.watch import TargetWatch
from llmobs.snapshot import EngineSnapshot, Evidence, Reading

CYCLES = 300


def main() -> None:
    """Print the table."""
    page = PAGE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    print(f"page: {len(page) / 1000:.1f} kB, {len(lines)} samples\n")
    generic = _cpu_ms(lambda i: list(text_string_to_metric_families(page)), cycles=40)
    print(f"{'generic text parser alone':34} {generic:7.2f} ms   1.00")

    reader = PageReader()
    _row("read the page", generic, _cpu_ms(lambda i: _read(reader, page, i)))
    state = begin(0.0)
    found = []

    def derive(i: int) -> None:
        nonlocal state, found
        snapshot = _read(reader, page, i)
        state = advance(
            state, Reading(taken_at=i + 1, wall_time=i + 1, snapshot=snapshot, health=200), Evidence(), Limits()
        )
        found, _ = samples(state, "target", Limits())

    _row("read and derive", generic, _cpu_ms(derive))
    renderer = Renderer()
    _row("render the samples", generic, _cpu_ms(lambda i: renderer.render(found)))
    rendered = renderer.render(found)
    _row("one scrape (join)", generic, _cpu_ms(lambda i: exposition([rendered], openmetrics=False)))
    with served(page_server, PAGE.read_bytes()) as port:
        _row("whole cycle with HTTP", generic, asyncio.run(_whole(port)))


def _row(name: str, generic: float, cost: float) -> None:
    print(f"{name:34} {cost:7.2f} ms   {cost / generic:.2f}")


def _read(reader: PageReader, page: str, i: int) -> EngineSnapshot:
    return reader.read(page, taken_at=float(i + 1), wall_time=float(i + 1), version="0.32.0")


def _cpu_ms(work: Callable[[int], object], *, cycles: int = CYCLES) -> float:
    for i in range(5):
        work(i)
    started = time.process_time()
    for i in range(5, cycles + 5):
        work(i)
    return (time.process_time() - started) / cycles * 1e3


async def _whole(port: int) -> float:
    target = TargetSettings(url=f"http://127.0.0.1:{port}", name="target", source="metrics")
    watch = TargetWatch(target, DeriveSettings())
    for _ in range(5):
        await watch.cycle()
    started = time.process_time()
    for _ in range(CYCLES):
        await watch.cycle()
    spent = time.process_time() - started
    assert watch.state.up
    await watch.close()
    return spent / CYCLES * 1e3


if __name__ == "__main__":
    main()
