"""No library, no driver, lost GPUs, refused fields: each costs what it must, and nothing else."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import types
from collections.abc import Callable

import pynvml
import pytest
import structlog

from llmobs.gpu import GpuReader
from llmobs.gpu.calls import RETRY_REFUSED, RETRY_UNKNOWN
from llmobs.gpu.device import RETRY_GONE
from tests.gpu.conftest import Clock
from tests.nvml import FakeNvml, h100, uuid

pytestmark = pytest.mark.needs("gcc")

LOST, RESET_REQUIRED, NO_PERMISSION, UNKNOWN = 15, 16, 4, 999


def test_importing_loads_neither_pynvml_nor_a_driver() -> None:
    """The daemon imports this room on machines without a GPU too."""
    code = "import sys, llmobs.gpu; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"


def test_no_library_is_a_reason_and_is_tried_again_after_five_minutes(
    monkeypatch: pytest.MonkeyPatch, reader: GpuReader, clock: Clock, shims: Callable[[], object]
) -> None:
    """Without libnvidia-ml.so.1 the sidecar runs on, says so, and notices when the driver is installed."""

    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", missing)
    snapshot = reader.read()
    assert (snapshot.available, snapshot.reason, snapshot.devices) == (False, "no_library", ())
    assert "libnvidia-ml.so.1" in snapshot.detail
    fake = FakeNvml(shims())
    fake.say(h100())
    monkeypatch.setattr(pynvml, "CDLL", lambda name: fake.lib)
    clock.tick(299)
    assert reader.read().reason == "no_library"
    clock.tick(2)
    assert reader.read().available


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (9, "no_driver", "not loaded"),
        (18, "version_mismatch", "restart the container"),
        (4, "no_permission", "/dev/nvidiactl"),
        (999, "error", "restart the container"),
        (12, "no_library", "NVIDIA_VISIBLE_DEVICES"),
        (17, "error", "17"),
    ],
)
def test_a_refused_start_says_why_and_what_to_do(
    fake: FakeNvml, reader: GpuReader, code: int, reason: str, words: str
) -> None:
    """Each error of nvmlInit becomes one reason of the closed set and a sentence with the cure."""
    fake.say(h100(), fail__nvmlInitWithFlags=code)
    snapshot = reader.read()
    assert (snapshot.available, snapshot.reason) == (False, reason)
    assert words in snapshot.detail


def test_a_machine_without_gpus_says_so_and_notices_one(fake: FakeNvml, reader: GpuReader) -> None:
    """A driver that counts 0 devices is no error of the driver."""
    fake.say()
    assert reader.read().reason == "no_devices"
    fake.say(h100())
    assert reader.read().available


def test_the_abandoned_module_is_recognised(monkeypatch: pytest.MonkeyPatch, reader: GpuReader) -> None:
    """The distribution pynvml before 12 has another module under the same name: which one is there is said."""
    old = types.ModuleType("pynvml")
    old.__file__, old.__version__ = "/site-packages/pynvml/__init__.py", "11.5.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", old)
    snapshot = reader.read()
    assert snapshot.reason == "no_library"
    assert "/site-packages/pynvml/__init__.py (11.5.0)" in snapshot.detail
    assert "nvidia-ml-py" in snapshot.detail


def test_disabled_touches_nothing(fake: FakeNvml, reader_for: Callable[..., GpuReader]) -> None:
    """An operator who switched GPUs off gets no call to the driver."""
    fake.say(h100())
    snapshot = reader_for(enabled=False).read()
    assert (snapshot.available, snapshot.reason, fake.calls()) == (False, "disabled", 0)


@pytest.mark.parametrize(("code", "reason"), [(LOST, "lost"), (RESET_REQUIRED, "reset_required")])
def test_one_of_eight_lost_and_back(fake: FakeNvml, reader: GpuReader, clock: Clock, code: int, reason: str) -> None:
    """A lost GPU keeps its identity and loses its values, the other seven lose nothing, and it may come back."""
    gpus = [h100(n) for n in range(8)]
    fake.say(*gpus)
    reader.read()
    fake.say(*gpus[:3], {**gpus[3], "fail.*": code}, *gpus[4:])
    snapshot = reader.read()
    assert [gpu.up for gpu in snapshot.devices] == [n != 3 for n in range(8)]
    lost = snapshot.devices[3]
    assert (lost.uuid, lost.reason, lost.name, lost.pci_bus_id) == (uuid(3), reason, gpus[3]["name"], gpus[3]["pci"])
    assert lost.power_watts is None
    assert all(gpu.power_watts == 610 for gpu in snapshot.devices if gpu.up)
    assert snapshot.available
    fake.say(*gpus)
    assert not reader.read().devices[3].up  # it is tried again after a while only
    clock.tick(RETRY_GONE)
    assert reader.read().devices[3].up


def test_a_lost_gpu_is_asked_once_per_half_minute(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """Calls to a dead GPU can be slow, and are not made in every cycle."""
    fake.say({**h100()})
    reader.read()
    fake.say({**h100(), "fail.*": LOST})
    reader.read()
    before = fake.calls("nvmlDeviceGetMigMode")
    for _ in range(5):
        clock.tick(5)
        reader.read()
    assert fake.calls("nvmlDeviceGetMigMode") == before


def test_a_gpu_lost_before_the_start_is_shown(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """It cannot be named, but it is not left out silently."""
    fake.say(h100(0), {**h100(1), "fail.*": LOST})
    snapshot = reader.read()
    assert [(gpu.uuid, gpu.up, gpu.reason) for gpu in snapshot.devices] == [
        (uuid(0), True, None),
        ("unknown-1", False, "lost"),
    ]
    fake.say(h100(0), h100(1))
    clock.tick(RETRY_GONE)
    assert [gpu.uuid for gpu in reader.read().devices] == [uuid(0), uuid(1)]


def test_a_gpu_that_disappears_from_the_list_is_lost(fake: FakeNvml, reader: GpuReader) -> None:
    """A driver that was restarted without the GPU that fell off the bus counts one less."""
    fake.say(h100(0), h100(1))
    reader.read()
    fake.say(h100(0))
    assert [(gpu.uuid, gpu.reason) for gpu in reader.read().devices] == [(uuid(0), None), (uuid(1), "lost")]


def test_no_permission_costs_one_field_of_one_gpu(fake: FakeNvml, reader: GpuReader) -> None:
    """The rest of that GPU and the same field of the others are read, and it is logged once."""
    fake.say({**h100(0), "fail.nvmlDeviceGetMemoryInfo_v2": NO_PERMISSION, "fail.nvmlDeviceGetMemoryInfo": 4}, h100(1))
    with structlog.testing.capture_logs() as logs:
        refused, other = reader.read().devices
        again = reader.read().devices[0]
    assert (refused.up, refused.memory_total_bytes, refused.power_watts) == (True, None, 610)
    assert refused.unsupported["memory"] == again.unsupported["memory"] == "no_permission"
    assert other.memory_total_bytes is not None
    assert len([line for line in logs if line.get("field") == "memory"]) == 1


def test_unsupported_calls_are_made_once_an_hour(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """What a GPU refuses is remembered, so that a steady cycle asks only what is answered."""
    fake.say(h100(energy_mj=None))
    for _ in range(4):
        assert reader.read().devices[0].energy_joules is None
        clock.tick()
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 1
    fake.say(h100())
    clock.tick(RETRY_REFUSED)
    assert reader.read().devices[0].energy_joules == 5000


def test_unknown_error_from_one_call_is_a_missing_field(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """WSL2 answers 999 for what it does not support; it is asked again after a minute, then two, up to an hour."""
    fake.say({**h100(), "fail.nvmlDeviceGetEnforcedPowerLimit": UNKNOWN})
    asked = []
    for _ in range(60):
        gpu = reader.read().devices[0]
        assert (gpu.up, gpu.power_limit_watts, gpu.unsupported["power_limit_watts"]) == (True, None, "unknown")
        asked.append(fake.calls("nvmlDeviceGetEnforcedPowerLimit"))
        clock.tick(RETRY_UNKNOWN / 2)
    assert asked[-1] == 5  # at 0, 1, 3, 7 and 15 minutes


def test_memory_falls_back_to_version_1_on_wsl2(fake: FakeNvml, reader: GpuReader) -> None:
    """Version 2 of the memory call fails there with Unknown Error where version 1 works."""
    fake.say({**h100(), "fail.nvmlDeviceGetMemoryInfo_v2": UNKNOWN})
    gpu = reader.read().devices[0]
    assert (gpu.memory_total_bytes, gpu.memory_reserved_bytes) == (80 << 30, None)
    assert gpu.memory_used_bytes == 71 << 30


def test_a_device_without_a_readable_field_is_not_healthy(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """A Jetson names its GPU and refuses everything else: it is down as unreadable, and asked again later."""
    said = h100()
    fake.say({key: said[key] for key in ("uuid", "name")})
    gpu = reader.read().devices[0]
    assert (gpu.up, gpu.reason, gpu.name) == (False, "unreadable", said["name"])
    fake.say(said)
    clock.tick(RETRY_GONE)
    assert reader.read().devices[0].up


def test_an_old_driver_gives_what_it_can(load: Callable[[str], FakeNvml], reader: GpuReader) -> None:
    """Functions that a driver before 525 lacks are replaced by their predecessors, or their facts are absent."""
    load("old").say(h100())
    gpu = reader.read().devices[0]
    assert (gpu.temperature_celsius, gpu.memory_total_bytes, gpu.memory_reserved_bytes) == (61, 80 << 30, None)
    assert gpu.clock_event_reasons["sw_power_cap"] == 1
    assert (gpu.sm_active, gpu.unsupported["gpm"]) == (None, "unsupported")


def test_a_driver_that_refuses_the_whole_field_list_is_asked_one_by_one(
    fake: FakeNvml, reader: GpuReader, clock: Clock
) -> None:
    """One unknown field id must not cost the known ones, and the next cycle asks for those alone, in one call."""
    fake.say(h100(fields_all_or_nothing=1, field__230=None, field__138=1, field__139=1))
    gpu = reader.read().devices[0]
    assert (gpu.memory_temperature_celsius, gpu.pcie_bytes["tx"], gpu.recovery_action) == (72, 9e9, None)
    before = fake.calls("nvmlDeviceGetFieldValues")
    clock.tick()
    assert reader.read().devices[0].memory_temperature_celsius == 72
    assert fake.calls("nvmlDeviceGetFieldValues") == before + 1


def test_errors_are_counted_by_kind(fake: FakeNvml, reader: GpuReader) -> None:
    """A failing call loses its own series, shows in the error count, and is tried again in the next cycle."""
    fake.say({**h100(), "fail.nvmlDeviceGetUtilizationRates": 11})
    for _ in range(3):
        snapshot = reader.read()
    assert snapshot.devices[0].utilization is None
    assert snapshot.devices[0].unsupported["utilization"] == "error"
    assert snapshot.nvml_errors == {"irq_issue": 3}


def test_the_driver_goes_away_and_comes_back(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """NVML is shut down and started again with growing pauses; the GPUs stay known meanwhile, without values."""
    fake.say(h100())
    assert reader.read().available
    fake.say(h100(), fail__nvmlDeviceGetCount_v2=9, fail__nvmlInitWithFlags=9)
    snapshot = reader.read()
    assert (snapshot.available, snapshot.reason) == (False, "no_driver")
    assert [(gpu.uuid, gpu.up, gpu.reason, gpu.power_watts) for gpu in snapshot.devices] == [
        (uuid(0), False, "error", None)
    ]
    tries = []
    for _ in range(120):
        reader.read()
        tries.append(fake.calls("nvmlInitWithFlags"))
        clock.tick(1)
    assert tries[-1] - tries[0] == 7  # after 1, 2, 4, 8, 16, 30, 30 seconds
    fake.say(h100())
    clock.tick(30)
    snapshot = reader.read()
    assert snapshot.available
    assert snapshot.devices[0].power_watts == 610
    assert fake.lib.shim_initialized() == 1


def test_a_device_call_that_says_uninitialized_takes_nvml_down(fake: FakeNvml, reader: GpuReader) -> None:
    """The code is about the library, whoever reports it."""
    fake.say(h100(0), {**h100(1), "fail.nvmlDeviceGetUtilizationRates": 1})
    snapshot = reader.read()
    assert (snapshot.available, snapshot.reason) == (False, "no_driver")
    assert [gpu.up for gpu in snapshot.devices] == [False, False]


def test_close_gives_nvml_back(fake: FakeNvml, reader: GpuReader) -> None:
    """The driver module can be unloaded after the sidecar has ended, and samples are freed before the shutdown."""
    fake.say(h100())
    reader.read()
    assert fake.lib.shim_initialized() == 1
    reader.close()
    assert fake.lib.shim_initialized() == 0
    assert fake.calls("nvmlGpmSampleFree") == fake.calls("nvmlGpmSampleAlloc") == 2
    assert fake.calls("nvmlEventSetFree") == fake.calls("nvmlEventSetCreate") == 1
