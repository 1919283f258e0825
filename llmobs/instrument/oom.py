"""Recognising that memory ran out, and what the allocator had at that moment."""

from __future__ import annotations

import re
import sys
from typing import Any

_CUDA = re.compile(
    r"(CUDA|HIP|XPU) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|torch\.(cuda\.)?OutOfMemoryError",
    re.IGNORECASE,
)
_HOST = re.compile(r"DefaultCPUAllocator: (can't|not enough)|\bMemoryError\b|Cannot allocate memory|std::bad_alloc")


def kind(error: BaseException) -> str | None:
    """Return "cuda" or "host" when `error`, or what caused it, means that memory ran out; else None.

    The engine core sees a worker's exception only as text inside its own, so the text counts as well as the type.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        names = {f"{c.__module__}.{c.__qualname__}" for c in type(cause).__mro__}
        if any(n.startswith("torch.") and n.endswith("OutOfMemoryError") for n in names):
            return "cuda"
        text = str(cause)[:8192]
        if _CUDA.search(text):
            return "cuda"
        if isinstance(cause, MemoryError) or _HOST.search(text):
            return "host"
        cause = cause.__cause__ or cause.__context__
    return None


def allocator() -> tuple[dict[str, float], str | None]:
    """Return bytes allocated and reserved by PyTorch in this process, and the device; ({}, None) without one.

    Only what is already imported and initialised is asked: this must not make a CUDA context of its own.
    """
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        backend: Any = getattr(torch, name, None)
        if backend is None or not backend.is_available() or not backend.is_initialized():
            continue
        index = backend.current_device()
        memory = {
            "allocated": float(backend.memory_allocated(index)),
            "reserved": float(backend.memory_reserved(index)),
        }
        uuid = getattr(backend.get_device_properties(index), "uuid", None)
        return memory, f"{name}:{index}" + (f" GPU-{uuid}" if uuid else "")
    return {}, None


def post_mortem() -> tuple[dict[str, float], str | None]:
    """Return `allocator()` with the peak, what the device has free, and the largest free block in the allocator."""
    memory, device = allocator()
    if not memory or device is None:
        return memory, device
    backend: Any = getattr(sys.modules["torch"], device.split(":")[0])
    memory["peak_allocated"] = float(backend.max_memory_allocated())
    free, total = backend.mem_get_info()
    memory["device_free"], memory["device_total"] = float(free), float(total)
    snapshot = getattr(backend, "memory_snapshot", None)
    if snapshot is not None:
        blocks = (b["size"] for s in snapshot() for b in s.get("blocks", ()) if b.get("state") == "inactive")
        memory["largest_free_block"] = float(max(blocks, default=0))
    return memory, device
