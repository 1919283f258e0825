"""The figures behind VllmHostMemoryHigh."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmobs.config import TargetSettings
from llmobs.derive.publish import samples
from llmobs.derive.target import Limits, advance, begin
from llmobs.engine.evidence import EvidenceReader
from llmobs.snapshot import Reading


def _published(cgroup: Path) -> dict[str, object]:
    evidence = EvidenceReader(TargetSettings(url="http://127.0.0.1:1", cgroup=str(cgroup))).read()
    reading = Reading(taken_at=1.0, wall_time=1.0, error_reason="refused")
    state = advance(begin(0.0), reading, evidence, Limits())
    found, _ = samples(state, "t", Limits())
    return {s.metric: s.value for s in found}


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    (tmp_path / "memory.current").write_text("9000\n")
    (tmp_path / "memory.stat").write_text("anon 5000\ninactive_file 1000\n")
    (tmp_path / "memory.max").write_text("10000\n")
    return tmp_path


def test_page_cache_does_not_count(cgroup: Path) -> None:
    """What the kernel can drop is not memory in use: reading a large weights file is no alarm."""
    found = _published(cgroup)
    assert found["vllm_host_memory_used_bytes"] == 8000
    assert found["vllm_host_memory_limit_bytes"] == 10000


def test_no_limit_is_absent(cgroup: Path) -> None:
    """Without a limit there is nothing to come near to, and a division by it would fire for ever."""
    (cgroup / "memory.max").write_text("max\n")
    assert "vllm_host_memory_limit_bytes" not in _published(cgroup)


def test_unreadable_is_absent(tmp_path: Path) -> None:
    """A cgroup that cannot be read publishes no memory figure."""
    assert "vllm_host_memory_used_bytes" not in _published(tmp_path)
