"""A thousand cycles leave nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llmobs.gpu import GpuReader, samples
from tests.gpu.conftest import Clock, Proc
from tests.nvml import GIB, FakeNvml, h100

pytestmark = pytest.mark.needs("gcc")

CYCLES = 1000


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_cycles_do_not_grow(
    fake: FakeNvml, reader_for: Callable[..., GpuReader], clock: Clock, proc: Proc
) -> None:
    """Memory, descriptors and threads stay where they were, with GPUs lost and found and MIG changed on the way."""
    proc.vllm(workers=2)
    slot = {"name": "X MIG 3g.40gb", "gi": 2, "memory_total": 40 * GIB, "memory_used": GIB, "uuid": "MIG-a"}
    steady = (h100(0, processes=f"101:{GIB} 102:{GIB}"), h100(1, mig_mode=1, mig_slots=7, gi__2__gpm__2=50))
    lost = {**h100(2), "fail.*": 15}
    reader = reader_for()

    def cycle(number: int) -> None:
        if number % 50 == 0:
            third = lost if number % 100 else h100(2)
            fake.say(*steady, third, slots=[(1, 0, {**slot, "uuid": f"MIG-{number}"})])
        if number % 10 == 0:
            fake.xid(0, 31)
        clock.tick()
        list(samples(reader.read(), reserve_ratio=0.2))

    for number in range(200):
        cycle(number)
    before = _resident(), _open_files(), threading.active_count()
    for number in range(200, 200 + CYCLES):
        cycle(number)
    after = _resident(), _open_files(), threading.active_count()
    assert after[0] - before[0] < 2 * 2**20
    assert after[1:] == before[1:]
