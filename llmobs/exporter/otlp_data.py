"""Samples of the contract → OTLP metrics, as values of the OpenTelemetry SDK.

Each metric keeps its name and labels. Units are chosen so that a backend that derives Prometheus names from OTLP
(Prometheus' own OTLP receiver, Mimir, the Collector) arrives at the same name again: it appends a unit that the name
does not hold yet, and ``_ratio`` to a gauge of unit 1. Three histograms are also sent under the names of the
OpenTelemetry GenAI conventions for servers (development status), in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from llmobs import __version__
from llmobs.catalog import METRICS, Metric
from llmobs.snapshot import Histogram

#: Name, label values in the order of the metric's labels, value.
Sample: TypeAlias = "tuple[str, tuple[str, ...], float | Histogram]"

#: Samples, and the constant labels that belong to all of them.
Group: TypeAlias = "tuple[Iterable[Sample], Mapping[str, str]]"

#: Metric of the contract → its name in the GenAI conventions.
GENAI = {
    "vllm_e2e_request_latency_seconds": "gen_ai.server.request.duration",
    "vllm_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "vllm_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
}

# What the unit of a metric is in UCUM, and the word that a name carries when it already says so.
_UNITS = {
    "seconds": ("s", "seconds"),
    "bytes": ("By", "bytes"),
    "joules": ("J", "joules"),
    "watts": ("W", "watts"),
    "celsius": ("Cel", "celsius"),
    "hertz": ("Hz", "hertz"),
    "ratio": ("1", "ratio"),
}


def metrics_data(groups: Iterable[Group], resource: Resource, *, start_ns: int, now_ns: int) -> sdk.MetricsData:
    """Return one export: cumulative since `start_ns` (the daemon's start), as of `now_ns`, both Unix nanoseconds."""
    points: dict[str, list[sdk.NumberDataPoint | sdk.HistogramDataPoint]] = {}
    genai: dict[str, list[sdk.HistogramDataPoint]] = {}
    for samples, constant in groups:
        for name, values, value in samples:
            metric = METRICS[name]
            attributes = _attributes(metric, values, constant)
            if isinstance(value, Histogram):
                point = _histogram(value, attributes, start_ns, now_ns)
                points.setdefault(name, []).append(point)
                if name in GENAI:
                    semantic = _histogram(value, genai_attributes(attributes), start_ns, now_ns)
                    genai.setdefault(GENAI[name], []).append(semantic)
            elif math.isfinite(value):
                start = start_ns if metric.kind == "counter" else 0
                points.setdefault(name, []).append(sdk.NumberDataPoint(attributes, start, now_ns, float(value)))
    found = [_metric(METRICS[name], made) for name, made in points.items()]
    found += [
        sdk.Metric(name, "From vLLM, see docs/contract.md.", "s", _histogram_data(made)) for name, made in genai.items()
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("llmobs", __version__), found, "")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])


def unit(metric: Metric) -> str:
    """Return the metric's unit in UCUM; empty where saying it would make a backend rename the metric."""
    if metric.unit in _UNITS:
        code, word = _UNITS[metric.unit]
        return code if word in metric.name.split("_") else ""
    # Annotations in braces say what is counted, and are not part of any name.
    return f"{{{metric.unit}}}" if metric.unit.isalpha() and metric.unit not in ("bool", "info") else ""


def genai_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the GenAI conventions, with ours that keep two servers apart.

    vLLM's histograms do not tell chat from completions, so that the operation is the custom value ``inference``.
    """
    rest = {key: value for key, value in attributes.items() if key != "model_name"}
    return {
        **rest,
        "gen_ai.operation.name": "inference",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": attributes.get("model_name", ""),
    }


def _attributes(metric: Metric, values: tuple[str, ...], constant: Mapping[str, str]) -> dict[str, str]:
    own = {key: value for key, value in zip(metric.labels, values, strict=True) if value}
    return {**{key: value for key, value in constant.items() if key not in metric.labels}, **own}


def _metric(metric: Metric, points: list[sdk.NumberDataPoint | sdk.HistogramDataPoint]) -> sdk.Metric:
    data: sdk.Gauge | sdk.Sum | sdk.Histogram
    if metric.kind == "histogram":
        data = _histogram_data([p for p in points if isinstance(p, sdk.HistogramDataPoint)])
    else:
        numbers = [p for p in points if isinstance(p, sdk.NumberDataPoint)]
        if metric.kind == "counter":
            data = sdk.Sum(numbers, sdk.AggregationTemporality.CUMULATIVE, True)
        else:
            data = sdk.Gauge(numbers)
    return sdk.Metric(metric.name, metric.help, unit(metric), data)


def _histogram_data(points: list[sdk.HistogramDataPoint]) -> sdk.Histogram:
    return sdk.Histogram(points, sdk.AggregationTemporality.CUMULATIVE)


def _histogram(
    histogram: Histogram, attributes: Mapping[str, str], start_ns: int, now_ns: int
) -> sdk.HistogramDataPoint:
    """Return a data point: OTLP counts each bucket for itself, where the contract counts up to a bound."""
    cumulative = [round(count) for count in histogram.counts]
    counts = [after - before for before, after in zip([0, *cumulative], cumulative)]
    return sdk.HistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=cumulative[-1] if cumulative else 0,
        sum=histogram.sum,
        bucket_counts=counts,
        explicit_bounds=[b for b in histogram.bounds if math.isfinite(b)],
        # Not known. The encoder leaves None out; the SDK's own types do not foresee that.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
        exemplars=[
            # Without a span id the encoder leaves the trace id out as well; zero is OTLP's "none".
            SdkExemplar({}, e.value, int(e.timestamp * 1e9), 0, int(e.trace_id, 16))
            for e in histogram.exemplars
            if e is not None
        ],
    )
