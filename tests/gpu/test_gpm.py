"""Activity between two samples: GPM."""

from __future__ import annotations

import pytest

from llmobs.gpu import GpuReader
from llmobs.gpu.calls import RETRY_REFUSED
from tests.gpu.conftest import Clock
from tests.nvml import FakeNvml, h100

pytestmark = pytest.mark.needs("gcc")


def activity(reader: GpuReader) -> tuple[float | None, ...]:
    gpu = reader.read().devices[0]
    return gpu.sm_active, gpu.sm_occupancy, gpu.tensor_active, gpu.dram_active


ABSENT = (None, None, None, None)
BUSY = (0.88, 0.40, 0.61, 0.72)


def test_the_first_reading_has_none_and_the_second_has_means(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """Two samples are needed; they are allocated once and take turns."""
    fake.say(h100())
    assert activity(reader) == ABSENT
    for _ in range(5):
        clock.tick()
        assert activity(reader) == BUSY
    assert fake.calls("nvmlGpmSampleAlloc") == 2
    assert fake.calls("nvmlGpmSampleGet") == 6


@pytest.mark.parametrize(("seconds", "expected"), [(0.5, ABSENT), (1.0, BUSY), (600.0, BUSY), (601.0, ABSENT)])
def test_samples_too_close_or_too_far_apart_are_not_compared(
    fake: FakeNvml, reader: GpuReader, clock: Clock, seconds: float, expected: tuple[float | None, ...]
) -> None:
    """Means are trusted over 1 s to 10 min; the reading after a bad one is good again."""
    fake.say(h100())
    reader.read()
    clock.tick(seconds)
    assert activity(reader) == expected
    clock.tick()
    assert activity(reader) == BUSY


def test_nan_costs_its_own_metric(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """The driver answers NaN for a metric that it could not compute, or none at all."""
    fake.say(h100(gpm__5="nan", gpm__3=None, gpm__10=250))
    reader.read()
    clock.tick()
    assert activity(reader) == (0.88, None, None, None)


def test_zero_activity_on_a_busy_gpu_is_suspect(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """GPM stuck at 0 (seen after Xid 31) is withheld and said, and sampling starts over."""
    fake.say(h100(gpm__2=0, gpm__3=0, gpm__5=0, gpm__10=0, utilization=100))
    reader.read()
    clock.tick()
    gpu = reader.read().devices[0]
    assert (gpu.sm_active, gpu.unsupported["gpm"]) == (None, "suspect")
    fake.say(h100())
    clock.tick()
    assert activity(reader) == ABSENT
    clock.tick()
    assert activity(reader) == BUSY


def test_an_idle_gpu_may_be_at_zero(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """0 is a measurement where the utilisation agrees."""
    fake.say(h100(gpm__2=0, utilization=0))
    reader.read()
    clock.tick()
    assert reader.read().devices[0].sm_active == 0


def test_permission_lost_on_the_way_is_said_and_tried_hourly(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """Sampling may be forbidden after a while; the rest of the GPU goes on."""
    fake.say(h100())
    reader.read()
    fake.say({**h100(), "fail.nvmlGpmSampleGet": 4})
    clock.tick()
    gpu = reader.read().devices[0]
    assert (gpu.sm_active, gpu.unsupported["gpm"], gpu.power_watts) == (None, "no_permission", 610)
    fake.say(h100())
    clock.tick(RETRY_REFUSED)
    assert activity(reader) == ABSENT
    clock.tick()
    assert activity(reader) == BUSY


def test_samples_start_over_after_a_lost_gpu(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """What happened before a reset is not compared with what happens after it."""
    fake.say(h100())
    reader.read()
    fake.say({**h100(), "fail.*": 15})
    clock.tick()
    reader.read()
    fake.say(h100())
    clock.tick(30)
    assert activity(reader) == ABSENT
    clock.tick()
    assert activity(reader) == BUSY
