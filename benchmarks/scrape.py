"""Latency of /metrics and memory of the daemon: one target, eight GPUs, and two targets that hang."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

from benchmarks._tools import PAGE, page_server, quantiles, rss_mib, served
from tests.daemon import Daemon, wait_for
from tests.nvml import build, h100, scenario

SCRAPES = 500


def main() -> None:
    """Print the table."""
    print(f"{'what':44} {'median ms':>10} {'p99 ms':>8} {'RSS MiB':>8} {'bytes':>8}")
    with served(page_server, PAGE.read_bytes()) as port, tempfile.TemporaryDirectory() as folder:
        good = {"url": f"http://127.0.0.1:{port}", "name": "good"}
        library = build(Path(folder))
        gpus = Path(folder) / "gpus"
        gpus.write_text(scenario(*[h100(n) for n in range(8)]))
        os.environ |= {"LD_LIBRARY_PATH": str(library.parent), "NVML_SHIM": str(gpus)}
        _measure("1 target, 8 GPUs", folder, [good])
        with _silent() as first, _silent() as second:
            hanging = [{"url": f"http://127.0.0.1:{p}", "name": f"hangs-{p}"} for p in (first, second)]
            _measure("1 target and 2 that hang, 8 GPUs", folder, [good, *hanging])


def _measure(what: str, folder: str, targets: list[dict[str, object]]) -> None:
    with Daemon(Path(folder), {"targets": targets}) as daemon:
        wait_for("the target", lambda: daemon.value("vllm_up", target="good") == 1)
        wait_for("8 GPUs", lambda: sum(name == "nvidia_gpu_up" for name, _ in daemon.series()) == 8)
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
        times = []
        size = 0
        for _ in range(SCRAPES):
            started = time.perf_counter()
            connection.request("GET", "/metrics")
            size = len(connection.getresponse().read())
            times.append((time.perf_counter() - started) * 1e3)
            time.sleep(0.02)  # spread over ten seconds, so that cycles of every kind fall in between
        median, p99 = quantiles(times)
        print(f"{what:44} {median:10.2f} {p99:8.2f} {rss_mib(daemon.process.pid):8.1f} {size:8}", flush=True)


class _silent:  # noqa: N801 (used like a function)
    """A server that accepts and never answers."""

    def __enter__(self) -> int:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        port: int = self._sock.getsockname()[1]
        return port

    def __exit__(self, *details: object) -> None:
        self._sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._kept.append(self._sock.accept()[0])


if __name__ == "__main__":
    main()
