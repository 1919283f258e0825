"""What is published is the contract: all of it, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from llmobs.catalog import METRICS
from llmobs.catalog.gpu import GPU_DOWN_REASONS, GPU_METRICS
from llmobs.catalog.own import GPU_REASONS
from llmobs.gpu import GpuReader, samples
from llmobs.gpu.publish import UNKNOWN_GPU
from llmobs.snapshot import GpuSnapshot, GpuStats, MigInstance
from tests.gpu.conftest import Clock, Proc
from tests.gpu.test_xid import wait_for
from tests.nvml import GIB, FakeNvml, h100, t4, uuid

OWN = {"llmobs_nvml_up", "llmobs_nvml_error", "llmobs_nvml_errors_total", "llmobs_xid_listener_up"}


def published(snapshot: GpuSnapshot, **options: bool) -> dict[tuple[str, tuple[str, ...]], float]:
    found = list(samples(snapshot, reserve_ratio=0.2, **options))
    series = {(name, labels): value for name, labels, value in found}
    assert len(series) == len(found), "a series was published twice"
    return series


def snapshot(*devices: GpuStats, **facts: object) -> GpuSnapshot:
    return GpuSnapshot(**{"taken_at": 1.0, "wall_time": 1.0, "available": True, "devices": devices, **facts})


@pytest.mark.needs("gcc")
def test_every_gpu_metric_of_the_contract_is_published_and_no_other(
    fake: FakeNvml, reader: GpuReader, clock: Clock, proc: Proc
) -> None:
    """An H100 at work, one split by MIG, a T4, one lost, and some Xid errors produce the whole contract."""
    proc.vllm(workers=1)
    mig = h100(1, mig_mode=1, mig_slots=7, gi__2__gpm__2=50, gi__2__gpm__5=40, gi__2__gpm__10=30)
    slot = {"uuid": "MIG-1", "name": "X MIG 3g.40gb", "gi": 2, "memory_total": 40 * GIB, "memory_used": GIB}
    gpus = (h100(0, processes=f"102:{GIB}"), mig, t4(2), h100(3))
    fake.say(*gpus, slots=[(1, 0, slot)])
    wait_for(reader, lambda s: bool(s.xid_listener_up))
    fake.xid(0, 31)
    fake.xid(-1, 31)
    wait_for(reader, lambda s: s.devices[0].xid_errors["31"] == 1 and bool(s.unknown_xid_errors))
    fake.say(*gpus[:3], {**gpus[3], "fail.*": 15}, slots=[(1, 0, slot)])
    clock.tick()
    series = published(reader.read(), watched_only=False)
    assert {name for name, _ in series} == {metric.name for metric in GPU_METRICS} | OWN
    for name, labels in series:
        metric = METRICS[name]
        assert len(labels) == len(metric.labels), name
        for label, value in zip(metric.labels, labels):
            assert value in metric.values.get(label, (value,)), (name, label, value)


@pytest.mark.needs("gcc")
def test_a_lost_gpu_keeps_identity_reason_and_xid_counts_only(fake: FakeNvml, reader: GpuReader) -> None:
    """Nothing that was measured stays behind as if it were current."""
    fake.say(h100())
    wait_for(reader, lambda s: bool(s.xid_listener_up))
    fake.say({**h100(), "fail.*": 15})
    series = published(reader.read())
    assert {name for name, labels in series if uuid(0) in labels} == {
        "nvidia_gpu_up",
        "nvidia_gpu_error",
        "nvidia_gpu_info",
        "nvidia_gpu_xid_errors_total",
        "nvidia_gpu_xid_listener_up",
    }
    assert series["nvidia_gpu_up", (uuid(0),)] == 0
    assert {labels[1] for (name, labels), on in series.items() if name == "nvidia_gpu_error" and on} == {"lost"}


def test_headroom_is_what_is_free_beyond_the_reserve() -> None:
    """The reserve is ratio × total, headroom = free − reserve, and may be negative."""
    series = published(snapshot(GpuStats(uuid="G", index=0, up=True, memory_total_bytes=100.0, memory_free_bytes=15.0)))
    assert series["nvidia_gpu_memory_reserve_bytes", ("G",)] == 20
    assert series["nvidia_gpu_memory_headroom_bytes", ("G",)] == -5


@pytest.mark.parametrize("reason", [*GPU_REASONS, None])
def test_why_there_are_no_gpus_is_one_metric(reason: str | None) -> None:
    """Every reason is a series, and the one that holds is 1."""
    series = published(snapshot(available=reason is None, reason=reason))
    assert series["llmobs_nvml_up", ()] == float(reason is None)
    assert {r: series["llmobs_nvml_error", (r,)] for r in GPU_REASONS} == {r: float(r == reason) for r in GPU_REASONS}


@pytest.mark.parametrize("reason", GPU_DOWN_REASONS)
def test_why_a_gpu_is_down_is_one_metric(reason: str) -> None:
    """The same for one GPU."""
    series = published(snapshot(GpuStats(uuid="G", index=0, up=False, reason=reason)))
    assert series["nvidia_gpu_up", ("G",)] == 0
    assert {r for r in GPU_DOWN_REASONS if series["nvidia_gpu_error", ("G", r)]} == {reason}


def test_an_unknown_fact_is_absent() -> None:
    """A GPU of which nothing is known but that it is there has no value of anything."""
    series = published(snapshot(GpuStats(uuid="G", index=0, up=True)))
    assert {name for name, labels in series if "G" in labels} == {
        "nvidia_gpu_up",
        "nvidia_gpu_error",
        "nvidia_gpu_info",
    }


def test_only_the_gpus_of_vllm_are_published_where_they_are_known() -> None:
    """Two sidecars on one machine would else publish every GPU twice."""
    mine = GpuStats(uuid="A", index=0, up=True, watched=True, watched_proof="procfs")
    other = dataclasses.replace(mine, uuid="B", index=1, watched=False)
    unknown = dataclasses.replace(mine, watched=None, watched_proof="none")

    def gpus(*devices: GpuStats, **options: bool) -> set[str]:
        return {labels[0] for name, labels in published(snapshot(*devices), **options) if name == "nvidia_gpu_up"}

    assert gpus(mine, other) == {"A"}
    assert gpus(mine, other, watched_only=False) == {"A", "B"}
    assert gpus(mine, other, dataclasses.replace(unknown, uuid="unknown-2", up=False)) == {"A", "unknown-2"}
    assert gpus(unknown, dataclasses.replace(unknown, uuid="B")) == {"A", "B"}


def test_info_has_the_identity() -> None:
    """What the device is and how it is known to be vLLM's."""
    gpu = GpuStats(uuid="G", index=3, up=True, name="H100", pci_bus_id="00:18", watched=True, watched_proof="config")
    series = published(snapshot(gpu, driver_version="570.1", cuda_version="12.8"))
    assert series["nvidia_gpu_info", ("G", "3", "H100", "00:18", "570.1", "12.8", "true", "config")] == 1


def test_xid_errors_of_no_known_gpu_are_published() -> None:
    """They have the UUID `unknown`."""
    series = published(snapshot(unknown_xid_errors={"79": 2.0}, unknown_xid_last_seen={"79": 5.0}))
    assert series["nvidia_gpu_xid_errors_total", (UNKNOWN_GPU, "79")] == 2
    assert series["nvidia_gpu_xid_last_seen_timestamp_seconds", (UNKNOWN_GPU, "79")] == 5


def test_a_mig_instance_without_activity_has_memory_only() -> None:
    """What GPM did not give is absent."""
    instance = MigInstance(gpu_instance="2", profile="3g.40gb", memory_used_bytes=1.0)
    series = published(snapshot(GpuStats(uuid="G", index=0, up=True, mig_instances=(instance,))))
    assert {name for name, labels in series if "3g.40gb" in labels} == {"nvidia_gpu_mig_memory_used_bytes"}


def test_disabled_publishes_only_that(reader_for: Callable[..., GpuReader]) -> None:
    """Counts of errors that nobody looks for would be zeros without a measurement."""
    assert {name for name, _ in published(reader_for(enabled=False).read())} == {"llmobs_nvml_up", "llmobs_nvml_error"}
