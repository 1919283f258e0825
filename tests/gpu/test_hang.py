"""Calls that do not return are left behind, shown, and forgiven."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from llmobs.gpu import GpuReader
from llmobs.snapshot import GpuSnapshot
from tests.nvml import FakeNvml, h100, uuid

pytestmark = pytest.mark.needs("gcc")

TIMEOUT = 0.4


@pytest.fixture
def reader(reader_for: Callable[..., GpuReader]) -> Iterator[GpuReader]:
    return reader_for(timeout=TIMEOUT)


def timed(reader: GpuReader) -> tuple[GpuSnapshot, float]:
    began = time.monotonic()
    snapshot = reader.read()
    return snapshot, time.monotonic() - began


def until_up(reader: GpuReader) -> GpuSnapshot:
    """Read until everything answers again, at most a few seconds."""
    for _ in range(50):
        snapshot = reader.read()
        if snapshot.available and all(gpu.up for gpu in snapshot.devices):
            return snapshot
        time.sleep(0.05)
    raise AssertionError(snapshot)


def test_one_hung_gpu_costs_only_itself(fake: FakeNvml, reader: GpuReader) -> None:
    """The reading ends in time, that GPU is down as hung with its identity, and the others have their values."""
    gpus = [h100(n) for n in range(4)]
    fake.say(*gpus)
    reader.read()
    fake.say(gpus[0], {**gpus[1], "hang.nvmlDeviceGetUtilizationRates": 1}, *gpus[2:])
    snapshot, seconds = timed(reader)
    assert seconds < TIMEOUT + 0.5
    assert snapshot.available
    assert [(gpu.uuid, gpu.up, gpu.reason) for gpu in snapshot.devices] == [
        (uuid(n), n != 1, "hung" if n == 1 else None) for n in range(4)
    ]
    assert all(gpu.utilization for gpu in snapshot.devices if gpu.up)


def test_while_it_hangs_readings_are_quick_and_no_thread_is_added(fake: FakeNvml, reader: GpuReader) -> None:
    """A stuck GPU is not waited for again, and not called again."""
    fake.say(h100(0), {**h100(1), "hang.nvmlDeviceGetUtilizationRates": 1})
    reader.read()
    threads = threading.active_count()
    calls = fake.calls("nvmlDeviceGetMigMode")
    for n in range(5):
        snapshot, seconds = timed(reader)
        assert seconds < TIMEOUT / 2
        assert snapshot.devices[1].reason == "hung"
        assert fake.calls("nvmlDeviceGetMigMode") == calls + n + 1  # GPU 0 alone
    assert threading.active_count() == threads


def test_it_recovers_when_the_call_returns(fake: FakeNvml, reader: GpuReader) -> None:
    """The next reading after the driver came back has the GPU's values again."""
    fake.say(h100(0), {**h100(1), "hang.nvmlDeviceGetUtilizationRates": 1})
    assert reader.read().devices[1].reason == "hung"
    fake.say(h100(0), h100(1))
    assert until_up(reader).devices[1].power_watts == 610


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_library_that_hangs_is_unavailable(fake: FakeNvml, reader: GpuReader, function: str) -> None:
    """When a call for no single GPU hangs, there are no GPU values, it says why, and it comes back by itself."""
    fake.say(h100(), **{f"hang__{function}": 1})
    snapshot, seconds = timed(reader)
    assert (snapshot.available, snapshot.reason) == (False, "hung")
    assert seconds < TIMEOUT + 0.5
    _, seconds = timed(reader)
    assert seconds < TIMEOUT / 2
    fake.say(h100())
    assert until_up(reader).devices[0].power_watts == 610


def test_all_gpus_hung_is_unavailable(fake: FakeNvml, reader: GpuReader) -> None:
    """A driver in which every GPU's call hangs does not answer; the GPUs stay known."""
    fake.say(h100(0), h100(1))
    reader.read()
    fake.say(h100(0), h100(1), hang__nvmlDeviceGetMigMode=1)
    snapshot = reader.read()
    assert (snapshot.available, snapshot.reason) == (False, "hung")
    assert [(gpu.uuid, gpu.reason) for gpu in snapshot.devices] == [(uuid(0), "hung"), (uuid(1), "hung")]


def test_a_hung_library_keeps_the_gpus_known(fake: FakeNvml, reader: GpuReader) -> None:
    """Their identity comes from before, and they are down as hung."""
    fake.say(h100())
    reader.read()
    fake.say(h100(), hang__nvmlDeviceGetCount_v2=1)
    snapshot = reader.read()
    assert [(gpu.uuid, gpu.up, gpu.reason) for gpu in snapshot.devices] == [(uuid(0), False, "hung")]


def test_other_threads_run_while_a_call_hangs(fake: FakeNvml, reader: GpuReader) -> None:
    """The driver call is made without the interpreter lock, so that the web server answers."""
    fake.say(h100(), hang__nvmlDeviceGetMigMode=1)
    reading = threading.Thread(target=reader.read)
    reading.start()
    ticks = 0
    while reading.is_alive():
        time.sleep(0.005)
        ticks += 1
    assert ticks > 20


def test_a_hung_listener_is_not_up(fake: FakeNvml, reader: GpuReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for events that does not come back means that Xid errors would be missed."""
    monkeypatch.setattr("llmobs.gpu.xid._OVERDUE", 0.2)
    fake.say(h100())
    reader.read()
    for _ in range(50):
        if reader.read().xid_listener_up:
            break
        time.sleep(0.02)
    fake.say(h100(), hang__nvmlEventSetWait_v2=1)
    time.sleep(0.4)
    snapshot = reader.read()
    assert (snapshot.xid_listener_up, snapshot.devices[0].xid_listening, snapshot.available) == (False, False, True)


def test_close_does_not_wait_for_a_hung_call(fake: FakeNvml, reader: GpuReader) -> None:
    """Ending the sidecar takes less than two seconds, and NVML is not shut down under the call."""
    fake.say(h100(0), {**h100(1), "hang.nvmlDeviceGetUtilizationRates": 1})
    reader.read()
    began = time.monotonic()
    reader.close()
    assert time.monotonic() - began < 2
    assert fake.calls("nvmlShutdown") == 0


def test_a_process_that_blocks_its_readers_costs_attribution_only(
    fake: FakeNvml, reader: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading /proc of a process in trouble can hang too; the GPUs are shown, without owners."""
    release = threading.Event()
    monkeypatch.setattr("llmobs.gpu.procfs.Procfs.process", lambda self, pid: release.wait(5) and None)
    fake.say(h100(processes="100:1000"))
    try:
        snapshot, seconds = timed(reader)
    finally:
        release.set()
    assert seconds < 2 * TIMEOUT
    assert (snapshot.devices[0].up, snapshot.devices[0].processes) == (True, ())
