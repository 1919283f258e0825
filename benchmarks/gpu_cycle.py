"""What one reading of the GPUs costs llmobs: CPU, calls, and memory, on the driver library of the tests.

The library answers at once, so that the figures are llmobs' and pynvml's own share; a real driver adds its time.
Run with: python -m benchmarks gpu_cycle
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import pynvml

from llmobs.gpu import GpuReader, samples
from tests.nvml import FakeNvml, build, h100

CYCLES = 200
INTERVAL = 5.0


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml(build(Path(folder)))
        pynvml.nvmlLib = fake.lib
        print(f"{'GPUs':>5} {'CPU ms':>8} {'median ms':>10} {'p99 ms':>8} {'calls':>6} {'series':>7} {'RSS MiB':>8}")
        for gpus in (1, 2, 4, 8, 16):
            row = _measure(fake, gpus)
            print("{:>5} {:>8.2f} {:>10.2f} {:>8.2f} {:>6.0f} {:>7} {:>8.1f}".format(gpus, *row))


def _measure(fake: FakeNvml, gpus: int) -> tuple[float, float, float, float, int, float]:
    """Return CPU, median and p99 time per cycle in ms, driver calls per cycle, series, and resident MiB."""
    fake.say(*[h100(n) for n in range(gpus)])
    now = [0.0]
    reader = GpuReader(monotonic=lambda: now[0])
    for _ in range(10):
        now[0] += INTERVAL
        snapshot = reader.read()
    assert snapshot.available
    waits = fake.calls("nvmlEventSetWait_v2")
    calls, cpu, walls = fake.calls(), time.process_time(), []
    for _ in range(CYCLES):
        now[0] += INTERVAL
        began = time.perf_counter()
        snapshot = reader.read()
        series = list(samples(snapshot, reserve_ratio=0.2))
        walls.append((time.perf_counter() - began) * 1e3)
    cpu = (time.process_time() - cpu) * 1e3 / CYCLES
    # The listener's waits are the shim's polling, not calls of a cycle.
    made = (fake.calls() - calls - fake.calls("nvmlEventSetWait_v2") + waits) / CYCLES
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    reader.close()
    return cpu, statistics.median(walls), sorted(walls)[int(0.99 * CYCLES)], made, len(series), resident


if __name__ == "__main__":
    main()
