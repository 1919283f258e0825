"""Token-length histograms of all engines on the same bounds, so that they can be added.

vLLM's bounds are the 1-2-5 series up to the model's own context: 1 … 5,000 for a context of 8,192. `sum by (le)` over
models with different contexts would then lack the shorter ones above their last bound, as if their requests were
longer than everything. No length is above the context, and the next bound of the series is: so it holds all of them,
and so does each after it. That much can be added without guessing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmobs.snapshot import EngineStats, Histogram
from llmobs.stats import length_bounds

#: Bounds that every length histogram has at least.
BOUNDS = length_bounds(1_000_000)

_LENGTHS = ("prompt_length", "generation_length", "max_tokens_param", "prefill_computed_length")


def on_common_bounds(engine: EngineStats) -> EngineStats:
    """Return the engine with its length histograms continued up to `BOUNDS`; those of another series are left alone."""
    found: dict[str, Any] = {}
    for name in _LENGTHS:
        histogram = getattr(engine, name)
        if histogram is not None and (longer := _continued(histogram)) is not histogram:
            found[name] = longer
    return replace(engine, **found) if found else engine


def _continued(histogram: Histogram) -> Histogram:
    known = len(histogram.bounds) - 1
    if not 0 < known < len(BOUNDS) - 1 or histogram.bounds[:known] != BOUNDS[:known]:
        return histogram
    more = len(BOUNDS) - len(histogram.bounds)
    exemplars = histogram.exemplars
    if exemplars:
        # The exemplar of +Inf lies below the next bound as well.
        exemplars = (*exemplars[:known], exemplars[known], *(None,) * more)
    counts = (*histogram.counts[:known], *(histogram.counts[known],) * (more + 1))
    return Histogram(BOUNDS, counts, histogram.sum, exemplars)
