"""The GPU guide covers what the code can say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmobs.catalog.gpu import FIELD_REASONS, GPU_DOWN_REASONS
from llmobs.catalog.own import GPU_REASONS
from llmobs.gpu import facts
from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "guides" / "gpu.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("reason", sorted({*GPU_REASONS, *GPU_DOWN_REASONS, *FIELD_REASONS}))
def test_every_reason_is_explained(reason: str) -> None:
    """Whoever sees a reason in a metric finds it in the guide's tables."""
    assert f"| `{reason}` |" in GUIDE


def test_every_field_that_can_be_missing_is_named() -> None:
    """The names in `nvidia_gpu_field_unavailable` are those of the guide."""
    source = Path(str(facts.__file__)).read_text(encoding="utf-8")
    fields = set(re.findall(r'_(?:get|link|keep|ecc|by_clock)\(\s*"(\w+)"', source))
    assert len(fields) > 15
    assert [field for field in sorted(fields) if f"`{field}`" not in GUIDE] == []


def test_every_driver_call_is_named() -> None:
    """A call that the code makes for a value is in the guide's table of sources."""
    source = Path(str(facts.__file__)).read_text(encoding="utf-8")
    calls = set(re.findall(r'"(nvml\w+)"', source)) - {
        "nvmlDeviceGetCurrPcieLinkWidth",  # written as …Width there
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
    }
    assert len(calls) > 12
    assert [call for call in sorted(calls) if call not in GUIDE] == []
