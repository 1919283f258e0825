"""The shim speaks the same C interface as pynvml."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from tests.nvml import FakeNvml, h100, scenario

pytestmark = pytest.mark.needs("gcc")

SIZES = {
    "c_nvmlMemory_t": 24,
    "c_nvmlMemory_v2_t": 40,
    "nvmlPciInfo_t": 68,
    "c_nvmlUtilization_t": 8,
    "c_nvmlFieldValue_t": 40,
    "c_nvmlProcessInfo_v3_t": 24,
    "c_nvmlEventData_t": 32,
    "c_nvmlTemperature_v1_t": 12,
    "c_nvmlMarginTemperature_v1_t": 8,
    "c_nvmlGpmSupport_t": 8,
    "c_nvmlGpmMetric_t": 40,
    "c_nvmlGpmMetricsGet_t": 19104,
}


@pytest.mark.parametrize("struct", SIZES)
def test_struct_sizes_are_pynvmls(fake: FakeNvml, struct: str) -> None:
    """Every struct that crosses the boundary has the size that NVML's header gives it, on both sides."""
    assert fake.size(struct) == ctypes.sizeof(getattr(pynvml, struct)) == SIZES[struct]


def test_the_535_variant_has_the_longer_process_struct(load: Callable[[str], FakeNvml]) -> None:
    """The variant for drivers 535.43 to 535.98 lists processes in 32 bytes, as they did."""
    assert load("535").size("c_nvmlProcessInfo_v3_t") == 32


def test_the_loader_finds_the_library_by_its_soname(shims: Callable[..., Path], tmp_path: Path) -> None:
    """A process of its own reads the shim as it would read the driver: by name, through the dynamic loader."""
    said = tmp_path / "scenario"
    said.write_text(scenario(h100()))
    code = "from llmobs.gpu import GpuReader; r = GpuReader(); s = r.read(); print(s.available, s.devices[0].name)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(shims().parent), "NVML_SHIM": str(said)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[-1] == "True NVIDIA H100 80GB HBM3"
