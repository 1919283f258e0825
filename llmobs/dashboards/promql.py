"""PromQL over the contract: selectors that carry the dashboard's variables, and the few query forms that are right.

Every selector is made by `Queries.select`, which looks the metric up in the contract: an unknown name is an error at
generation, and a metric gets exactly those variables whose labels it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmobs.catalog import METRICS, Metric
from llmobs.errors import GenerateError, nearest

#: Label of the contract → the variable that filters it. `job` and `instance` come from Prometheus itself.
LABEL_VARIABLES = {"target": "target", "model_name": "model", "engine": "engine"}

RANGE = "$__rate_interval"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SERIES = re.compile(r"_(?:bucket|sum|count)$")


def contract_metric(series: str) -> Metric:
    """Return the metric of the contract behind a series name. Raises GenerateError when there is none."""
    found = METRICS.get(series)
    if found is None:
        found = METRICS.get(_SERIES.sub("", series))
        if found is not None and found.kind != "histogram":
            found = None
    if found is None:
        raise GenerateError(f"a dashboard asks for {series!r}, which is not in the contract{nearest(series, METRICS)}")
    return found


def metrics_in(expression: str) -> tuple[str, ...]:
    """Return the metrics of the contract that an expression names, in order of appearance."""
    names: dict[str, None] = {}
    for word in _NAME.findall(re.sub(r'"[^"]*"', '""', expression)):
        if word in METRICS:
            names[word] = None
        elif (base := _SERIES.sub("", word)) != word and base in METRICS:
            names[base] = None
    return tuple(names)


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


@dataclass(frozen=True, slots=True)
class Queries:
    """The query forms, for one set of extra variables (labels from outside, such as a cluster)."""

    extra: tuple[str, ...] = ()

    def matchers(self, metric: Metric | None, *more: str) -> str:
        """Return the matchers of a selector, for a metric or, without one, for Prometheus' own series."""
        parts = [f'{label}=~"${label}"' for label in (*self.extra, "job", "instance")]
        if metric is not None:
            parts += [f'{label}=~"${LABEL_VARIABLES[label]}"' for label in metric.labels if label in LABEL_VARIABLES]
        return ", ".join((*parts, *more))

    def select(self, series: str, *more: str) -> str:
        """Return `series` with all variables of its labels and the matchers `more`."""
        return f"{series}{{{self.matchers(contract_metric(series), *more)}}}"

    def rate(self, series: str, *more: str, offset: str = "") -> str:
        """Per-second growth of a counter (or of a histogram's part)."""
        return f"rate({self.select(series, *more)}[{RANGE}]{_offset(offset)})"

    def per_second(self, series: str, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """Sum of the growth per second."""
        return f"sum{_by(by)} ({self.rate(series, *more, offset=offset)})"

    def during_range(self, series: str, *more: str, by: tuple[str, ...] = ()) -> str:
        """Sum of the growth over the whole time range shown."""
        return f"sum{_by(by)} (increase({self.select(series, *more)}[$__range]))"

    def gauge(self, how: str, series: str, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """A gauge, aggregated by `how` (sum, max, min, avg)."""
        return f"{how}{_by(by)} ({self.select(series, *more)}{_offset(offset)})"

    def quantile(self, q: float, histogram: str, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """A quantile over all engines together: buckets are summed before, never quantiles after."""
        buckets = self.per_second(f"{histogram}_bucket", *more, by=("le", *by), offset=offset)
        return f"histogram_quantile({q:g}, {buckets})"

    def buckets(self, histogram: str, *more: str) -> str:
        """What a heatmap draws: observations per second by bucket."""
        return self.per_second(f"{histogram}_bucket", *more, by=("le",))

    def mean(self, histogram: str, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """Mean of the observations; nothing when there were none."""
        return ratio(
            self.per_second(f"{histogram}_sum", *more, by=by, offset=offset),
            self.per_second(f"{histogram}_count", *more, by=by, offset=offset),
        )

    def share_within(self, histogram: str, bound: str, *more: str, by: tuple[str, ...] = ()) -> str:
        """Share of observations at or below a bucket boundary, which is exact: nothing is interpolated."""
        return ratio(
            self.per_second(f"{histogram}_bucket", f'le="{bound}"', *more, by=by),
            self.per_second(f"{histogram}_count", *more, by=by),
        )

    def gpu(self, series: str, *more: str, by: tuple[str, ...] = ()) -> str:
        """A gauge of each GPU once, though several sidecars of one host may all publish it."""
        return f"max by ({', '.join(('uuid', *by))}) ({self.select(series, *more)})"

    def gpu_rate(self, series: str, *more: str, by: tuple[str, ...] = ()) -> str:
        """Growth per second of a counter of each GPU once."""
        return f"max by ({', '.join(('uuid', *by))}) ({self.rate(series, *more)})"


def ratio(part: str, whole: str) -> str:
    """``part ÷ whole``; nothing where the whole is 0, so that no traffic is never shown as a figure."""
    return f"{part} / ({whole} > 0)"


def _offset(offset: str) -> str:
    return f" offset {offset}" if offset else ""
