"""A short part of the detection matrix in the real chain: simulated engines, daemon, Prometheus, Alertmanager."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks._faults import FAULTS
from benchmarks.detection import Outcome, run

_ROWS = ("engine hangs, health 200", "CUDA out of memory", "steady chat (no fault)")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Three rows at once, fifteen times as fast: ten minutes of health, then ten more."""
    chosen = [replace(f, lead=450.0, after=600.0) for f in FAULTS if f.name in _ROWS]
    return {o.fault.name: o for o in run(chosen, 15.0, public=False)}


@pytest.mark.needs("prometheus", "alertmanager")
@pytest.mark.parametrize(
    ("row", "alert"), [("engine hangs, health 200", "VllmEngineStalled"), ("CUDA out of memory", "VllmOutOfMemory")]
)
def test_a_fault_is_one_page_that_names_it(outcomes: dict[str, Outcome], row: str, alert: str) -> None:
    """The pager is told once, within five minutes, of the alert that names the cause, and of nothing else."""
    outcome = outcomes[row]
    caught = outcome.caught()
    assert caught is not None, outcome.told
    assert caught[1] == alert
    assert caught[0] < 300
    assert outcome.pages() == [alert], outcome.told
    assert outcome.false() == [], outcome.told


@pytest.mark.needs("prometheus", "alertmanager")
def test_health_is_silent(outcomes: dict[str, Outcome]) -> None:
    """Nobody is told anything about an engine that is well."""
    assert outcomes["steady chat (no fault)"].told == []
