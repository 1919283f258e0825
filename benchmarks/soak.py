"""Soak: the daemon watches a simulated engine that is restarted every minute; memory, descriptors, series.

`SOAK_MINUTES` (default 30) says for how long.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._tools import rss_mib, served
from tests.daemon import Daemon, wait_for

RESTARTS = """\
description: Restarted every minute.
models:
  - traffic: {rate: 4.0}
events:
  - {kind: engine_death, at: 45, every: 60}
exit_seconds: 1
down_seconds: 3
load_seconds: 5
"""


async def simulated(ready: Callable[[str], None], scenario: str) -> None:
    """Serve the scenario for ever."""
    from llmobs.simulate import SimulatedServer

    async with SimulatedServer(scenario) as server:
        ready(server.url)
        await asyncio.Event().wait()


def main() -> None:
    """Print a row a minute, then the verdict's figures."""
    minutes = int(os.environ.get("SOAK_MINUTES", "30"))
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "restarts.yaml"
        scenario.write_text(RESTARTS)
        with (
            served(simulated, str(scenario)) as url,
            Daemon(Path(folder), {"targets": [{"url": url, "name": "soak"}]}, "--no-collector.gpu") as daemon,
        ):
            wait_for("the target", lambda: daemon.value("vllm_up") == 1, 30)
            pid = daemon.process.pid
            print(f"{'minute':>6} {'RSS MiB':>8} {'fds':>5} {'series':>7} {'restarts':>9}", flush=True)
            rows = []
            started = time.monotonic()
            for minute in range(1, minutes + 1):
                time.sleep(max(0.0, minute * 60 - (time.monotonic() - started)))
                fds = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                series = daemon.series()
                restarts = daemon.value("vllm_engine_restarts_total") or 0
                rows.append((rss_mib(pid), fds, len(series), restarts))
                print(f"{minute:6} {rows[-1][0]:8.1f} {fds:5} {len(series):7} {restarts:9.0f}", flush=True)
            warm = rows[min(4, len(rows) - 1)]
            last = rows[-1]
            print(f"RSS from minute {min(5, len(rows))} to {minutes}: {warm[0]:.1f} → {last[0]:.1f} MiB")
            down = max(rows, key=lambda row: row[2])[2]
            print(f"most series {down}; at the end {last[2]}; restarts {last[3]:.0f}")


if __name__ == "__main__":
    main()
