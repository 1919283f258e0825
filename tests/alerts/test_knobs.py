"""One YAML file changes thresholds, severities and switches, for all, for one model, or for a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmobs.alerts import files
from llmobs.alerts.rules import ALERTS
from llmobs.alerts.settings import load, threshold
from llmobs.errors import ConfigError, GenerateError
from llmobs.generate import Options


def _config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "knobs.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _rules(config: Path | None, alert: str, **options: Any) -> list[dict[str, Any]]:
    made = files(Options(config=config, **options))
    found = []
    for name, text in made.items():
        if name.startswith("alerts/") and name.endswith(".rules.yaml") and "/tests/" not in name:
            for group in yaml.safe_load(text)["groups"]:
                found += [rule for rule in group["rules"] if rule.get("alert") == alert]
    return found


_FIVE_LINES = """\
alerts:
  rules:
    VllmTTFTP95High:
      models:
        llama-70b: {threshold: 1.5, severity: critical}
"""


def test_one_threshold_for_one_model(tmp_path: Path) -> None:
    """Five lines give one model its own limit, and every other model keeps the general one."""
    own, others = _rules(_config(tmp_path, _FIVE_LINES), "VllmTTFTP95High")
    assert 'model_name="llama-70b"' in own["expr"]
    assert "> 1.5" in own["expr"]
    assert own["labels"]["severity"] == "critical"
    assert 'model_name!="llama-70b"' in others["expr"]
    assert "> 2.5" in others["expr"]


def test_threshold_for_dashboards(tmp_path: Path) -> None:
    """The line on a panel is the limit of the page at night, per model."""
    config = _config(tmp_path, _FIVE_LINES)
    assert threshold("VllmTTFTP95High", "llama-70b", config) == 1.5
    assert threshold("VllmTTFTP95High", "another", config) == 2.5
    line = load(config).lines("vllm_time_to_first_token_seconds", "llama-70b")
    assert [(e.alert.name, e.threshold, e.severity) for e in line] == [("VllmTTFTP95High", 1.5, "critical")]


def test_threshold_in_generated_tests(tmp_path: Path) -> None:
    """The generated unit tests hold the model to its own limit."""
    text = files(Options(config=_config(tmp_path, _FIVE_LINES)))["alerts/tests/engine.test.yaml"]
    names = [test["name"] for test in yaml.safe_load(text)["tests"]]
    assert "VllmTTFTP95High: llama-70b: p95 above the threshold" in names


def test_tiers_of_an_alert_that_is_off(tmp_path: Path) -> None:
    """A page for one model and a ticket for another, with nothing for the rest."""
    config = _config(
        tmp_path,
        "alerts:\n  rules:\n    VllmE2EP95High:\n      models:\n"
        "        big: {enabled: true, threshold: 1.5, severity: critical}\n"
        "        small: {enabled: true, threshold: 0.5}\n",
    )
    found = {rule["labels"]["severity"]: rule["expr"] for rule in _rules(config, "VllmE2EP95High")}
    assert set(found) == {"critical", "warning"}
    assert 'model_name="big"' in found["critical"]
    assert 'model_name="small"' in found["warning"]


def test_match_of_several_labels(tmp_path: Path) -> None:
    """A match of two labels takes exactly its series away from the general rule, in disjoint parts."""
    config = _config(
        tmp_path,
        "alerts:\n  rules:\n    VllmQueueLong:\n      match:\n        - labels: {namespace: staging, model_name: m}\n"
        "          threshold: 99\n",
    )
    exprs = [rule["expr"] for rule in _rules(config, "VllmQueueLong")]
    assert [("> 99" in e) for e in exprs] == [True, False, False]
    assert 'model_name!="m"' in exprs[1]
    assert 'model_name="m"' in exprs[2]
    assert 'namespace!="staging"' in exprs[2]


def test_models_that_must_exist(tmp_path: Path) -> None:
    """Naming a model adds a rule for its absence and leaves the general one whole."""
    config = _config(tmp_path, "alerts:\n  rules:\n    VllmMetricsAbsent:\n      models:\n        m: {for: 2m}\n")
    exprs = {rule["expr"]: rule["for"] for rule in _rules(config, "VllmMetricsAbsent")}
    assert exprs == {"absent(target:vllm_up:model)": "5m", 'absent(target:vllm_up:model{model_name="m"})': "2m"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alerts:\n  rules:\n    VllmTTFTP95Hihg: {}\n", "did you mean 'VllmTTFTP95High'"),
        ("alerts:\n  rules:\n    VllmQueueLong: {treshold: 5}\n", "did you mean 'threshold'"),
        ("alerts:\n  runbook_base_ulr: x\n", "did you mean 'runbook_base_url'"),
        ("alerts:\n  rules:\n    VllmQueueLong: {severity: page}\n", "critical, warning, info"),
        ("alerts:\n  rules:\n    VllmQueueLong: {for: 5 minutes}\n", "is not a duration"),
        ("alerts:\n  rules:\n    VllmQueueLong: {threshold: many}\n", "is not a number"),
        ("alerts:\n  rules:\n    VllmEngineStalled: {threshold: 1}\n", "has no threshold"),
        ("alerts:\n  slo:\n    ttft: {target: 0.9}\n", "no page can fire"),
        ("alerts:\n  slo:\n    tftt: {target: 0.99}\n", "did you mean 'ttft'"),
        ("alerts:\n  rules:\n    VllmQueueLong:\n      match:\n        - threshold: 4\n", "labels"),
        (
            "alerts:\n  rules:\n    VllmPrefillSlow:\n      match:\n        - labels: {color: red}\n",
            "has the label 'color'",
        ),
        ("alerts: [1]\n", "must be a mapping"),
        ("alerts: {a: [}\n", "is not YAML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    """A mistake is refused, and the message says what was meant or what is possible."""
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        files(Options(config=_config(tmp_path, text)))


def test_everything_off(tmp_path: Path) -> None:
    """With every alert off no alert is rendered, and no empty file either."""
    text = "alerts:\n  rules:\n" + "".join(f"    {name}: {{enabled: false}}\n" for name in ALERTS)
    made = files(Options(config=_config(tmp_path, text)))
    assert [n for n in made if n.endswith(".rules.yaml") and "/tests/" not in n] == ["alerts/recording.rules.yaml"]


def test_parts_left_out() -> None:
    """--without gpu leaves the GPU rules out and nothing else."""
    assert not _rules(None, "GpuLost", without=("gpu",))
    assert _rules(None, "VllmQueueLong", without=("gpu",))


def test_selector_reaches_every_selector(tmp_path: Path) -> None:
    """A selector is in every series of every rule, so that two installations can share one Prometheus."""
    text = files(Options(config=_config(tmp_path, "alerts:\n  selector: {namespace: llm}\n")))
    for group in yaml.safe_load(text["alerts/engine.rules.yaml"])["groups"]:
        for rule in group["rules"]:
            assert 'namespace="llm"' in rule["expr"]


def test_operator_format() -> None:
    """The same rules as objects for the operator: same groups, same rules."""
    plain = files(Options())
    objects = [
        d for d in yaml.safe_load_all(files(Options(format="prometheusrule"))["alerts/prometheusrule.yaml"]) if d
    ]
    groups = [
        g
        for n, t in plain.items()
        if n.endswith(".rules.yaml") and "/tests/" not in n
        for g in yaml.safe_load(t)["groups"]
    ]
    assert [g for d in objects for g in d["spec"]["groups"]] == groups
    assert {d["kind"] for d in objects} == {"PrometheusRule"}


def test_unknown_format() -> None:
    """An unknown format is refused with the ones there are."""
    with pytest.raises(ConfigError, match="rules, prometheusrule"):
        files(Options(format="prometheusrules"))


def test_unsound_rules_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that fail the lint are an error of the generator, never a file."""
    monkeypatch.setattr("llmobs.alerts.problems", lambda *_: ["X: is wrong"])
    with pytest.raises(GenerateError, match="X: is wrong"):
        files(Options())
