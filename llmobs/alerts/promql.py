"""Templates of expressions → PromQL: label lists, thresholds, shortened windows, and matchers of overrides.

Matchers are put into every selector that can carry them: a label of the contract only into metrics that have it, a
label of the scrape (namespace, instance, …) everywhere, and any other label, which a target's constant labels may
have, into metrics of targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Template

from llmobs.alerts.model import GPU, MODEL, REPLICA, SIDECAR, TARGET
from llmobs.alerts.recording import FOREIGN, recorded_labels, shortened
from llmobs.catalog import METRICS, series_names
from llmobs.errors import ConfigError

#: Labels that Prometheus or its service discovery adds to everything it scrapes.
SCRAPE_LABELS = frozenset(
    {"job", "instance", "cluster", "namespace", "pod", "node", "container", "service", "endpoint"}
)

_LABELLED = {
    "model": MODEL,
    "replica": REPLICA,
    "target": TARGET,
    "gpu": GPU,
    "sidecar": SIDECAR,
    "host": SIDECAR,
    "joined": ("instance", "target"),
}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[a-zA-Z_:][a-zA-Z0-9_:]*')
_WINDOW = re.compile(r"\[(\d+[smhdw])\]|\boffset (\d+[smhdw])\b")

#: (label, operator, value) as in PromQL.
Matcher = tuple[str, str, str]


def all_series() -> dict[str, tuple[str, ...]]:
    """Return every series a rule may name with its labels: the contract's, recorded ones, and Prometheus' own `up`."""
    found: dict[str, tuple[str, ...]] = dict(FOREIGN)
    for metric in METRICS.values():
        for name in series_names(metric):
            found[name] = (*metric.labels, "le") if name.endswith("_bucket") else metric.labels
    return {**found, **recorded_labels()}


_SERIES = all_series()


def render(template: str, values: Mapping[str, str], scope: Sequence[str], scale: float) -> str:
    """Return the template with its names filled in and its windows shortened."""
    labels = {name: ", ".join((*scope, *own)) for name, own in _LABELLED.items()}
    text = Template(template).substitute({**labels, **values})
    return _WINDOW.sub(
        lambda m: m.group(0).replace(m.group(1) or m.group(2), shortened(m.group(1) or m.group(2), scale)), text
    )


def selected(expression: str, matchers: Iterable[Matcher], scope: Sequence[str]) -> str:
    """Return the expression with the matchers in every selector that can carry them.

    Raises ConfigError when no selector can, because the override would then do nothing or, worse, everything.
    """
    for matcher in matchers:
        expression, count = _with(expression, matcher, scope)
        if not count:
            raise ConfigError(f"no series of the rule has the label {matcher[0]!r}: {' '.join(expression.split())}")
    return expression


def _with(expression: str, matcher: Matcher, scope: Sequence[str]) -> tuple[str, int]:
    out: list[str] = []
    at = count = 0
    text = f"{matcher[0]}{matcher[1]}{quoted(matcher[2])}"
    for token in _TOKEN.finditer(expression):
        name = token.group(0)
        if token.start() < at or name not in _SERIES or not _carries(name, matcher[0], scope):
            continue
        out.append(expression[at : token.end()])
        at = token.end()
        count += 1
        if expression[at : at + 1] == "{":
            inside = "{" if expression[at + 1] == "}" else "{" + text + ", "
            out.append(inside if inside != "{" else "{" + text)
            at += 1
        else:
            out.append("{" + text + "}")
    out.append(expression[at:])
    return "".join(out), count


def _carries(series: str, label: str, scope: Sequence[str]) -> bool:
    own = _SERIES[series]
    if label in own or label in scope:
        return True
    if series in FOREIGN:
        return label in SCRAPE_LABELS
    if ":" in series:
        return False  # a recording rule has exactly its labels
    contract = any(label in labels for name, labels in _SERIES.items() if ":" not in name and name not in FOREIGN)
    if contract:
        return False
    return label in SCRAPE_LABELS or "target" in own


def quoted(value: str) -> str:
    """Return a PromQL string."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def positive(label: str, values: Sequence[str]) -> Matcher:
    """Return the matcher for any of `values`; a value that begins with ~ is a regular expression."""
    if len(values) == 1 and not values[0].startswith("~"):
        return label, "=", values[0]
    return label, "=~", "|".join(_pattern(v) for v in values)


def negative(label: str, values: Sequence[str]) -> Matcher:
    """Return the matcher for none of `values`."""
    if len(values) == 1 and not values[0].startswith("~"):
        return label, "!=", values[0]
    return label, "!~", "|".join(_pattern(v) for v in values)


def _pattern(value: str) -> str:
    # Only what RE2 gives a meaning to; re.escape would also escape what needs none.
    return value[1:] if value.startswith("~") else re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value)


Match = tuple[tuple[str, tuple[str, ...]], ...]


def cells(match: Match, earlier: Sequence[Match]) -> Iterator[tuple[Matcher, ...]]:
    """Yield selectors that together cover the series of `match` which no earlier match takes, each series once.

    The complement of several labels is split into disjoint parts: not (a and b) = not a, or a and not b.
    """
    parts: list[tuple[Matcher, ...]] = [tuple(positive(label, values) for label, values in match)]
    for other in earlier:
        parts = [(*part, *more) for part in parts for more in _complement(other)]
    for part in parts:
        yield from _sound(part)


def _complement(match: Match) -> Iterator[tuple[Matcher, ...]]:
    for i, (label, values) in enumerate(match):
        yield (*(positive(name, vals) for name, vals in match[:i]), negative(label, values))


def _sound(part: tuple[Matcher, ...]) -> Iterator[tuple[Matcher, ...]]:
    """Yield the part without redundant matchers, or nothing when it can select nothing."""
    unique = tuple(dict.fromkeys(part))
    exact = {label: value for label, op, value in unique if op == "="}
    kept: list[Matcher] = []
    for label, op, value in unique:
        known = exact.get(label)
        if known is None or op == "=":
            if op == "=" and value != known:
                return
            kept.append((label, op, value))
            continue
        hit = known == value if op == "!=" else re.fullmatch(value, known) is not None
        if hit != (op == "=~"):
            return
    yield tuple(kept)
