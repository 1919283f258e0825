"""Whose memory it is: attributed on proof only, absent otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmobs.gpu import GpuReader
from llmobs.gpu.visibility import Gpu, from_environment
from llmobs.snapshot import GpuStats
from tests.gpu.conftest import INIT_NAMESPACE, Clock, Proc
from tests.nvml import GIB, FakeNvml, h100, uuid

pytestmark = pytest.mark.needs("gcc")

USED = 70  # GiB of the shim's H100


def gpu(reader: GpuReader, n: int = 0) -> GpuStats:
    return reader.read().devices[n]


def memory(stats: GpuStats) -> dict[str, float]:
    return {process.role: process.memory_bytes / GIB for process in stats.processes}


def lists(**gib: float) -> str:
    return " ".join(f"{pid.removeprefix('p')}:{int(amount * GIB)}" for pid, amount in gib.items())


def test_engine_and_workers_are_told_apart_by_title(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """The titles of vLLM 0.32 say which process is which, and the rest of the memory has no owner."""
    proc.vllm(workers=2)
    fake.say(h100(processes=lists(p101=1, p102=40, p103=20)))
    stats = gpu(reader)
    assert memory(stats) == {"engine": 1, "worker": 60}
    assert {process.proof for process in stats.processes} == {"procfs"}
    assert stats.memory_unaccounted_bytes == (USED - 61) * GIB
    assert (stats.watched, stats.watched_proof) == (True, "procfs")


def test_without_titles_the_depth_below_the_server_tells(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """EngineCore is a child of the server, workers are its children; open devices are the proof then."""
    proc.add(100, "python3", "-m", "vllm.entrypoints.openai.api_server", holds=("/dev/nvidiactl",))
    proc.add(101, "python3", "-c", "spawn_main()", parent=100, holds=("/dev/nvidia0",))
    proc.add(102, "python3", "-c", "spawn_main()", parent=101, holds=("/dev/nvidia0", "/dev/nvidia-uvm"))
    fake.say(h100(processes=lists(p100=1, p101=2, p102=30)))
    assert memory(gpu(reader)) == {"engine": 3, "worker": 30}


def test_a_mapped_device_is_proof_too(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """A process may have closed the file and kept the mapping."""
    proc.add(100, "vllm", "serve", "m")
    (proc.root / "100" / "maps").write_text("7f00-7f01 rw-s 00000000 00:06 123    /dev/nvidia0\n")
    fake.say(h100(processes=lists(p100=5)))
    assert memory(gpu(reader)) == {"engine": 5}


def test_other_programs_are_foreign(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """A notebook on vLLM's GPU has a role of its own."""
    proc.vllm(workers=1)
    proc.add(900, "jupyter", holds=("/dev/nvidia0",))
    fake.say(h100(processes=lists(p102=50, p900=10)))
    stats = gpu(reader)
    assert memory(stats) == {"worker": 50, "foreign": 10}
    assert stats.memory_unaccounted_bytes == 10 * GIB


def test_a_pid_that_is_not_here_is_absent_not_zero(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """A host pid seen from a container belongs to nobody we know, and then nothing is unaccounted for either."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=50, p41234=10)))
    stats = gpu(reader)
    assert memory(stats) == {"worker": 50}
    assert stats.memory_unaccounted_bytes is None


def test_a_process_that_merely_has_the_number_is_not_taken(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """Without an open device or vLLM's title a pid proves nothing: it may be a host pid (pid 1 is always there)."""
    proc.add(1, "/sbin/init", parent=0)
    fake.say(h100(processes=lists(p1=50)))
    stats = gpu(reader)
    assert (stats.processes, stats.memory_unaccounted_bytes, stats.watched) == ((), None, None)


def test_a_reused_pid_is_another_process(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """A process that started after NVML was asked cannot be the one NVML meant."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=50)))
    assert memory(gpu(reader)) == {"worker": 50}
    proc.remove(102)
    proc.add(102, "VLLM::Worker_TP0", parent=101, started=501.0)  # the readers' clock says 500
    stats = gpu(reader)
    assert (stats.processes, stats.memory_unaccounted_bytes) == ((), None)


def test_a_reused_pid_is_looked_at_anew(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """What was known of a pid does not survive another start time."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=50)))
    reader.read()
    proc.remove(102)
    proc.add(102, "sh", started=400.0)
    assert gpu(reader).processes == ()


def test_memory_that_the_driver_does_not_tell_is_absent(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """One None makes the sum of its role, and what is unaccounted, unknown."""
    proc.vllm(workers=2)
    fake.say(h100(processes=f"101:{GIB} 102:-1 103:{GIB}"))
    stats = gpu(reader)
    assert memory(stats) == {"engine": 1}
    assert stats.memory_unaccounted_bytes is None


def test_an_empty_list_in_a_namespace_of_its_own_proves_nothing(fake: FakeNvml, reader: GpuReader) -> None:
    """The driver leaves out processes that the sidecar cannot see: all memory would look like a leak."""
    fake.say(h100())
    assert gpu(reader).memory_unaccounted_bytes is None


def test_an_empty_list_on_the_host_is_the_leak(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """In the host's pid namespace nobody is out of sight."""
    proc.namespace(INIT_NAMESPACE)
    fake.say(h100())
    assert gpu(reader).memory_unaccounted_bytes == USED * GIB


def test_memory_left_by_a_dead_engine_shows_where_it_was_seen_before(
    fake: FakeNvml, reader: GpuReader, proc: Proc
) -> None:
    """Once vLLM's processes were visible here, an empty list means that nobody owns the memory."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=60)))
    reader.read()
    for pid in (100, 101, 102):
        proc.remove(pid)
    fake.say(h100())
    stats = gpu(reader)
    assert stats.memory_unaccounted_bytes == USED * GIB
    assert (stats.watched, stats.watched_proof) == (True, "procfs")  # where it was last proven


def test_unaccounted_needs_the_reserved_part_told_apart(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """Version 1 of the memory call counts the driver's reserve as used: it is not a leak."""
    proc.vllm(workers=1)
    fake.say({**h100(processes=lists(p102=60)), "fail.nvmlDeviceGetMemoryInfo_v2": 3})
    assert gpu(reader).memory_unaccounted_bytes is None


def test_a_process_in_two_lists_counts_once(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """Compute and graphics list the same process with the same memory."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=60), graphics_processes=lists(p102=60), mps_processes=lists(p102=60)))
    assert memory(gpu(reader)) == {"worker": 60}


def test_a_list_that_is_refused_makes_no_sum(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """Without permission for one of the lists some owners are hidden; without the main one there are none."""
    proc.vllm(workers=1)
    said = h100(processes=lists(p102=60))
    fake.say({**said, "fail.nvmlDeviceGetMPSComputeRunningProcesses_v3": 4})
    stats = gpu(reader)
    assert (memory(stats), stats.memory_unaccounted_bytes) == ({"worker": 60}, None)
    fake.say({**said, "fail.nvmlDeviceGetComputeRunningProcesses_v3": 4})
    stats = gpu(reader)
    assert (stats.processes, stats.unsupported["processes"]) == ((), "no_permission")


def test_the_list_that_grows_while_it_is_read_is_read_again(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """InsufficientSize is tried twice more before it is an error of that cycle."""
    fake.say({**h100(), "fail.nvmlDeviceGetComputeRunningProcesses_v3": 7})
    snapshot = reader.read()
    # pynvml takes the error of the sizing call as "now make room": two calls for each of three tries.
    assert fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 6
    assert snapshot.devices[0].up
    assert snapshot.nvml_errors == {"insufficient_size": 1}


def test_drivers_with_the_shifted_list_give_no_processes(
    load: Callable[[str], FakeNvml], reader: GpuReader, proc: Proc
) -> None:
    """Drivers 535.43 to 535.98 lay the list out otherwise than pynvml reads it: every second pid would be wrong."""
    proc.vllm(workers=2)
    load("535").say(h100(processes=lists(p102=40, p103=20)))
    stats = gpu(reader)
    assert (stats.processes, stats.memory_unaccounted_bytes) == ((), None)
    assert stats.unsupported["processes"] == "unsupported"


def test_two_vllms_without_a_hint_are_nobodys(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """Which of them is watched is not known: neither is attributed, and neither is foreign."""
    proc.vllm(workers=1, base=100)
    proc.vllm(workers=1, base=200)
    fake.say(h100(processes=lists(p102=30, p202=30)))
    stats = gpu(reader)
    assert (stats.processes, stats.watched) == ((), None)
    assert stats.memory_unaccounted_bytes is None


@pytest.mark.parametrize("family", ["tcp", "tcp6"])
def test_of_two_vllms_the_one_on_the_watched_port_is_ours(
    fake: FakeNvml, reader_for: Callable[..., GpuReader], proc: Proc, family: str
) -> None:
    """The process that holds the listening socket of the target's port is the watched server."""
    proc.vllm(workers=1, base=100)
    proc.add(200, "vllm", "serve", "m", holds=("/dev/nvidiactl", "socket:[777]"))
    proc.add(202, "VLLM::Worker", parent=200)
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:1F90 00000000:0000 {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0\n"
    (proc.root / "self" / "net" / family).write_text(head + row.format("01", 555) + row.format("0A", 777))
    fake.say(h100(processes=lists(p102=30, p202=20)))
    assert memory(gpu(reader_for(ports=(8080,)))) == {"worker": 20, "foreign": 30}


def test_sockets_are_searched_once_a_minute_or_when_a_vllm_comes_or_goes(
    fake: FakeNvml,
    reader_for: Callable[..., GpuReader],
    proc: Proc,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy host has tens of thousands of sockets to go through."""
    searches: list[float] = []

    def listening(self: object, ports: frozenset[int]) -> set[str]:
        searches.append(clock.now)
        return {"socket:[777]"}

    monkeypatch.setattr("llmobs.gpu.procfs.Procfs.listening", listening)
    proc.add(200, "vllm", "serve", "m", holds=("/dev/nvidiactl", "socket:[777]"))
    fake.say(h100(processes=lists(p200=20)))
    reader = reader_for(ports=(8080,))
    for _ in range(13):
        assert memory(gpu(reader)) == {"engine": 20}
        clock.tick()
    assert searches == [1000, 1060]
    proc.vllm(workers=1, base=300)
    fake.say(h100(processes=lists(p200=20, p302=1)))
    assert memory(gpu(reader)) == {"engine": 20, "foreign": 1}
    assert searches == [1000, 1060, 1065]


def test_a_vllm_is_not_ours_while_nothing_listens_on_the_watched_port(
    fake: FakeNvml, reader_for: Callable[..., GpuReader], proc: Proc
) -> None:
    """The watched server may be down, and the vLLM that is here another one."""
    proc.vllm(workers=1)
    fake.say(h100(processes=lists(p102=30)))
    stats = gpu(reader_for(ports=(8080,)))
    assert (stats.processes, stats.watched) == ((), None)


def test_a_listening_socket_of_another_user_leaves_one_vllm_ours(
    fake: FakeNvml, reader_for: Callable[..., GpuReader], proc: Proc
) -> None:
    """Open files of another user cannot be seen; with a single vLLM there is no doubt all the same."""
    proc.vllm(workers=1)
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 777 1 0\n"
    (proc.root / "self" / "net" / "tcp").write_text(head + row)
    fake.say(h100(processes=lists(p102=30)))
    assert memory(gpu(reader_for(ports=(8080,)))) == {"worker": 30}


def test_configured_pids_are_ours_and_say_so(fake: FakeNvml, reader_for: Callable[..., GpuReader], proc: Proc) -> None:
    """Processes below a configured pid are the watched vLLM, whatever else is there; the proof says config."""
    proc.vllm(workers=1, base=100)
    proc.vllm(workers=1, base=200)
    fake.say(h100(processes=lists(p102=30, p202=20)))
    stats = gpu(reader_for(pids=(200,)))
    assert {(p.role, p.proof, p.memory_bytes / GIB) for p in stats.processes} == {
        ("worker", "config", 20),
        ("foreign", "procfs", 30),
    }


def test_gpus_from_configuration_win(fake: FakeNvml, reader_for: Callable[..., GpuReader], proc: Proc) -> None:
    """What the operator wrote is what is watched."""
    proc.vllm(workers=1)
    fake.say(h100(0, processes=lists(p102=30)), h100(1))
    devices = reader_for(watched_uuids=(uuid(1),)).read().devices
    assert [(g.watched, g.watched_proof) for g in devices] == [(False, "config"), (True, "config")]


def test_vllm_moving_to_another_gpu_is_followed(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """New proof replaces the old one."""
    proc.vllm(workers=1)
    fake.say(h100(0, processes=lists(p102=30)), h100(1))
    assert [g.watched for g in reader.read().devices] == [True, False]
    fake.say(h100(0), h100(1, processes=lists(p102=30)))
    assert [g.watched for g in reader.read().devices] == [False, True]


def test_vllm_that_no_gpu_lists_is_found_by_its_environment(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """CUDA_VISIBLE_DEVICES with UUIDs names the GPUs where the process list does not."""
    proc.vllm(CUDA_VISIBLE_DEVICES=uuid(1))
    proc.add(900, "jupyter", holds=("/dev/nvidia0",))
    fake.say(h100(0, processes=lists(p900=1)), h100(1))
    assert [(g.watched, g.watched_proof) for g in reader.read().devices] == [(False, "procfs"), (True, "procfs")]


def test_vllm_that_no_gpu_lists_is_found_by_its_open_devices(fake: FakeNvml, reader: GpuReader, proc: Proc) -> None:
    """/dev/nvidiaN is the GPU with minor number N, which need not be its index."""
    proc.add(100, "vllm", "serve", "m", holds=("/dev/nvidiactl", "/dev/nvidia7"))
    fake.say(h100(0, minor=3), h100(1, minor=7))
    assert [g.watched for g in reader.read().devices] == [False, True]


def test_all_of_proc_is_searched_once_a_minute(
    fake: FakeNvml, reader: GpuReader, proc: Proc, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with thousands of processes that search must not be made in every cycle."""
    searches: list[float] = []
    monkeypatch.setattr("llmobs.gpu.procfs.Procfs.vllm", lambda self: searches.append(clock.now) or [])
    fake.say(h100())
    for _ in range(13):
        reader.read()
        clock.tick()
    assert searches == [1000, 1060]


TWO = (Gpu(uuid="GPU-aaa", index=0, name="A", minor=0), Gpu(uuid="GPU-bbb", index=1, name="A", minor=1))
MIXED = (TWO[0], Gpu(uuid="GPU-bbb", index=1, name="B", minor=1, mig_uuids=frozenset({"MIG-123"})))


@pytest.mark.parametrize(
    ("environment", "own", "gpus", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbb"}, {}, TWO, {"GPU-bbb"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, {}, TWO, {"GPU-bbb"}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-123"}, {}, MIXED, {"GPU-bbb"}),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-aaa, GPU-bbb"}, {}, TWO, {"GPU-aaa", "GPU-bbb"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaa", "NVIDIA_VISIBLE_DEVICES": "GPU-bbb"}, {}, TWO, {"GPU-aaa"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, TWO, {"GPU-bbb"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, MIXED, None),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {}, MIXED, {"GPU-bbb"}),
        ({"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_VISIBLE_DEVICES": "2,3"}, {}, TWO, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"NVIDIA_VISIBLE_DEVICES": "GPU-aaa"}, TWO, None),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, {}, TWO, None),
        ({}, {}, TWO, None),
    ],
)
def test_which_gpus_the_environment_names(
    environment: dict[str, str], own: dict[str, str], gpus: tuple[Gpu, ...], expected: set[str] | None
) -> None:
    """UUIDs always count; numbers only where they must mean the same for vLLM and for us."""
    assert from_environment(environment, gpus, own) == expected


def test_a_real_process_is_proven_by_the_real_proc(fake: FakeNvml, reader_for: Callable[..., GpuReader]) -> None:
    """The real /proc: a live process with vLLM's title is found, with its real start time on the boot clock."""
    import subprocess
    import time
    from pathlib import Path

    child = subprocess.Popen(["bash", "-c", "exec -a VLLM::EngineCore sleep 60"])
    try:
        time.sleep(0.2)
        fake.say(h100(processes=f"{child.pid}:{GIB}"))
        boottime = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: E731
        stats = gpu(reader_for(proc=Path("/proc"), boottime=boottime, pids=(child.pid,)))
        assert memory(stats) == {"engine": 1}
        early = reader_for(proc=Path("/proc"), boottime=lambda: boottime() - 3600)
        assert gpu(early).processes == ()
    finally:
        child.kill()
        child.wait()
