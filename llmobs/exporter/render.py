"""Samples → the text and OpenMetrics exposition formats.

The samples of one target are rendered once per cycle, not once per scrape, and scrapes only join the pieces. What
does not change between cycles (names, labels, bucket bounds) is kept as text, so that a line costs one concatenation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmobs.catalog import METRICS, Metric
from llmobs.snapshot import Exemplar, Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ORDER = {name: i for i, name in enumerate(METRICS)}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Chunk:
    """The lines of one metric of one target. `exemplars` is the same with exemplars, None when there are none."""

    lines: str
    exemplars: str | None = None


Page = Mapping[str, Chunk]


class Renderer:
    """Renders the samples of one target (or of the GPUs, or of llmobs itself), cycle after cycle."""

    def __init__(self, constant_labels: Mapping[str, str] | None = None) -> None:
        self._constant = dict(constant_labels or {})
        self._series: dict[tuple[str, tuple[str, ...]], str] = {}
        self._buckets: dict[tuple[str, tuple[str, ...]], tuple[tuple[float, ...], list[str]]] = {}

    def render(self, samples: Iterable[tuple[str, tuple[str, ...], float | Histogram]]) -> Page:
        """Return the samples as lines by metric. Values that are not finite are left out."""
        if len(self._series) > 20_000:
            # Labels that come and go must not fill memory.
            self._series.clear()
            self._buckets.clear()
        lines: dict[str, list[str]] = {}
        exemplars: dict[str, list[str]] = {}
        for name, labels, value in samples:
            out = lines.setdefault(name, [])
            if isinstance(value, Histogram):
                start = len(out)
                self._histogram(out, name, labels, value)
                if any(value.exemplars):
                    with_exemplars = exemplars.setdefault(name, list(out[:start]))
                    self._with_exemplars(with_exemplars, out[start:], value.exemplars)
                elif name in exemplars:
                    exemplars[name].extend(out[start:])
            elif math.isfinite(value):
                out.append(self._prefix(name, labels) + number(value))
        return {
            name: Chunk("\n".join(out) + "\n", "\n".join(exemplars[name]) + "\n" if name in exemplars else None)
            for name, out in lines.items()
            if out
        }

    def _prefix(self, name: str, labels: tuple[str, ...]) -> str:
        key = (name, labels)
        prefix = self._series.get(key)
        if prefix is None:
            prefix = self._series[key] = f"{name}{_braces(self._pairs(name, labels))} "
        return prefix

    def _pairs(self, name: str, labels: tuple[str, ...]) -> list[tuple[str, str]]:
        # An empty value is the same series as none; writing it would only lengthen the page.
        pairs = [(k, v) for k, v in zip(METRICS[name].labels, labels, strict=True) if v]
        own = METRICS[name].labels
        return [*pairs, *((k, v) for k, v in self._constant.items() if k not in own)]

    def _histogram(self, out: list[str], name: str, labels: tuple[str, ...], histogram: Histogram) -> None:
        key = (name, labels)
        bounds, prefixes = self._buckets.get(key, ((), []))
        if bounds != histogram.bounds:
            pairs = self._pairs(name, labels)
            prefixes = [f"{name}_bucket{_braces([*pairs, ('le', bound(b))])} " for b in histogram.bounds]
            prefixes += [f"{name}_sum{_braces(pairs)} ", f"{name}_count{_braces(pairs)} "]
            self._buckets[key] = (histogram.bounds, prefixes)
        out.extend(prefix + number(count) for prefix, count in zip(prefixes, histogram.counts))
        out.append(prefixes[-2] + number(histogram.sum))
        out.append(prefixes[-1] + number(histogram.count))

    @staticmethod
    def _with_exemplars(out: list[str], lines: Sequence[str], exemplars: Sequence[Exemplar | None]) -> None:
        for i, line in enumerate(lines):
            exemplar = exemplars[i] if i < len(exemplars) else None
            if exemplar is None:
                out.append(line)
            else:
                label = f'{{trace_id="{exemplar.trace_id}"}}'
                out.append(f"{line} # {label} {number(exemplar.value)} {exemplar.timestamp:.3f}")


def exposition(pages: Sequence[Page], *, openmetrics: bool) -> str:
    """Return the whole page: each metric once with HELP and TYPE, then the lines of all pages."""
    out: list[str] = []
    for name in sorted({name for page in pages for name in page}, key=_ORDER.__getitem__):
        out.append(_header(METRICS[name], openmetrics=openmetrics))
        for page in pages:
            chunk = page.get(name)
            if chunk is not None:
                out.append(chunk.exemplars if openmetrics and chunk.exemplars else chunk.lines)
    if openmetrics:
        out.append("# EOF\n")
    return "".join(out)


def number(value: float) -> str:
    """Return a number as both formats write it."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def bound(value: float) -> str:
    """Return a bucket bound the way vLLM's own page writes it, so that `le` matches across both: 1.0, 0.25, +Inf."""
    return "+Inf" if math.isinf(value) else repr(float(value))


def _header(metric: Metric, *, openmetrics: bool) -> str:
    # OpenMetrics names a counter's family without _total. Info metrics are gauges in both: their names are fixed.
    name = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
    kind = "gauge" if metric.kind == "info" else metric.kind
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _braces(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{k}="{v.translate(_ESCAPES)}"' for k, v in pairs) + "}" if pairs else ""
