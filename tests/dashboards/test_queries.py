"""Every query asks only the contract, and asks it right."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest

from llmobs.catalog import METRICS, Metric
from llmobs.dashboards.promql import contract_metric
from llmobs.errors import GenerateError
from tests.dashboards.boards import (
    all_boards,
    every_panel,
    expressions,
    nodes,
    parse,
    prometheus_targets,
    selectors,
)
from tests.dashboards.recorded import labels_of_recorded

_PART = re.compile(r"_(bucket|sum|count)$")

#: Labels from outside the contract: of the scrape, of the default extra variable, and those set per target.
_OUTSIDE = {"job", "instance", "cluster", "version"}
#: Prometheus' own series.
_BUILT_IN = {"ALERTS": {"alertname", "alertstate", "severity", "cluster"}}


def metric_of(series: str) -> Metric | None:
    return METRICS.get(series) or METRICS.get(_PART.sub("", series))


def labels_of(series: str) -> set[str]:
    """Labels that a series may have."""
    if series in _BUILT_IN:
        return set(_BUILT_IN[series])
    if ":" in series:
        return set(labels_of_recorded()[series])
    metric = metric_of(series)
    assert metric is not None, series
    return {*metric.labels, *_OUTSIDE, *(("le",) if series.endswith("_bucket") else ())}


def names_in(expression: Any) -> set[str]:
    return {n.name for n, _ in nodes(expression) if isinstance(n, promql_parser.VectorSelector) and n.name}


def test_every_series_is_in_the_contract_or_recorded() -> None:
    """A query names a metric of the contract (a histogram by one of its parts), a recording rule, or ALERTS."""
    for where, text in expressions():
        for selector, _ in selectors(text):
            name = selector.name
            assert name, where
            if name in _BUILT_IN or ":" in name:
                assert name in _BUILT_IN or name in labels_of_recorded(), (where, name)
                continue
            metric = metric_of(name)
            assert metric is not None, (where, name)
            assert (metric.kind == "histogram") == bool(_PART.search(name) and name not in METRICS), (where, name)


def test_query_variables_ask_the_contract_too() -> None:
    """The choices of a variable come from a label that its metric has."""
    for board in all_boards().values():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            match = re.fullmatch(r"label_values\((.+), ([\w$]+)\)", variable["query"])
            assert match
            ((selector, _),) = selectors(match[1])
            assert match[2] == "$split" or match[2] in labels_of(selector.name), variable["query"]


def test_every_label_matched_exists() -> None:
    """A matcher names a label of its metric, and where the label's values are closed, one or more of them."""
    for where, text in expressions():
        for selector, _ in selectors(text):
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels_of(selector.name), (where, selector.name, matcher.name)
                metric = metric_of(selector.name)
                closed = metric.values.get(matcher.name) if metric else None
                if closed and matcher.value not in (".+", ".*"):
                    assert set(matcher.value.split("|")) <= set(closed), (where, matcher.value)


def test_every_label_grouped_by_exists() -> None:
    """A label in `by`, `on` or `group_left` is a label of a series below it."""
    for where, text in expressions():
        for node, _ in nodes(parse(text)):
            modifier = getattr(node, "modifier", None)
            wanted: set[str] = set()
            if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
                wanted = set(modifier.labels)
            elif isinstance(node, promql_parser.BinaryExpr) and modifier is not None and modifier.matching is not None:
                wanted = set(modifier.matching.labels)
            if wanted:
                there = set().union(*(labels_of(name) for name in names_in(node)))
                assert wanted <= there, (where, wanted - there)


def test_legends_name_labels_that_the_result_has() -> None:
    """A legend asks for no label that was aggregated away."""
    for target in prometheus_targets():
        wanted = set(re.findall(r"{{(\w+)}}", target.target["legendFormat"]))
        if wanted:
            assert wanted <= result_labels(parse(target.target["expr"])), (target.where, wanted)


def result_labels(expression: Any) -> set[str]:
    """Labels that the result of an expression has."""
    if isinstance(expression, promql_parser.AggregateExpr):
        kept = set(expression.modifier.labels) if expression.modifier is not None else set()
        inner = result_labels(expression.expr)
        return inner if str(expression.op) in ("topk", "bottomk") else kept & inner
    if isinstance(expression, promql_parser.BinaryExpr):
        left, right = result_labels(expression.lhs), result_labels(expression.rhs)
        if str(expression.op) == "or":
            return left | right
        return left if not isinstance(expression.lhs, promql_parser.NumberLiteral) else right
    if isinstance(expression, promql_parser.Call):
        found = set().union(*(result_labels(a) for a in expression.args)) if expression.args else set()
        return found - {"le"} if expression.func.name == "histogram_quantile" else found
    if isinstance(expression, promql_parser.VectorSelector):
        return labels_of(expression.name)
    inner = getattr(expression, "expr", None) or getattr(expression, "vector_selector", None)
    return result_labels(inner) if inner is not None else set()


def test_rates_are_of_counters_only() -> None:
    """`rate` and `increase` read a counter or a part of a histogram; every counter is read through them."""
    levels = {"nvidia_gpu_ecc_errors_lifetime_total"}  # a count over the life of the device is read as it stands
    for where, text in expressions():
        for selector, above in selectors(text):
            if selector.name in _BUILT_IN or ":" in selector.name:
                continue
            metric = metric_of(selector.name)
            assert metric is not None
            calls = [n.func.name for n in above if isinstance(n, promql_parser.Call)]
            growing = metric.kind in ("counter", "histogram")
            if any(c in ("rate", "irate", "increase") for c in calls):
                assert growing, (where, selector.name)
            elif growing:
                assert selector.name in levels, (where, selector.name)


def test_quantiles_are_taken_of_summed_buckets_and_never_averaged() -> None:
    """`histogram_quantile` reads `sum by (le, …)` of rates of buckets, and nothing aggregates its result but topk."""
    for where, text in expressions():
        for node, above in nodes(parse(text)):
            if not (isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile"):
                continue
            buckets = node.args[1]
            assert isinstance(buckets, promql_parser.AggregateExpr), where
            assert str(buckets.op) == "sum", where
            assert "le" in buckets.modifier.labels, where
            assert all(name.endswith("_bucket") for name in names_in(buckets)), where
            outer = [str(n.op) for n in above if isinstance(n, promql_parser.AggregateExpr)]
            assert set(outer) <= {"topk", "bottomk"}, where


def test_buckets_are_compared_at_one_boundary_or_kept_apart() -> None:
    """An aggregation over buckets keeps `le`, or picks one boundary."""
    for where, text in expressions():
        for selector, above in selectors(text):
            if not selector.name.endswith("_bucket"):
                continue
            picked = any(m.name == "le" and "!" not in str(m.op) for m in selector.matchers.matchers)
            aggregations = [n for n in above if isinstance(n, promql_parser.AggregateExpr)]
            assert picked or "le" in aggregations[-1].modifier.labels, where


def _strip(expression: Any) -> Any:
    while isinstance(expression, promql_parser.ParenExpr):
        expression = expression.expr
    return expression


def _never_zero(expression: Any) -> bool:
    expression = _strip(expression)
    if isinstance(expression, promql_parser.NumberLiteral):
        return bool(expression.val > 0)
    if not isinstance(expression, promql_parser.BinaryExpr):
        return False
    if str(expression.op) == ">":
        bound = _strip(expression.rhs)
        return isinstance(bound, promql_parser.NumberLiteral) and bound.val >= 0
    # a positive number plus what cannot be negative (a product or quotient of rates)
    return str(expression.op) == "+" and _never_zero(expression.lhs)


def test_no_ratio_divides_by_zero() -> None:
    """Every divisor is filtered by `> 0`: no traffic is nothing, not a figure and not infinity."""
    for where, text in expressions():
        for node, _ in nodes(parse(text)):
            if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "/":
                assert _never_zero(node.rhs), (where, text)


def test_absence_is_not_hidden() -> None:
    """No query fills what is absent with a constant."""
    for where, text in expressions():
        assert "vector(" not in text, where
        assert "absent(" not in text, where


def test_gpus_are_counted_once() -> None:
    """Several sidecars of a host may publish the same GPU: before a sum, mean or count, it is reduced by uuid."""
    for where, text in expressions():
        for selector, above in selectors(text):
            if not selector.name.startswith("nvidia_gpu_"):
                continue
            aggregations = [n for n in above if isinstance(n, promql_parser.AggregateExpr)]
            if any(str(n.op) in ("sum", "avg", "count") for n in aggregations):
                inner = aggregations[-1]
                assert str(inner.op) in ("max", "min"), (where, text)
                assert "uuid" in inner.modifier.labels, (where, text)


def test_engine_queries_carry_the_model_and_target_variables() -> None:
    """A metric with the labels target, model_name or engine is filtered by their variables."""
    for target in prometheus_targets():
        for name, body in re.findall(r"(\w+)\{([^}]*)\}", target.target["expr"]):
            metric = metric_of(name)
            for label, variable in (("target", "target"), ("model_name", "model"), ("engine", "engine")):
                if metric is not None and label in metric.labels:
                    assert f'{label}=~"${variable}"' in body, (target.where, name)


def test_no_panel_draws_one_line_per_replica_without_a_limit() -> None:
    """A graph whose lines are replicas or GPUs shows the ten (heatmap: forty) that matter, however large the fleet."""
    for board, panel in every_panel():
        if panel["type"] not in ("timeseries", "heatmap", "state-timeline"):
            continue
        for target in panel["targets"]:
            expr = target.get("expr", "")
            if expr and result_labels(parse(expr)) & {"instance", "target", "uuid", "engine"}:
                assert re.match(r"(topk|bottomk)\((10|20|40), ", expr), (board["uid"], panel["title"], expr)


def test_an_unknown_metric_is_an_error_at_generation() -> None:
    """A query for a metric that the contract does not have names the nearest one."""
    with pytest.raises(GenerateError, match="vllm_num_running_requests"):
        contract_metric("vllm_num_runing_requests")
    with pytest.raises(GenerateError):
        contract_metric("vllm_num_running_requests_bucket")
