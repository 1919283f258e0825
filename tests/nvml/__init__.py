"""A `libnvidia-ml.so.1` of our own for the real pynvml: see shim.c for the scenario language."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("shim.c")

#: A name for a variant of the library → the macros it is compiled with.
VARIANTS: dict[str, tuple[str, ...]] = {"current": (), "old": ("OLD_DRIVER",), "535": ("DRIVER_535",)}

GIB = 1 << 30
ALL_EVENTS = 0xE10F


def build(folder: Path, variant: str = "current") -> Path:
    """Compile the shim into `folder`/`variant` and return the library's path; LD_LIBRARY_PATH may name its folder."""
    library = folder / variant / "libnvidia-ml.so.1"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        macros = [f"-D{name}" for name in VARIANTS[variant]]
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
        made = library.with_name(f"{os.getpid()}.so")
        subprocess.run(["gcc", *flags, *macros, "-o", made, SOURCE, "-pthread"], check=True, timeout=60)
        made.replace(library)
    return library


def uuid(gpu: int) -> str:
    """Return the UUID that `h100` gives to a GPU."""
    return f"GPU-{gpu:08x}-aaaa-bbbb-cccc-0123456789ab"


def h100(gpu: int = 0, **changes: object) -> dict[str, object]:
    """Return what a busy H100 says; a keyword replaces a key (`__` stands for a dot), None removes it."""
    values: dict[str, object] = {
        "uuid": uuid(gpu),
        "name": "NVIDIA H100 80GB HBM3",
        "pci": f"00000000:{0x18 + gpu:02X}:00.0",
        "minor": gpu,
        "memory_total": 80 * GIB,
        "memory_used": 70 * GIB,
        "memory_reserved": GIB,
        "utilization": 97,
        "memory_utilization": 55,
        "power_mw": 600_000,
        "power_limit_mw": 700_000,
        "energy_mj": 5_000_000,
        "temperature.0": 61,
        "threshold.0": 92,
        "threshold.1": 89,
        "threshold.2": 105,
        "threshold.3": 87,
        "clock.0": 1755,
        "clock.1": 1755,
        "clock.2": 2619,
        "clock_max.0": 1980,
        "clock_max.1": 1980,
        "clock_max.2": 2619,
        "clock_reasons": 0x4,
        "pstate": 0,
        "ecc.0.0": 12,
        "ecc.1.0": 0,
        "ecc.0.1": 40,
        "ecc.1.1": 1,
        "rows": "1 2 0 0",
        "pcie_replays": 3,
        "pcie_gen": 5,
        "pcie_gen_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_tx_kbs": 1000,
        "mig_mode": 0,
        "event_types": ALL_EVENTS,
        "field.82": "1:72",
        "field.185": "1:610000",
        "field.186": "1:640000",
        "field.197": "3:9000000000",
        "field.198": "3:7000000000",
        "field.138.4294967295": "3:2000",
        "field.139.4294967295": "3:1000",
        "field.230": "1:0",
        "gpm": 1,
        "gpm.2": 88.0,
        "gpm.3": 40.0,
        "gpm.5": 61.0,
        "gpm.10": 72.0,
    }
    return changed(values, changes)


def t4(gpu: int = 0, **changes: object) -> dict[str, object]:
    """Return what a T4 says: before Ampere, no GPM, no NVLink, no row remapping."""
    gone = ("rows", "gpm", "field.138.4294967295", "field.139.4294967295", "mig_mode", "field.82", "field.185")
    values = {key: value for key, value in h100(gpu).items() if key not in gone}
    return changed({**values, "name": "Tesla T4", "retired_pending": 1, "fan_percent": 40}, changes)


def changed(values: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    """Return `values` with keyword changes applied: `__` stands for a dot, None removes the key."""
    merged = {**values, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def scenario(*gpus: dict[str, object], slots: Iterable[tuple[int, int, dict[str, object]]] = (), **top: object) -> str:
    """Return the text of a scenario: one section per GPU, `slots` = (GPU, slot, values) for MIG, `top` global keys."""
    values = changed({"driver_version": "570.86.10", "cuda_version": 12080, "gpus": len(gpus)}, top)
    sections = [("", values), *((f"[{n}]", gpu) for n, gpu in enumerate(gpus))]
    sections += [(f"[{gpu}/{slot}]", said) for gpu, slot, said in slots]
    return "\n".join("\n".join([name, *(f"{k} = {v}" for k, v in said.items())]) for name, said in sections) + "\n"


class FakeNvml:
    """The shim loaded into this process: it says what the last `say` set, counts calls, and raises events."""

    def __init__(self, library: Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        self.lib.shim_size.restype = ctypes.c_size_t
        self.lib.shim_calls.restype = ctypes.c_ulong
        self.lib.shim_push_event.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
        self.lib.shim_reset()

    def say(self, *gpus: dict[str, object], **rest: Any) -> None:
        """Replace the scenario; arguments are those of `scenario`."""
        self.lib.shim_load(scenario(*gpus, **rest).encode())

    def calls(self, function: str = "") -> int:
        """Return how often `function` (or any) was called."""
        return int(self.lib.shim_calls(function.encode()))

    def size(self, struct: str) -> int:
        """Return the size of the C struct that pynvml calls `struct`."""
        return int(self.lib.shim_size(struct.encode()))

    def xid(self, gpu: int, code: int) -> None:
        """Raise an Xid on a GPU; -1 is a device that nobody knows."""
        self.lib.shim_push_event(gpu, 0x8, code)

    def mig_changed(self, gpu: int) -> None:
        """Raise the event that announces a MIG reconfiguration."""
        self.lib.shim_push_event(gpu, 0x100, 0)
