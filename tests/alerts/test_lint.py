"""The lint finds each kind of fault, and nothing in our own rules."""

from __future__ import annotations

from typing import Any

import pytest

from llmobs.alerts.lint import problems
from llmobs.alerts.render import groups
from llmobs.alerts.settings import load
from llmobs.alerts.unit import everything_on

_GOOD = "max by (model_name) (vllm_kv_cache_usage_ratio) > 0.9"


def _lint(expr: str = _GOOD, **rule: Any) -> list[str]:
    return problems([{"rules": [{"alert": "X", "expr": expr, **rule}]}])


def test_own_rules_are_clean() -> None:
    """Every rule, those that are off by default included, passes."""
    made = groups(everything_on(load(None)))
    assert problems([group for gs in made.values() for group in gs], ("canary",)) == []


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("vllm_preemptions_total > 5", "is a counter"),
        ("sum(vllm_num_preemptions) > 1", "neither in the contract"),
        ("sum(rate(vllm_preemptions[5m])) > 1", "did you mean 'vllm_preemptions_total'"),
        ("rate(vllm_kv_cache_usage_ratio[5m]) > 1", "is no counter"),
        ("delta(vllm_preemptions_total[5m]) > 1", "start again"),
        ("max by (model_name) (vllm_kv_cache_usage_ratio)", "compares nothing"),
        ("max by (model_name) (vllm_kv_cache_usage_ratio) > bool 0.9", "compares nothing"),
        ("max(vllm_kv_cache_usage_ratio) > 1 or max(vllm_up)", "compares nothing"),
        ('vllm_kv_cache_usage_ratio{modle_name="m"} > 1', "has no label modle_name"),
        ('vllm_num_running_requests{model_name=~"m"} > 1', "no regular expression"),
        ('vllm_num_running_requests{model_name!~".*"} > 1', "selects nothing"),
        ('increase(vllm_request_failed_total{reason=~"oom|killed"}[5m]) > 0', "never has reason='killed'"),
        ('increase(vllm_request_failed_total{reason="out_of_memory"}[5m]) > 0', "never has reason"),
        ("absent(vllm_up)", "without for"),
        (
            "sum by (model_name) (vllm_num_running_requests) / sum by (target) (vllm_num_running_requests) > 1",
            "use on()",
        ),
        ("sum by (model_name) (vllm_up) > 1 and on (target) sum by (model_name) (vllm_up) > 1", "has no (target)"),
        ("sum by (model_name) (vllm_up) / ignoring (le) sum by (target) (vllm_up) > 1", "still compares"),
        ("histogram_quantile(0.9, rate(vllm_time_to_first_token_seconds_bucket[5m])) > 1", "summed by le"),
        ("model:nothing:here > 1", "neither in the contract nor a recording rule"),
        ("sum(", "cannot be parsed"),
    ],
)
def test_faults(expr: str, fault: str) -> None:
    """Each kind of fault is found and named."""
    assert any(fault in problem for problem in _lint(expr)), _lint(expr)


def test_good_rule() -> None:
    """A sound rule has no problem: the lint does not cry wolf."""
    assert _lint() == []


def test_template_in_label() -> None:
    """A template value in a label would make every new value a new alert."""
    assert any("template" in p for p in _lint(labels={"value": "{{ $value }}"}))


def test_texts_with_labels_that_are_gone() -> None:
    """A text that names a label the expression has aggregated away would print nothing."""
    texts = dict.fromkeys(("description", "runbook_url", "dashboard_url"), "x")
    found = _lint(annotations={**texts, "summary": "{{ $labels.target }} is full"})
    assert any("name the label target" in p for p in found)


def test_missing_text() -> None:
    """An alert without a runbook is one without an action."""
    assert any(
        "no runbook_url" in p for p in _lint(annotations={"summary": "s", "description": "d", "dashboard_url": "u"})
    )


def test_duplicate() -> None:
    """The same rule twice is found."""
    rule = {"alert": "X", "expr": _GOOD}
    assert any("twice" in p for p in problems([{"rules": [rule, dict(rule)]}]))


def test_name_of_a_recording_rule() -> None:
    """Recording rules are named level:metric:operations."""
    assert any("level:metric" in p for p in problems([{"rules": [{"record": "my_rate", "expr": "max(vllm_up)"}]}]))
