"""The cost of our code inside vLLM, held well below what would matter."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.conftest import VLLM_ENV
from tests.instrument.overlay import ROOT, overlay

pytestmark = pytest.mark.needs("vllm")


def test_steps_requests_and_pages_stay_within_their_bars() -> None:
    """The micro-benchmark's figures are below its bars, with room for a busy machine."""
    python = overlay(VLLM_ENV) / "bin" / "python"
    command = [str(python), "-m", "benchmarks.instrument_micro"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ})
    found = re.findall(r"^(.+?): +([\d.]+) µs \(bar (\d+) µs\)$", done.stdout, re.MULTILINE)
    assert len(found) == 6, done.stdout + done.stderr
    # The bars are for a quiet machine; twice them still finds a lost order of magnitude.
    assert [line for line in found if float(line[1]) > 2 * float(line[2])] == []
