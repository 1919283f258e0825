"""Our own check of the rules: what linters of Prometheus rules check, against the contract.

`problems` returns what is wrong with a set of rule groups, one sentence each; an empty list is a clean bill. Needs
promql-parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import promql_parser as promql

from llmobs.alerts.promql import SCRAPE_LABELS, all_series
from llmobs.catalog import METRICS, series_names
from llmobs.errors import nearest

#: Functions under which a counter makes sense. resets() and changes() count events, the *_over_time ones presence.
_ON_COUNTERS = frozenset(
    {"rate", "irate", "increase", "resets", "changes", "absent", "absent_over_time", "present_over_time"}
)
_NEEDS_COUNTER = frozenset({"rate", "irate", "increase"})
_RANGE_OF_GAUGES = frozenset({"delta", "idelta", "deriv", "predict_linear"})
_COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
_SETS = frozenset({"and", "or", "unless"})

Rule = Mapping[str, Any]


def counters() -> frozenset[str]:
    """Return the series of the contract that only ever grow."""
    return frozenset(name for m in METRICS.values() if m.kind in ("counter", "histogram") for name in series_names(m))


def problems(
    groups: Sequence[Mapping[str, Any]], labels: Sequence[str] = (), scope: Sequence[str] = ("cluster", "namespace")
) -> list[str]:
    """Return what is wrong with the groups.

    `labels` are those from outside the contract that may be used, `scope` those that recording rules keep.
    """
    found: list[str] = []
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    seen: set[tuple[str, str, str]] = set()
    for group in groups:
        for rule in group["rules"]:
            name = rule.get("alert") or rule.get("record")
            found += [f"{name}: {text}" for text in _rule(rule, recorded, frozenset(labels), frozenset(scope))]
            # `for` and texts do not make two rules different: they would be one alert with two opinions.
            key = (str(name), " ".join(rule["expr"].split()), repr(sorted(rule.get("labels", {}).items())))
            if key in seen:
                found.append(f"{name}: the same rule is there twice")
            seen.add(key)
    return found


def _rule(rule: Rule, recorded: set[str], labels: frozenset[str], scope: frozenset[str]) -> Iterator[str]:
    try:
        tree = promql.parse(rule["expr"])
    except ValueError as error:
        yield f"cannot be parsed: {error}"
        return
    yield from _expression(tree, recorded, labels | scope, scope)
    for label, value in rule.get("labels", {}).items():
        if "{{" in str(value):
            yield f"label {label} holds a template: every new value would be a new alert"
    if "alert" not in rule:
        if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", rule["record"]):
            yield "a recording rule is named level:metric:operations"
        return
    if not compares(tree):
        yield "compares nothing, so it fires whenever the series is there"
    if calls(tree, "absent") and not rule.get("for"):
        yield "absent() without for fires at every restart of Prometheus"
    yield from _annotations(rule, tree, scope)


def _annotations(rule: Rule, tree: Any, scope: frozenset[str]) -> Iterator[str]:
    texts = rule.get("annotations")
    if texts is None:
        return
    for needed in ("summary", "description", "runbook_url", "dashboard_url"):
        if not texts.get(needed):
            yield f"has no {needed}"
    left = output_labels(tree, scope)
    if left is None:
        return
    for label in re.findall(r"\$labels\.(\w+)", " ".join(map(str, texts.values()))):
        if label not in left and label not in rule.get("labels", {}):
            yield f"its texts name the label {label}, which the expression does not keep"


def _expression(tree: Any, recorded: set[str], labels: frozenset[str], scope: frozenset[str]) -> Iterator[str]:
    for node, above in walk(tree):
        kind = type(node).__name__
        if kind == "VectorSelector":
            yield from _selector(node, above, recorded, labels)
        elif kind == "BinaryExpr":
            yield from _matching(node, scope)
        elif kind == "Call" and node.func.name == "histogram_quantile":
            inner = unwrap(node.args[1])
            if type(inner).__name__ != "AggregateExpr" or "le" not in _labels_of(inner.modifier):
                yield "histogram_quantile() needs buckets summed by le"


def _selector(node: Any, above: Sequence[Any], recorded: set[str], labels: frozenset[str]) -> Iterator[str]:
    series = all_series()
    name = node.name
    if name not in series or (":" in name and name not in recorded):
        yield f"{name} is neither in the contract nor a recording rule{nearest(str(name), series)}"
        return
    own = series[name]
    allowed = {*own, *labels, *SCRAPE_LABELS}
    for matcher in node.matchers.matchers:
        if matcher.name not in allowed:
            yield f"{name} has no label {matcher.name}{nearest(matcher.name, own)}"
        yield from _matcher(name, matcher)
    function = next((n.func.name for n in reversed(above) if type(n).__name__ == "Call"), "")
    around = [n.func.name for n in above if type(n).__name__ == "Call"]
    is_counter = name in counters()
    if is_counter and not _ON_COUNTERS & set(around) and not _only_identity(above):
        yield f"{name} is a counter: use rate() or increase() on it"
    if not is_counter and function in _NEEDS_COUNTER:
        yield f"{name} is no counter: {function}() of it means nothing"
    if is_counter and function in _RANGE_OF_GAUGES:
        yield f"{name} is a counter: {function}() does not know that it can start again"


def _only_identity(above: Sequence[Any]) -> bool:
    """A counter's bare value is right where only its presence or its first value is asked for: ``x unless x offset``."""
    return any(type(n).__name__ == "BinaryExpr" and str(n.op) == "unless" for n in above)


def _matcher(name: str, matcher: Any) -> Iterator[str]:
    op = str(matcher.op).rsplit(".", 1)[-1]
    if op in ("Re", "NotRe"):
        if not re.search(r"[\\.+*?()|\[\]{}^$]", matcher.value):
            yield f"{matcher.name}=~{matcher.value!r} is no regular expression: write ="
        if matcher.value in (".*", ".+") and op == "NotRe":
            yield f"{matcher.name}!~{matcher.value!r} selects nothing"
    metric = METRICS.get(name)
    values = metric.values.get(matcher.name) if metric is not None else None
    if not values:
        return
    pattern = matcher.value if op in ("Re", "NotRe") else re.escape(matcher.value)
    parts = (
        matcher.value.split("|") if op in ("Re", "NotRe") and re.fullmatch(r"[\w|.-]+", matcher.value) else [pattern]
    )
    for part in parts:
        if not any(re.fullmatch(part, value) for value in values):
            yield f"{name} never has {matcher.name}={part!r}{nearest(part, values)}"


def _matching(node: Any, scope: frozenset[str]) -> Iterator[str]:
    """Vector matching: both sides must have the labels they are matched on, and the same ones without on()."""
    left, right = output_labels(node.lhs, scope), output_labels(node.rhs, scope)
    modifier = node.modifier
    matching = getattr(modifier, "matching", None) if modifier is not None else None
    if left is None or right is None or _scalar(node.lhs) or _scalar(node.rhs):
        return
    if matching is None:
        if left != right and str(node.op) != "or":
            yield f"{node.op} matches {_show(left)} with {_show(right)}: use on() or ignoring()"
        return
    names = set(matching.labels)
    if str(matching.type).endswith(("Include", "On", "By")) or str(matching).startswith("on"):
        for side, has in (("left", left), ("right", right)):
            missing = names - has
            if missing and str(node.op) != "or":
                yield f"{node.op} on {_show(names)}: the {side} side has no {_show(missing)}"
    elif left - names != right - names:
        yield f"{node.op} ignoring {_show(names)} still compares {_show(left)} with {_show(right)}"


def _show(names: Any) -> str:
    return "(" + ", ".join(sorted(names)) + ")"


def walk(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node with those above it."""
    yield node, above
    kind = type(node).__name__
    under = (*above, node)
    if kind == "BinaryExpr":
        yield from walk(node.lhs, under)
        yield from walk(node.rhs, under)
    elif kind == "AggregateExpr":
        yield from walk(node.expr, under)
    elif kind == "Call":
        for argument in node.args:
            yield from walk(argument, under)
    elif kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
        yield from walk(node.expr, under)
    elif kind == "MatrixSelector":
        yield from walk(node.vector_selector, under)


def unwrap(node: Any) -> Any:
    """Return the node inside parentheses."""
    while type(node).__name__ == "ParenExpr":
        node = node.expr
    return node


def calls(tree: Any, name: str) -> bool:
    """Return whether the function is called somewhere."""
    return any(type(n).__name__ == "Call" and n.func.name == name for n, _ in walk(tree))


def compares(node: Any) -> bool:
    """Return whether the expression filters: every way to a result passes a comparison or absent()."""
    node = unwrap(node)
    kind = type(node).__name__
    if kind == "Call":
        return node.func.name in ("absent", "absent_over_time")
    if kind == "AggregateExpr":
        return compares(node.expr)
    if kind != "BinaryExpr":
        return False
    op = str(node.op)
    if op in _COMPARISONS:
        return not getattr(node.modifier, "return_bool", False)
    if op == "or":
        return compares(node.lhs) and compares(node.rhs)
    if op in ("and", "unless"):
        return compares(node.lhs) or (op == "and" and compares(node.rhs)) or op == "unless"
    return compares(node.lhs) or compares(node.rhs)


def _scalar(node: Any) -> bool:
    node = unwrap(node)
    kind = type(node).__name__
    if kind == "NumberLiteral":
        return True
    if kind == "BinaryExpr":
        return _scalar(node.lhs) and _scalar(node.rhs)
    return kind == "Call" and node.func.name in ("time", "scalar", "pi")


def _labels_of(modifier: Any) -> set[str]:
    return set(modifier.labels) if modifier is not None else set()


def output_labels(node: Any, scope: frozenset[str]) -> set[str] | None:
    """Return the labels a vector has; None where that depends on the data (bare series carry labels from outside)."""
    node = unwrap(node)
    kind = type(node).__name__
    if kind == "AggregateExpr":
        if node.modifier is None:
            return set()
        return _labels_of(node.modifier) if str(node.modifier.type).endswith("By") else None
    if kind == "VectorSelector" and ":" in (node.name or ""):
        return {*all_series().get(node.name, ()), *scope}
    if kind == "MatrixSelector":
        return output_labels(node.vector_selector, scope)
    if kind == "UnaryExpr":
        return output_labels(node.expr, scope)
    if kind == "Call":
        if node.func.name == "histogram_quantile":
            inner = output_labels(node.args[1], scope)
            return None if inner is None else inner - {"le"}
        vectors = [a for a in node.args if not _scalar(a)]
        return output_labels(vectors[0], scope) if vectors else set()
    if kind == "BinaryExpr":
        return _binary_labels(node, scope)
    return None


def _binary_labels(node: Any, scope: frozenset[str]) -> set[str] | None:
    if _scalar(node.lhs):
        return output_labels(node.rhs, scope)
    left = output_labels(node.lhs, scope)
    op = str(node.op)
    if _scalar(node.rhs) or op in ("and", "unless"):
        return left
    right = output_labels(node.rhs, scope)
    if left is None or right is None:
        return None
    if op == "or":
        return left | right
    modifier = node.modifier
    if modifier is None or modifier.matching is None:
        return left
    many = str(modifier.card)
    extra = set(modifier.group_labels or ())
    if many.endswith("ManyToOne"):
        return left | extra
    if many.endswith("OneToMany"):
        return right | extra
    return (
        set(modifier.matching.labels)
        if str(modifier.matching).startswith("on")
        else left - set(modifier.matching.labels)
    )
