"""Counters: wraps are undone, resets are handed through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmobs.gpu import GpuReader
from llmobs.gpu.counters import Unwrapped
from tests.gpu.conftest import Clock
from tests.nvml import FakeNvml, h100

WRAP = 2**32


def test_a_32_bit_counter_that_wraps_goes_on() -> None:
    """From the upper half of the range to the lower one is a wrap, time after time."""
    counter = Unwrapped()
    assert [counter(raw) for raw in (4e9, 1e9, 3e9, 1e8)] == [4e9, WRAP + 1e9, WRAP + 3e9, 2 * WRAP + 1e8]


def test_a_fall_that_is_no_wrap_is_a_reset() -> None:
    """A counter that never came near its end starts again: what it says is handed through."""
    counter = Unwrapped()
    assert [counter(raw) for raw in (1e9, 100.0, 200.0)] == [1e9, 100.0, 200.0]


def test_a_counter_seen_above_32_bits_never_wraps() -> None:
    """Once a larger value was seen, any fall is a reset."""
    counter = Unwrapped()
    assert [counter(raw) for raw in (5e9, 4e9, 10.0)] == [5e9, 4e9, 10.0]


@given(st.lists(st.integers(0, WRAP // 2 - 1), max_size=50))
def test_unwrapping_gives_back_the_true_counter(steps: list[int]) -> None:
    """Whatever is added between two readings (below half the range), the unwrapped counter is the sum."""
    counter, total = Unwrapped(), 0
    for step in steps:
        total += step
        assert counter(float(total % WRAP)) == total


@pytest.mark.needs("gcc")
def test_pcie_wrap_and_driver_reload_on_the_driver(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """PCIe counters of a driver that keeps 32 bits go on over a wrap, energy and ECC fall with a reload."""
    readings = []
    for sent, energy in (("4000000000", 5_000_000), ("100", 6_000_000), ("200", 1_000)):
        fake.say(h100(field__197=f"3:{sent}", field__198="3:1", energy_mj=energy))
        gpu = reader.read().devices[0]
        readings.append((gpu.pcie_bytes["tx"], gpu.energy_joules))
        clock.tick()
    assert readings == [(4e9, 5000), (WRAP + 100, 6000), (WRAP + 200, 1)]
