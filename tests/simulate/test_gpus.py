"""The simulated GPUs do what the engines make them do."""

from __future__ import annotations

import pytest

from llmobs.gpu.publish import samples
from llmobs.simulate import SimulatedGpus, SimulatedVllm, load
from llmobs.snapshot import GpuStats
from tests.simulate.runs import wall


def readings(name: str, until: int, every: int = 1) -> list[GpuStats]:
    """Return the first GPU at every moment of a scenario."""
    server = SimulatedVllm(load(name), wall=wall)
    gpus = SimulatedGpus(server)
    found = [gpus.read().devices[0]]
    for second in range(every, until + 1, every):
        server.advance(second)
        found.append(gpus.read().devices[0])
    return found


def test_energy_is_the_integral_of_power() -> None:
    """Joules grow by watts × seconds, whatever the load does."""
    found = readings("burst", 120)
    for before, after in zip(found, found[1:]):
        assert after.energy_joules - before.energy_joules == pytest.approx(after.power_watts)


def test_power_follows_load() -> None:
    """A burst takes more power than quiet traffic, and the GPU gets hotter."""
    found = readings("burst", 60)
    assert found[45].power_watts > 1.3 * found[15].power_watts
    assert found[60].temperature_celsius > found[15].temperature_celsius + 5


def test_a_hung_engine_leaves_the_gpu_idle() -> None:
    """Work is there, and the GPU does nothing."""
    last = readings("hang", 60)[-1]
    assert last.utilization == 0
    assert last.power_watts == pytest.approx(60)


def test_memory_follows_the_process() -> None:
    """Full while it runs, nearly full when it dies of it, empty when it is gone, growing while it loads."""
    found = readings("oom-crash", 60)
    total = found[0].memory_total_bytes
    assert 0.7 < found[1].memory_used_bytes / total < 0.9
    assert found[31].memory_used_bytes / total > 0.95
    assert found[34].memory_used_bytes == 0
    assert 0 < found[42].memory_used_bytes < found[47].memory_used_bytes < found[1].memory_used_bytes
    for gpu in found:
        parts = gpu.memory_used_bytes + gpu.memory_free_bytes + gpu.memory_reserved_bytes
        assert parts == pytest.approx(total)


def test_throttling_shows() -> None:
    """A hot GPU says why it is slow, and its clock is lower."""
    before, after = readings("slow-decode", 180, 30)[1], readings("slow-decode", 180, 30)[-1]
    assert (before.clock_event_reasons["hw_thermal"], after.clock_event_reasons["hw_thermal"]) == (0, 1)
    assert after.clocks_hertz["sm"] < 0.6 * before.clocks_hertz["sm"]
    assert after.temperature_celsius > 80


def test_xid_is_counted_and_dated() -> None:
    """An Xid error appears as a count with its time; before, the code stands at 0."""
    found = readings("gpu-fault", 90, 30)
    assert found[1].xid_errors["79"] == 0
    assert found[-1].xid_errors["79"] == 1
    assert found[-1].xid_last_seen == {"79": wall(60)}


def test_one_gpu_per_engine_clearly_simulated() -> None:
    """Four engines have four GPUs with names of their own, all of them said to be simulated."""
    snapshot = SimulatedGpus(SimulatedVllm(load("data-parallel-imbalance"), wall=wall)).read()
    assert len({gpu.uuid for gpu in snapshot.devices}) == 4
    assert all("imulated" in (gpu.name or "") for gpu in snapshot.devices)
    assert snapshot.driver_version == "simulated"


def test_the_contract_can_publish_them() -> None:
    """The GPU part of the contract takes the simulated values as it takes NVML's."""
    server = SimulatedVllm(load("steady-chat"), wall=wall)
    gpus = SimulatedGpus(server)
    gpus.read()
    server.advance(10)
    names = {name for name, _, _ in samples(gpus.read(), reserve_ratio=0.2)}
    assert {"nvidia_gpu_memory_used_bytes", "nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total"} <= names
