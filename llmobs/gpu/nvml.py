"""The module pynvml: finding the right one, what its error codes mean to us, and which values are no values.

NVML's C header and pynvml are the source of codes, field ids and units; numbers are written out here, because older
releases of nvidia-ml-py do not name all of them.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import math
from typing import Any

#: Reasons of `GpuSnapshot.reason` by the code with which NVML refuses to start or stops working.
DOWN_REASONS = {
    1: "no_driver",  # Uninitialized
    4: "no_permission",
    9: "no_driver",  # DriverNotLoaded
    12: "no_library",
    18: "version_mismatch",
    28: "no_devices",  # GpuNotFound
}

#: What to tell an operator about the codes that need one.
ADVICE = {
    4: "this user may not open /dev/nvidiactl",
    9: "the NVIDIA driver is not loaded, or its device files are not in this container",
    12: "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container was started without the GPU view "
    "(NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility)",
    18: "the driver was replaced underneath: restart the container so that it gets the library of the new driver",
    999: "the driver answers Unknown Error: the container has probably lost its GPU devices (a systemctl daemon-reload "
    "on the host does that); restart the container",
}

#: Words for codes that count as failures (`llmobs_nvml_errors_total`).
ERROR_WORDS = {
    1: "uninitialized", 2: "invalid_argument", 4: "no_permission", 7: "insufficient_size", 8: "insufficient_power",
    9: "driver_not_loaded", 11: "irq_issue", 14: "corrupted_inforom", 15: "gpu_lost", 16: "reset_required",
    17: "operating_system", 18: "version_mismatch", 19: "in_use", 20: "memory", 23: "insufficient_resources",
    27: "not_ready", 28: "gpu_not_found", 29: "invalid_state", 999: "unknown",
}  # fmt: skip

NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
INSUFFICIENT_SIZE = 7
#: `scopeId` of a field that is summed over all NVLinks.
ALL_LINKS = 0xFFFFFFFF


class Meaning(enum.Enum):
    """What a failed call says about the field, the device, or NVML as a whole."""

    UNSUPPORTED = "unsupported"
    PERMISSION = "no_permission"
    EMPTY = "empty"
    UNKNOWN = "unknown"
    GONE = "gone"
    DOWN = "down"
    ERROR = "error"


_MEANINGS = {
    2: Meaning.UNSUPPORTED,  # InvalidArgument: a selector this driver does not know
    NOT_SUPPORTED: Meaning.UNSUPPORTED,
    FUNCTION_NOT_FOUND: Meaning.UNSUPPORTED,
    25: Meaning.UNSUPPORTED,  # ArgumentVersionMismatch
    26: Meaning.UNSUPPORTED,  # Deprecated
    4: Meaning.PERMISSION,
    6: Meaning.EMPTY,  # NotFound
    21: Meaning.EMPTY,  # NoData
    999: Meaning.UNKNOWN,  # WSL2 answers it instead of NotSupported
    15: Meaning.GONE,
    16: Meaning.GONE,
    1: Meaning.DOWN,
    9: Meaning.DOWN,
    18: Meaning.DOWN,
    28: Meaning.DOWN,
}

#: Reasons of `GpuStats.reason` by the code.
GONE_REASONS = {15: "lost", 16: "reset_required"}


def meaning(code: int) -> Meaning:
    """Return what an NVML error code means for the call that got it."""
    return _MEANINGS.get(code, Meaning.ERROR)


def error_word(code: int) -> str:
    """Return the label value under which a failure is counted."""
    return ERROR_WORDS.get(code, "other")


class NvmlDownError(Exception):
    """NVML as a whole stopped working; `code` is the NVML error."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(detail or ADVICE.get(code, f"NVML error {code}"))
        self.code = code
        self.reason = DOWN_REASONS.get(code, "error")


class DeviceGoneError(Exception):
    """The device is lost or needs a reset; `reason` is the word for `GpuStats.reason`."""

    def __init__(self, code: int) -> None:
        super().__init__(GONE_REASONS[code])
        self.reason = GONE_REASONS[code]


def load() -> Any:
    """Import pynvml and return it. Raises NvmlDownError (no_library) when it is missing or not nvidia-ml-py.

    The distribution `pynvml` before 12 installs another, abandoned module under the same name.
    """
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlDownError(
            12, f"the Python module pynvml cannot be imported ({error}): install nvidia-ml-py"
        ) from error
    if not hasattr(module, "nvmlMemory_v2"):
        where = getattr(module, "__file__", "an unknown place")
        version = getattr(module, "__version__", "without a version")
        raise NvmlDownError(
            12,
            f"the module pynvml at {where} ({version}) is not the maintained one: "
            "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
        )
    return module


def exports(module: Any, symbol: str) -> bool:
    """Return whether the loaded driver library has a C function of that name."""
    return getattr(module.nvmlLib, symbol, None) is not None


def address(handle: Any) -> int | None:
    """Return the pointer behind a device handle; the ctypes object itself cannot be a key."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def clean(value: float | None, low: float = 0.0, high: float = 9.0e18) -> float | None:
    """Return `value`, or None when it is one of NVML's ways to say "not available".

    2⁶⁴−1, 2⁶⁴−n, 9.2e18 and 2³²−1 are sentinels, NaN is none, and values outside `low`…`high` are impossible.
    """
    if value is None or math.isnan(value) or not low <= value <= high or value == 0xFFFFFFFF:
        return None
    return float(value)


def scaled(value: float | None, factor: float, high: float = 9.0e18) -> float | None:
    """Return the cleaned raw value times `factor`; `high` bounds the raw value."""
    raw = clean(value, high=high)
    return None if raw is None else raw * factor
