"""The contract: every metric llmobs publishes, as data.

Dashboards, alerts and documentation may name only what is here. `METRICS` maps a name to its `Metric`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llmobs.catalog.engine import ENGINE_METRICS
from llmobs.catalog.gpu import GPU_METRICS
from llmobs.catalog.model import ENGINE, GPU, TARGET, Metric, MetricKind
from llmobs.catalog.own import OWN_METRICS
from llmobs.errors import nearest

__all__ = ["ENGINE", "GPU", "METRICS", "TARGET", "Metric", "MetricKind", "metric", "series_names"]

METRICS: Mapping[str, Metric] = MappingProxyType({m.name: m for m in (*ENGINE_METRICS, *GPU_METRICS, *OWN_METRICS)})


def metric(name: str) -> Metric:
    """Return the metric called `name`; KeyError names the nearest one."""
    try:
        return METRICS[name]
    except KeyError:
        raise KeyError(f"{name!r} is not a metric of the contract{nearest(name, METRICS)}") from None


def series_names(m: Metric) -> tuple[str, ...]:
    """Return the names under which the metric appears in Prometheus: itself, or a histogram's three series."""
    return (f"{m.name}_bucket", f"{m.name}_sum", f"{m.name}_count") if m.kind == "histogram" else (m.name,)
