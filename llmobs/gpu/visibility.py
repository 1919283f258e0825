"""Which GPUs a process was told to use: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES against the GPUs there are."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

#: Prefix of the stand-in for the UUID of a GPU that could not be identified; its index follows.
UNNAMED = "unknown-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What identifies a GPU, with the UUIDs of its MIG devices."""

    uuid: str
    index: int
    name: str | None = None
    minor: int | None = None
    mig_uuids: frozenset[str] = frozenset()


def from_environment(
    environment: Mapping[str, str], gpus: Collection[Gpu], own: Mapping[str, str] = os.environ
) -> frozenset[str] | None:
    """Return the UUIDs of the GPUs that the variables name, or None when they name none for certain.

    UUIDs (also shortened, and of MIG devices) always count. Numbers count only where they must mean the same there and
    here: both see all GPUs of the machine, and CUDA's order is NVML's, by PCI bus or because all GPUs are alike.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        words = [word.strip() for word in environment.get(variable, "").split(",") if word.strip()]
        if words and all(word.startswith(("GPU-", "MIG-")) for word in words):
            named = {gpu.uuid for gpu in gpus for word in words if _names(word, gpu)}
            if named:
                return frozenset(named)
    words = [word.strip() for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    alike = len({gpu.name for gpu in gpus}) == 1
    same_order = alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    same_view = all(seen.get("NVIDIA_VISIBLE_DEVICES", "all") == "all" for seen in (environment, own))
    if words and all(word.isdigit() for word in words) and same_order and same_view:
        return frozenset(gpu.uuid for gpu in gpus if str(gpu.index) in words) or None
    return None


def _names(word: str, gpu: Gpu) -> bool:
    return gpu.uuid.startswith(word) or any(uuid.startswith(word) for uuid in gpu.mig_uuids)
