"""What reading costs the watched server: its own /metrics, and the event loop it occupies, on the real vLLM.

A request in flight is the witness: while vLLM renders a page its event loop does nothing else, and tokens come late.
"""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from pathlib import Path

from benchmarks._tools import cpu_seconds, quantiles
from tests.real.server import VllmServer

READS = 200


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        server = VllmServer(Path(folder) / "vllm.log")
        try:
            server.wait_ready()
            server.complete("warm up", 20)
            print(f"{'request':34} {'median ms':>10} {'p99 ms':>8} {'server CPU ms':>14} {'bytes':>7}")
            for path in ("/health", "/metrics"):
                _row(f"GET {path}, idle", server, path)
            done = threading.Event()
            busy = [threading.Thread(target=_load, args=(server, done)) for _ in range(4)]
            for thread in busy:
                thread.start()
            _row("GET /metrics, 4 requests running", server, "/metrics")
            done.set()
            for thread in busy:
                thread.join()
        finally:
            server.stop()


def _row(what: str, server: VllmServer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    times, size = [], 0
    before = cpu_seconds(server.process.pid)
    for _ in range(READS):
        started = time.perf_counter()
        connection.request("GET", path)
        size = len(connection.getresponse().read())
        times.append((time.perf_counter() - started) * 1e3)
    cpu = (cpu_seconds(server.process.pid) - before) / READS * 1e3
    median, p99 = quantiles(times)
    print(f"{what:34} {median:10.2f} {p99:8.2f} {cpu:14.2f} {size:7}", flush=True)


def _load(server: VllmServer, done: threading.Event) -> None:
    while not done.is_set():
        server.complete("keep busy", 64)


if __name__ == "__main__":
    main()
