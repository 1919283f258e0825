"""What one GPU says, in base units, and what is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmobs.catalog.gpu import CLOCK_EVENT_REASONS
from llmobs.gpu import GpuReader
from llmobs.gpu.nvml import clean
from llmobs.snapshot import GpuStats
from tests.nvml import GIB, FakeNvml, h100, t4

pytestmark = pytest.mark.needs("gcc")


def first(reader: GpuReader) -> GpuStats:
    return reader.read().devices[0]


def test_memory_adds_up_with_the_reserved_part_apart(fake: FakeNvml, reader: GpuReader) -> None:
    """Version 2 of the memory call: total = used + free + reserved."""
    fake.say(h100())
    gpu = first(reader)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (80 * GIB, 70 * GIB)
    assert (gpu.memory_free_bytes, gpu.memory_reserved_bytes) == (9 * GIB, GIB)


def test_values_are_in_base_units(fake: FakeNvml, reader: GpuReader) -> None:
    """Milliwatts, millijoules, MHz, percent and KiB arrive as watts, joules, hertz, ratios and bytes."""
    fake.say(h100(fan_percent=40))
    gpu = first(reader)
    assert gpu.power_limit_watts == 700
    assert gpu.energy_joules == 5000
    assert gpu.clocks_hertz == {"graphics": 1.755e9, "sm": 1.755e9, "memory": 2.619e9}
    assert gpu.utilization == pytest.approx(0.97)
    assert gpu.fan_ratio == pytest.approx(0.4)
    assert gpu.nvlink_bytes == {"tx": 2000 * 1024, "rx": 1000 * 1024}
    assert gpu.pcie_bytes == {"tx": 9e9, "rx": 7e9}
    assert (gpu.temperature_celsius, gpu.memory_temperature_celsius) == (61, 72)


@pytest.mark.parametrize(
    ("changes", "watts"),
    [
        ({}, 610),
        ({"field__185": None}, 640),
        ({"field__185": None, "field__186": None}, 600),
        ({"field__185": "!999", "field__186": "!3"}, 600),
    ],
)
def test_power_prefers_the_unambiguous_fields(
    fake: FakeNvml, reader: GpuReader, changes: dict[str, object], watts: float
) -> None:
    """Average power (field 185), else the instant one (186), else the call whose meaning depends on the GPU."""
    fake.say(h100(**changes))
    assert first(reader).power_watts == watts


def test_pcie_comes_from_counters_and_never_from_the_20_ms_call(
    fake: FakeNvml, reader: GpuReader, clock: Callable[[], float]
) -> None:
    """The call nvmlDeviceGetPcieThroughput keeps the driver busy for 20 ms each time, and is not called."""
    fake.say(h100())
    for _ in range(3):
        reader.read()
    assert fake.calls("nvmlDeviceGetFieldValues") >= 3
    assert fake.calls("nvmlDeviceGetPcieThroughput") == 0


def test_thresholds_come_from_the_call_where_it_works(fake: FakeNvml, reader: GpuReader) -> None:
    """The thresholds of Ampere and older are absolute."""
    fake.say(h100())
    assert first(reader).temperature_thresholds == {"shutdown": 92, "slowdown": 89, "memory_max": 105, "gpu_max": 87}


def test_thresholds_are_computed_from_margins_on_newer_gpus(fake: FakeNvml, reader: GpuReader) -> None:
    """A threshold is temperature + margin − offset: 61 + 26 − (−8) = 95 °C for a shutdown offset of −8."""
    gone = {f"threshold__{n}": None for n in range(4)}
    fake.say(h100(**gone, margin=26, field__193="5:-8", field__194="1:-2", field__196="5:0"))
    assert first(reader).temperature_thresholds == {"shutdown": 95, "slowdown": 89, "gpu_max": 87}


def test_every_clock_event_reason_is_there_as_0_or_1(fake: FakeNvml, reader: GpuReader) -> None:
    """Bit 4 is a software power cap, bit 0x40 hardware thermal slowdown."""
    fake.say(h100(clock_reasons=0x44))
    reasons = first(reader).clock_event_reasons
    assert tuple(reasons) == CLOCK_EVENT_REASONS
    assert {name for name, on in reasons.items() if on} == {"sw_power_cap", "hw_thermal"}


def test_health_is_read(fake: FakeNvml, reader: GpuReader) -> None:
    """ECC since load and for life, remapped rows and their state, and what the driver asks for."""
    fake.say(h100(rows="3 4 1 0", field__230="1:2"))
    gpu = first(reader)
    assert gpu.ecc_errors == {"corrected": 12, "uncorrected": 0}
    assert gpu.ecc_errors_lifetime == {"corrected": 40, "uncorrected": 1}
    assert gpu.remapped_rows == {"corrected": 3, "uncorrected": 4}
    assert (gpu.row_remap_pending, gpu.row_remap_failed, gpu.recovery_action) == (True, False, 2)


def test_pages_wait_for_retirement_before_ampere(fake: FakeNvml, reader: GpuReader) -> None:
    """A T4 has no row remapping but retires pages."""
    fake.say(t4())
    gpu = first(reader)
    assert (gpu.retired_pages_pending, gpu.row_remap_pending, gpu.remapped_rows) == (True, None, {})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"field__202__4294967295": "3:500", "field__204__4294967295": "3:300"}, {"tx": 500, "rx": 300}),
        (
            {"field__91": "1:2", "field__138__0": "3:1", "field__138__1": "3:2", "field__139__0": "3:4"},
            {"tx": 3 * 1024, "rx": 4 * 1024},
        ),
        ({}, {}),
    ],
    ids=["NVLink 5", "link by link", "none"],
)
def test_nvlink_falls_back(
    fake: FakeNvml, reader: GpuReader, changes: dict[str, object], expected: dict[str, float]
) -> None:
    """Without the KiB sums: NVLink 5's byte fields, else the links one by one, else nothing."""
    fake.say(h100(field__138__4294967295=None, field__139__4294967295=None, **changes))
    assert first(reader).nvlink_bytes == expected


def test_a_missing_field_is_absent_and_named(fake: FakeNvml, reader: GpuReader) -> None:
    """What a device does not have is None, with the reason, never 0."""
    fake.say(t4(energy_mj=None))
    gpu = first(reader)
    assert gpu.energy_joules is None
    assert gpu.unsupported["energy_joules"] == "unsupported"
    assert "gpm" in gpu.unsupported
    assert "power_watts" not in gpu.unsupported  # field 185 is missing, but there is a fallback


@pytest.mark.parametrize(
    ("key", "raw", "fact"),
    [
        ("memory_total", 2**64 - 1, "memory_total_bytes"),
        ("memory_total", 0, "memory_total_bytes"),
        ("memory_used", 2**64 - 1, "memory_used_bytes"),
        ("energy_mj", 2**64 - 1, "energy_joules"),
        ("energy_mj", 9223372036854775794, "energy_joules"),
        ("power_limit_mw", 2**32 - 1, "power_limit_watts"),
        ("utilization", 2**32 - 1, "utilization"),
        ("temperature.0", -273, "temperature_celsius"),
        ("field.82", "1:0", "memory_temperature_celsius"),
        ("field.82", "0:nan", "memory_temperature_celsius"),
        ("field.230", "4:-1", "recovery_action"),
        ("pstate", 32, "performance_state"),
        ("pcie_gen", 2**32 - 1, "pcie_generation"),
    ],
)
def test_sentinels_are_no_values(fake: FakeNvml, reader: GpuReader, key: str, raw: object, fact: str) -> None:
    """NVML says "not available" with the largest numbers, NaN or impossible ones; none of them is published."""
    fake.say({**h100(), key: raw})
    assert getattr(first(reader), fact) is None


@given(st.floats() | st.integers(-(2**64), 2**64))
def test_what_is_cleaned_is_finite_and_in_range(value: float) -> None:
    """Whatever the driver says, a cleaned value lies between 0 and 9e18 and is no 32-bit sentinel."""
    cleaned = clean(value)
    assert cleaned is None or (0 <= cleaned <= 9e18 and cleaned != 2**32 - 1)
