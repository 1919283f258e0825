"""The rules against the real promtool, and what every alert must have."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from llmobs.alerts import files
from llmobs.alerts.promql import all_series
from llmobs.alerts.rules import ALERTS
from llmobs.alerts.rules.gpu import XID_TIERS, check_tiers
from llmobs.alerts.settings import load
from llmobs.alerts.unit import all_cases, everything_on
from llmobs.catalog import METRICS, series_names
from llmobs.errors import GenerateError
from llmobs.generate import Options
from tests.conftest import ROOT

_TESTS = sorted(name for name in files(Options()) if name.endswith(".test.yaml"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything generated with the defaults."""
    return _write(tmp_path_factory.mktemp("alerts"), Options())


def _write(folder: Path, options: Options) -> Path:
    for name, text in files(options).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules(written: Path) -> None:
    """`promtool check rules` has nothing to say."""
    _promtool("check", "rules", *sorted((written / "alerts").glob("*.rules.yaml")))


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("name", _TESTS)
def test_promtool_unit_tests(written: Path, name: str) -> None:
    """Every case of every alert does what it says under the real rule engine."""
    _promtool("test", "rules", written / name)


@pytest.mark.needs("promtool")
def test_unit_tests_follow_the_knobs(tmp_path: Path) -> None:
    """Changed thresholds and tiers change the cases with them, and they still hold."""
    config = tmp_path / "knobs.yaml"
    config.write_text(
        "alerts:\n  slo:\n    ttft: {boundary: 5.0, models: {big: {boundary: 10.0, target: 0.98}}}\n  rules:\n"
        "    CanaryTokensSlower: {threshold: 0.1, for: 20m}\n    LlmobsCollectorStale: {threshold: 120}\n",
        encoding="utf-8",
    )
    folder = _write(tmp_path, Options(config=config))
    for name in ("canary", "llmobs"):
        _promtool("test", "rules", folder / f"alerts/tests/{name}.test.yaml")


@pytest.mark.needs("promtool")
def test_a_models_own_limit_is_tested(tmp_path: Path) -> None:
    """Five lines for one model: its cases run against its own rule and hold."""
    config = tmp_path / "knobs.yaml"
    config.write_text(
        "alerts:\n  rules:\n    CanaryLatencyWorse:\n      models:\n        big: {threshold: 1.4, severity: critical}\n"
    )
    folder = _write(tmp_path, Options(config=config))
    assert "CanaryLatencyWorse: big: p95 is worse" in (folder / "alerts/tests/canary.test.yaml").read_text()
    _promtool("test", "rules", folder / "alerts/tests/canary.test.yaml")


def test_every_alert_has_both_kinds_of_case() -> None:
    """At least one case in which an alert fires and one in which it does not, for each."""
    positive, negative = Counter[str](), Counter[str]()
    for case in all_cases(everything_on(load(None))):
        (positive if case.positive else negative)[case.alert] += 1
    assert set(positive) == set(negative) == set(ALERTS)


def test_every_alert_says_what_to_do() -> None:
    """An alert has its causes, a first command, an impact and a reason for its numbers."""
    for alert in ALERTS.values():
        assert alert.causes, alert.name
        assert alert.first, alert.name
        assert alert.impact, alert.name
        assert alert.tune, alert.name
        for knob in (alert.threshold, *alert.params.values()):
            assert knob is None or (knob.why and knob.unit), alert.name
        assert alert.enabled or alert.off_because, alert.name


def test_inhibited_by_names_alerts() -> None:
    """What silences an alert is an alert, and never itself."""
    for alert in ALERTS.values():
        assert set(alert.inhibited_by) <= set(ALERTS), alert.name
        assert alert.name not in alert.inhibited_by


def test_lines_on_panels_have_a_metric() -> None:
    """The metric whose panel shows a threshold exists."""
    known = all_series()
    for alert in ALERTS.values():
        assert not alert.metric or alert.metric in METRICS or alert.metric in known, alert.name


def test_default_set_has_no_alert_on_what_is_no_fault() -> None:
    """Low hit rate alone, absolute latency of whole answers, low GPU use: off, or context only."""
    assert ALERTS["VllmCacheHitRateLow"].severity == "info"
    assert not ALERTS["VllmE2EP95High"].enabled
    assert not any(
        "utilization_ratio" in a.expr.split("\n")[0] and "<" in a.expr.split("\n")[0]
        for a in ALERTS.values()
        if a.enabled
    )


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ({**XID_TIERS, "node": ("79", "48")}, "Xid 48 is in the tiers"),
        ({**XID_TIERS, "node": ()}, "Xid 79 of XID_CODES is in no tier"),
        ({**XID_TIERS, "node": ("79", "999")}, "Xid 999"),
    ],
)
def test_xid_tiers_are_disjoint_and_whole(tiers: dict[str, tuple[str, ...]], message: str) -> None:
    """A code in two tiers, in none, or not published from the start stops the generator."""
    with pytest.raises(GenerateError, match=message):
        check_tiers(tiers)


def test_every_alert_has_a_runbook(written: Path) -> None:
    """Every alert's runbook is there, with all its parts, and every link in it leads somewhere."""
    for name in ALERTS:
        page = (written / f"docs/runbooks/{name}.md").read_text(encoding="utf-8")
        for part in (
            "means for users",
            "Is it real",
            "Stop the bleeding",
            "Find the cause",
            "Prevent it",
            "When to tune",
        ):
            assert part in page, (name, part)
        assert "Kubernetes:" in page
        assert "Plain host:" in page
        assert "<" not in re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.S), name
        for link in re.findall(r"\]\(([^)]+)\)", page):
            assert (written / "docs/runbooks" / link).exists(), (name, link)


def test_metrics_of_the_runbooks_are_in_the_contract(written: Path) -> None:
    """A runbook may name only metrics there are."""
    known = {n for m in METRICS.values() for n in (m.name, *series_names(m))} | set(all_series()) | {"up"}
    for path in (written / "docs/runbooks").glob("*.md"):
        for word in re.findall(r"[a-z_]*:?(?:vllm|nvidia_gpu|llmobs)_[a-z0-9_:]+", path.read_text(encoding="utf-8")):
            assert word.strip("_:") in {k.strip("_:") for k in known} | {"nvidia_smi"}, (path.name, word)


def test_committed_files_are_current() -> None:
    """What is committed is what is generated."""
    for name, text in files(Options()).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, name
