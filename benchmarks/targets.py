"""CPU and memory of one daemon that watches 200 targets every 5 seconds."""

from __future__ import annotations

import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks._tools import PAGE, cpu_seconds, page_server, rss_mib, served
from tests.daemon import Daemon, wait_for

TARGETS = 200
SECONDS = 60


def main() -> None:
    """Print the table."""
    with served(page_server, PAGE.read_bytes()) as port, tempfile.TemporaryDirectory() as folder:
        targets = [
            {"url": f"http://127.0.0.1:{port}", "name": f"target-{i:03}", "interval_seconds": 5, "source": "metrics"}
            for i in range(TARGETS)
        ]
        with Daemon(Path(folder), {"targets": targets}, "--no-collector.gpu") as daemon:
            pid = daemon.process.pid

            def up() -> bool:
                return daemon.get("/metrics")[1].count(b"\nvllm_up{") == TARGETS

            wait_for("all targets", up, 60)
            time.sleep(15)  # every target has a window
            before, started = cpu_seconds(pid), time.monotonic()
            scrapes = []
            while time.monotonic() - started < SECONDS:
                asked = time.perf_counter()
                size = len(urllib.request.urlopen(daemon.url + "/metrics", timeout=10).read())
                scrapes.append(time.perf_counter() - asked)
                time.sleep(15 - (time.monotonic() - started) % 15)
            elapsed = time.monotonic() - started
            share = (cpu_seconds(pid) - before) / elapsed
            print(f"{TARGETS} targets every 5 s for {elapsed:.0f} s, scraped every 15 s ({size / 1e6:.1f} MB a scrape)")
            print(f"CPU {share:.1%} of one core, {share / (TARGETS / 5) * 1e3:.2f} ms a cycle")
            print(f"RSS {rss_mib(pid):.1f} MiB; slowest scrape {max(scrapes) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
