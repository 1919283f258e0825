"""From a `GpuSnapshot` to samples of the contract: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from llmobs.catalog.gpu import GPU_DOWN_REASONS, GPU_METRICS, NVML_ERRORS
from llmobs.catalog.own import GPU_REASONS
from llmobs.snapshot import GpuSnapshot, GpuStats, MigInstance

Sample = tuple[str, tuple[str, ...], float]

#: The UUID of Xid errors that name no GPU we know.
UNKNOWN_GPU = "unknown"

#: (metric, field) for what is published unchanged, in the order of the contract.
_FACTS = tuple((metric.name, metric.fact) for metric in GPU_METRICS if metric.fact is not None)
_MIG = (
    ("nvidia_gpu_mig_memory_total_bytes", "memory_total_bytes"),
    ("nvidia_gpu_mig_memory_used_bytes", "memory_used_bytes"),
    ("nvidia_gpu_mig_sm_active_ratio", "sm_active"),
    ("nvidia_gpu_mig_tensor_active_ratio", "tensor_active"),
    ("nvidia_gpu_mig_dram_active_ratio", "dram_active"),
)


def published(snapshot: GpuSnapshot) -> tuple[GpuStats, ...]:
    """Return the GPUs that belong on this page: where vLLM's are known, those and any that may be; else all.

    Two sidecars on one machine would otherwise publish each GPU twice.
    """
    if any(gpu.watched for gpu in snapshot.devices):
        return tuple(gpu for gpu in snapshot.devices if gpu.watched is not False)
    return snapshot.devices


def samples(snapshot: GpuSnapshot, *, reserve_ratio: float, watched_only: bool = True) -> Iterator[Sample]:
    """Yield (metric, label values in the contract's order, value) for every GPU metric that is known.

    `reserve_ratio` is the share of the memory that planning leaves free. Counters are the device's own and may fall
    when the driver is loaded again.
    """
    yield "llmobs_nvml_up", (), float(snapshot.available)
    for reason in GPU_REASONS:
        yield "llmobs_nvml_error", (reason,), float(reason == snapshot.reason)
    if snapshot.reason == "disabled":
        return
    for error in NVML_ERRORS:
        yield "llmobs_nvml_errors_total", (error,), snapshot.nvml_errors.get(error, 0.0)
    if snapshot.xid_listener_up is not None:
        yield "llmobs_xid_listener_up", (), float(snapshot.xid_listener_up)
    for gpu in published(snapshot) if watched_only else snapshot.devices:
        yield from _device(gpu, snapshot, reserve_ratio)
    for code, count in snapshot.unknown_xid_errors.items():
        yield "nvidia_gpu_xid_errors_total", (UNKNOWN_GPU, code), count
    for code, when in snapshot.unknown_xid_last_seen.items():
        yield "nvidia_gpu_xid_last_seen_timestamp_seconds", (UNKNOWN_GPU, code), when


def _device(gpu: GpuStats, snapshot: GpuSnapshot, reserve_ratio: float) -> Iterator[Sample]:
    uuid = gpu.uuid
    yield "nvidia_gpu_info", _info(gpu, snapshot), 1.0
    for reason in GPU_DOWN_REASONS:
        yield "nvidia_gpu_error", (uuid, reason), float(reason == gpu.reason)
    for metric, fact in _FACTS:
        value = getattr(gpu, fact)
        if isinstance(value, Mapping):
            for label, number in value.items():
                yield metric, (uuid, label), float(number)
        elif value is not None:
            yield metric, (uuid,), float(value)
    if gpu.memory_total_bytes is not None:
        reserve = reserve_ratio * gpu.memory_total_bytes
        yield "nvidia_gpu_memory_reserve_bytes", (uuid,), reserve
        if gpu.memory_free_bytes is not None:
            yield "nvidia_gpu_memory_headroom_bytes", (uuid,), gpu.memory_free_bytes - reserve
    for process in gpu.processes:
        yield "nvidia_gpu_process_memory_bytes", (uuid, process.role, process.proof), process.memory_bytes
    for field, reason in gpu.unsupported.items():
        yield "nvidia_gpu_field_unavailable", (uuid, field, reason), 1.0
    yield from _mig(uuid, gpu.mig_instances)


def _info(gpu: GpuStats, snapshot: GpuSnapshot) -> tuple[str, ...]:
    watched = "unknown" if gpu.watched is None else str(gpu.watched).lower()
    return (
        gpu.uuid, str(gpu.index), gpu.name or "", gpu.pci_bus_id or "", snapshot.driver_version or "",
        snapshot.cuda_version or "", watched, gpu.watched_proof,
    )  # fmt: skip


def _mig(uuid: str, instances: Iterable[MigInstance]) -> Iterator[Sample]:
    for instance in instances:
        for name, fact in _MIG:
            value = getattr(instance, fact)
            if value is not None:
                yield name, (uuid, instance.gpu_instance, instance.profile), value
