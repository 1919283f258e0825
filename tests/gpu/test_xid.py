"""Xid errors: counted by code, none lost, none made up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from llmobs.catalog.gpu import XID_CODES
from llmobs.gpu import GpuReader
from llmobs.gpu.device import RETRY_GONE
from llmobs.snapshot import GpuSnapshot
from tests.gpu.conftest import Clock
from tests.nvml import FakeNvml, h100

pytestmark = pytest.mark.needs("gcc")


def wait_for(reader: GpuReader, condition: Callable[[GpuSnapshot], bool]) -> GpuSnapshot:
    """Read until the listener's thread has done what is waited for."""
    for _ in range(200):
        snapshot = reader.read()
        if condition(snapshot):
            return snapshot
        time.sleep(0.01)
    raise AssertionError(snapshot)


@pytest.fixture
def listening(fake: FakeNvml, reader: GpuReader) -> GpuReader:
    """A reader whose listener is up on two GPUs."""
    fake.say(h100(0), h100(1))
    wait_for(reader, lambda snapshot: bool(snapshot.xid_listener_up))
    return reader


def test_codes_worth_an_alert_are_there_at_0(listening: GpuReader) -> None:
    """increase() misses a series that begins at 1."""
    for gpu in listening.read().devices:
        assert gpu.xid_errors == dict.fromkeys(XID_CODES, 0.0)
        assert (gpu.xid_last_seen, gpu.xid_listening) == ({}, True)


def test_errors_are_counted_by_gpu_and_code(fake: FakeNvml, listening: GpuReader) -> None:
    """The same code twice counts twice; the time of the last one is kept; a code outside the list appears."""
    for code in (79, 79, 48, 777):
        fake.xid(1, code)
    snapshot = wait_for(listening, lambda s: sum(s.devices[1].xid_errors.values()) == 4)
    counts = snapshot.devices[1].xid_errors
    assert (counts["79"], counts["48"], counts["777"], counts["31"]) == (2, 1, 1, 0)
    assert snapshot.devices[1].xid_last_seen == dict.fromkeys(("79", "48", "777"), 1_700_000_000.0)
    assert sum(snapshot.devices[0].xid_errors.values()) == 0


def test_a_burst_is_counted_to_the_last(fake: FakeNvml, listening: GpuReader) -> None:
    """A dying GPU reports hundreds within a second."""
    for _ in range(1000):
        fake.xid(0, 31)
    assert wait_for(listening, lambda s: s.devices[0].xid_errors["31"] == 1000)


def test_an_unknown_xid_has_code_999(fake: FakeNvml, listening: GpuReader) -> None:
    """The driver reports a code that it cannot tell as 999."""
    fake.xid(0, 999)
    assert wait_for(listening, lambda s: s.devices[0].xid_errors.get("999") == 1)


def test_an_event_of_no_known_gpu_is_not_dropped(fake: FakeNvml, listening: GpuReader) -> None:
    """It counts under the GPU that is unknown."""
    fake.xid(-1, 79)
    snapshot = wait_for(listening, lambda s: bool(s.unknown_xid_errors))
    assert (snapshot.unknown_xid_errors, snapshot.unknown_xid_last_seen) == ({"79": 1}, {"79": 1_700_000_000.0})


def test_what_happened_before_the_start_is_not_made_up(fake: FakeNvml, reader_for: Callable[..., GpuReader]) -> None:
    """NVML has no history: counts begin at 0 with the listener."""
    fake.say(h100())
    first = reader_for()
    wait_for(first, lambda s: bool(s.xid_listener_up))
    fake.xid(0, 79)
    wait_for(first, lambda s: s.devices[0].xid_errors["79"] == 1)
    first.close()
    second = reader_for()
    assert wait_for(second, lambda s: bool(s.xid_listener_up)).devices[0].xid_errors["79"] == 0


def test_a_gpu_that_cannot_be_listened_to_is_left_out_alone(fake: FakeNvml, reader: GpuReader) -> None:
    """Its codes are not published as 0, which would claim that they were looked for."""
    fake.say(h100(0), {**h100(1), "fail.nvmlDeviceRegisterEvents": 3}, h100(2, event_types=0x1))
    snapshot = wait_for(reader, lambda s: bool(s.xid_listener_up))
    assert [gpu.xid_listening for gpu in snapshot.devices] == [True, False, False]
    assert [bool(gpu.xid_errors) for gpu in snapshot.devices] == [True, False, False]


def test_no_gpu_to_listen_to_is_a_listener_down(fake: FakeNvml, reader: GpuReader) -> None:
    """Where no GPU has Xid events the listener is down, and says so."""
    fake.say(h100(event_types=0))
    reader.read()
    time.sleep(0.05)
    snapshot = reader.read()
    assert (snapshot.xid_listener_up, snapshot.available) == (False, True)


def test_a_failed_wait_is_counted_and_listening_starts_over(
    fake: FakeNvml, listening: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts go on after it, and the event set is given back."""
    fake.xid(0, 79)
    wait_for(listening, lambda s: s.devices[0].xid_errors["79"] == 1)
    fake.say(h100(0), h100(1), fail__nvmlEventSetWait_v2=17)
    snapshot = wait_for(listening, lambda s: not s.xid_listener_up)
    assert snapshot.nvml_errors["operating_system"] >= 1
    assert snapshot.devices[0].xid_errors["79"] == 1
    fake.say(h100(0), h100(1))
    wait_for(listening, lambda s: bool(s.xid_listener_up))
    fake.xid(0, 79)
    assert wait_for(listening, lambda s: s.devices[0].xid_errors["79"] == 2)
    assert fake.calls("nvmlEventSetFree") == fake.calls("nvmlEventSetCreate") - 1


def test_a_lost_gpu_keeps_its_count_and_is_listened_to_again_when_back(
    fake: FakeNvml, listening: GpuReader, clock: Clock
) -> None:
    """Xid 79 is what says that a GPU fell off the bus: it must not disappear with it."""
    fake.xid(1, 79)
    wait_for(listening, lambda s: s.devices[1].xid_errors["79"] == 1)
    fake.say(h100(0), {**h100(1), "fail.*": 15})
    lost = listening.read().devices[1]
    assert (lost.up, lost.xid_errors["79"]) == (False, 1)
    sets = fake.calls("nvmlEventSetCreate")
    fake.say(h100(0), h100(1))
    clock.tick(RETRY_GONE)
    wait_for(listening, lambda s: fake.calls("nvmlEventSetCreate") == sets + 1 and bool(s.xid_listener_up))
    fake.xid(1, 79)
    assert wait_for(listening, lambda s: s.devices[1].xid_errors["79"] == 2)


def test_counts_survive_a_restart_of_nvml(fake: FakeNvml, listening: GpuReader, clock: Clock) -> None:
    """The driver going away and coming back does not set them to 0."""
    fake.xid(0, 62)
    wait_for(listening, lambda s: s.devices[0].xid_errors["62"] == 1)
    fake.say(h100(0), h100(1), fail__nvmlDeviceGetCount_v2=9)
    assert not listening.read().available
    fake.say(h100(0), h100(1))
    clock.tick(30)
    assert wait_for(listening, lambda s: bool(s.xid_listener_up)).devices[0].xid_errors["62"] == 1
