"""MIG: one record per GPU instance, also while it is being reconfigured."""

from __future__ import annotations

import time

import pytest

from llmobs.gpu import GpuReader
from llmobs.snapshot import GpuStats
from tests.gpu.conftest import Clock, Proc
from tests.nvml import GIB, FakeNvml, h100

pytestmark = pytest.mark.needs("gcc")

PARENT = h100(mig_mode=1, mig_slots=7, utilization=None, rows=None, gi__2__gpm__2=33, gi__2__gpm__5=10)


def slot(instance: int, compute: int = 0, profile: str = "3g.40gb", **changes: object) -> dict[str, object]:
    return {
        "uuid": f"MIG-{instance}-{compute}",
        "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
        "gi": instance,
        "ci": compute,
        "memory_total": 40 * GIB,
        "memory_used": 30 * GIB,
        **changes,
    }


def gpu(reader: GpuReader) -> GpuStats:
    return reader.read().devices[0]


def test_instances_have_memory_and_activity_of_their_own(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """Memory from the MIG device, activity from GPM for the instance, absent where it gives none."""
    fake.say(PARENT, slots=[(0, 0, slot(2)), (0, 3, slot(5, profile="1g.10gb", memory_used=GIB))])
    reader.read()
    clock.tick()
    first, second = gpu(reader).mig_instances
    assert (first.gpu_instance, first.profile) == ("2", "3g.40gb")
    assert (first.memory_total_bytes, first.memory_used_bytes) == (40 * GIB, 30 * GIB)
    assert (first.sm_active, first.tensor_active, first.dram_active) == (0.33, 0.10, None)
    assert (second.gpu_instance, second.memory_used_bytes, second.sm_active) == ("5", GIB, None)


def test_compute_instances_of_one_gpu_instance_count_once(fake: FakeNvml, reader: GpuReader) -> None:
    """Memory belongs to the GPU instance, so that two compute instances in it make one record."""
    slots = [(0, 0, slot(2, 0, "1c.3g.40gb")), (0, 1, slot(2, 1, "1c.3g.40gb"))]
    fake.say(PARENT, slots=slots)
    assert [(i.gpu_instance, i.profile) for i in gpu(reader).mig_instances] == [("2", "3g.40gb")]


def test_memory_forbidden_on_the_parent_is_read_from_the_instance(fake: FakeNvml, reader: GpuReader) -> None:
    """Inside a MIG container the whole GPU's memory is not ours to see."""
    fake.say(
        {**PARENT, "fail.nvmlDeviceGetMemoryInfo": 4, "fail.nvmlDeviceGetMemoryInfo_v2": 4}, slots=[(0, 0, slot(2))]
    )
    found = gpu(reader)
    assert (found.up, found.memory_used_bytes, found.unsupported["memory"]) == (True, None, "no_permission")
    assert found.mig_instances[0].memory_used_bytes == 30 * GIB


def test_mig_off_has_no_instances(fake: FakeNvml, reader: GpuReader) -> None:
    """A GPU with MIG switched off, and one that does not know MIG, have none."""
    fake.say(h100(0), h100(1, mig_mode=None))
    assert [found.mig_instances for found in reader.read().devices] == [(), ()]


def test_reconfigured_in_mid_run(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """Switched on, split differently, switched off: each cycle shows what is there, and samples start over."""
    fake.say(h100())
    assert gpu(reader).mig_instances == ()
    fake.say(PARENT, slots=[(0, 0, slot(2))])
    clock.tick()
    assert [i.sm_active for i in gpu(reader).mig_instances] == [None]
    clock.tick()
    assert [i.sm_active for i in gpu(reader).mig_instances] == [0.33]
    fake.say(PARENT, slots=[(0, 0, slot(2, uuid="MIG-new", profile="4g.40gb")), (0, 1, slot(9))])
    clock.tick()
    first, second = gpu(reader).mig_instances
    assert (first.gpu_instance, first.sm_active, second.gpu_instance) == ("2", None, "9")
    assert fake.calls("nvmlGpmSampleAlloc") - fake.calls("nvmlGpmSampleFree") == 2 + 4  # the GPU's and two instances'
    fake.say(h100())
    clock.tick()
    found = gpu(reader)
    assert (found.mig_instances, found.up) == ((), True)


def test_an_announced_change_starts_the_samples_over(fake: FakeNvml, reader: GpuReader, clock: Clock) -> None:
    """The driver's event is enough, also where the instances look the same afterwards."""
    fake.say(PARENT, slots=[(0, 0, slot(2))])
    while not reader.read().xid_listener_up:
        time.sleep(0.01)
    clock.tick()
    assert gpu(reader).mig_instances[0].sm_active == 0.33
    fake.mig_changed(0)
    for _ in range(100):
        clock.tick()
        if gpu(reader).mig_instances[0].sm_active is None:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the event had no effect")
    clock.tick()
    assert gpu(reader).mig_instances[0].sm_active == 0.33


@pytest.mark.parametrize("code", [2, 3, 4, 6, 999])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlGpmMigSampleGet",
        "nvmlDeviceGetUUID",
    ],
)
def test_whatever_fails_under_mig_the_gpu_stays(
    fake: FakeNvml, reader: GpuReader, clock: Clock, function: str, code: int
) -> None:
    """Handles die at any moment of a reconfiguration; the rest of the GPU is read on."""
    fake.say(PARENT, slots=[(0, 0, slot(2))])
    reader.read()
    broken = slot(2) if function == "nvmlGpmMigSampleGet" else {**slot(2), f"fail.{function}": code}
    parent = PARENT if function == "nvmlDeviceGetUUID" else {**PARENT, f"fail.{function}": code}
    fake.say(parent, slots=[(0, 0, broken)])
    for _ in range(2):
        clock.tick()
        found = gpu(reader)
        assert (found.up, found.power_watts) == (True, 610)


def test_processes_are_listed_on_the_instances(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """The process of two compute instances' GPU instance is counted once per instance it runs in."""
    proc.vllm(workers=1)
    fake.say(
        PARENT,
        slots=[
            (0, 0, slot(2, processes=f"102:{5 * GIB}:2:0")),
            (0, 1, slot(3, processes=f"102:{7 * GIB}:3:0")),
        ],
    )
    assert [(p.role, p.memory_bytes) for p in gpu(reader).processes] == [("worker", 12 * GIB)]


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_failure_during_a_reconfiguration_is_over_with_it(
    fake: FakeNvml, reader: GpuReader, clock: Clock, function: str
) -> None:
    """What failed while handles were dying is not held against the new instances."""
    key = f"fail.{function}"
    fake.say({**PARENT, **({key: 3} if "Handle" in function else {})}, slots=[(0, 0, {**slot(2), key: 3})])
    assert gpu(reader).mig_instances == ()
    fake.say(PARENT, slots=[(0, 0, slot(2))])
    clock.tick()
    assert [i.gpu_instance for i in gpu(reader).mig_instances] == ["2"]
