"""Tokens per second of one real vLLM whose hooks are switched off and on, so that nothing else differs.

Two servers that are the same differ by up to 5 % for as long as they live (where their memory happens to lie), which is
more than what is to be measured; `instrument_pairs`, which compares servers, needs hours for that reason. Here one
server has all of it, and the processes are told by a signal what to do (`_switch/sitecustomize.py`):

    off        no hook of llmobs does anything; what is left are the calls into the wrappers around vLLM's functions
    observed   logs, `/stats` read every second, one request in ten traced
    traced     the same with every request traced
    vllm       as off, with vLLM's own tracing (`--otlp-traces-endpoint`)

Each figure is divided by the mean of `off` before and after it. Run it alone on the machine; LAUNCHES=4, ROUNDS=30,
REQUESTS=96, STREAM=1 in the environment change it:

    python -m benchmarks instrument_switch
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks._completions import measure, receiver, spread
from tests.instrument.conftest import Instrumented, wait_for

ARMS = ("observed", "traced", "vllm")
#: Until what follows from the end of the last requests is done.
_PAUSE = 0.2


class _Switched:
    """A server, and the modes of its processes."""

    def __init__(self, folder: Path, made: Instrumented) -> None:
        self._file = folder / "switch"
        self._made = made
        self._pids = [pid for pid in _tree(made.server.process.pid) if _takes_signal(pid)]

    def switch(self, mode: str) -> None:
        """Switch all processes to this mode."""
        time.sleep(_PAUSE)
        self._file.write_text(mode)
        for pid in self._pids:
            os.kill(pid, signal.SIGUSR2)
        assert wait_for(lambda: all(self._mode(pid) == mode for pid in self._pids)), "a process did not switch"

    def measure(self, mode: str) -> tuple[float, float]:
        """Return tokens per second and milliseconds of the API server's CPU a request in this mode."""
        self.switch(mode)
        server = self._made.server
        stream = os.environ.get("STREAM") == "1"
        requests = int(os.environ.get("REQUESTS", "96"))
        return measure(server.port, server.process.pid, requests, stream=stream, poll=mode in ("observed", "traced"))

    def _mode(self, pid: int) -> str:
        file = Path(f"{self._file}.{pid}")
        return file.read_text() if file.exists() else ""


def _tree(pid: int) -> list[int]:
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (thread / "children").read_text().split():
                found += _tree(int(child))
    return found


def _takes_signal(pid: int) -> bool:
    """Whether the process has our handler; Python's helpers (the resource tracker) would die of the signal."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return bool(int(status["SigCgt"], 16) >> (signal.SIGUSR2 - 1) & 1)


class _Figures:
    """What was measured so far, over all launches."""

    def __init__(self) -> None:
        self.off: list[tuple[float, float]] = []
        self.ratios: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.costs: dict[str, list[float]] = {arm: [] for arm in ARMS}

    def round(self, server: _Switched) -> None:
        """Measure each arm once, in random order, with `off` in between."""
        order = random.sample(ARMS, len(ARMS))
        before = server.measure("off")
        for arm in order:
            speed, cost = server.measure(arm)
            after = server.measure("off")
            self.ratios[arm].append(speed / statistics.fmean((before[0], after[0])))
            self.costs[arm].append(cost - statistics.fmean((before[1], after[1])))
            self.off.append(after)
            before = after

    def show(self) -> None:
        """Print the medians of the ratios with their quartiles."""
        speed, cost = (statistics.median(column) for column in zip(*self.off))
        print(f"off        {speed:.0f} tokens/s; API server CPU {cost:.2f} ms a request")
        for arm in ARMS:
            print(f"{arm:9}  {spread(self.ratios[arm])} of off; CPU {statistics.median(self.costs[arm]) * 1e3:+.0f} µs")
        against = [ours / theirs for ours, theirs in zip(self.ratios["traced"], self.ratios["vllm"])]
        print(f"traced is {spread(against)} of vllm", flush=True)


def main() -> None:
    """Run the launches; print the figures so far after each."""
    figures = _Figures()
    for _ in range(int(os.environ.get("LAUNCHES", "4"))):
        _launch(figures)
        figures.show()


def _launch(figures: _Figures) -> None:
    with tempfile.TemporaryDirectory() as name, receiver(over_grpc=True) as collector:
        folder = Path(name)
        made = Instrumented(
            folder / "server",
            *("--otlp-traces-endpoint", collector),
            launcher=(),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector,
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc",
            OTEL_EXPORTER_OTLP_TRACES_INSECURE="true",
            BENCH_SWITCH=str(folder / "switch"),
            PYTHONPATH=str(Path(__file__).with_name("_switch")),
        )
        try:
            made.server.wait_ready()
            server = _Switched(folder, made)
            for mode in (*ARMS, "off"):
                server.measure(mode)  # warm
            for _ in range(int(os.environ.get("ROUNDS", "30"))):
                figures.round(server)
            server.switch("traced")
            document = made.stats()
            print(f"{sum(document['hook_errors'].values()):.0f} hook errors, dropped {document['dropped']}")
        finally:
            made.server.stop()


if __name__ == "__main__":
    main()
