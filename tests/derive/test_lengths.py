"""Length histograms of models with different contexts can be added."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from llmobs.derive.lengths import BOUNDS, on_common_bounds
from llmobs.snapshot import EngineStats, Exemplar, Histogram
from llmobs.stats import length_bounds


def _observed(lengths: list[int], bounds: tuple[float, ...]) -> Histogram:
    counts = [0] * len(bounds)
    for length in lengths:
        counts[bisect_left(bounds, length)] += 1
    return Histogram(bounds, tuple(accumulate(counts)), float(sum(lengths)))


@given(
    context=st.integers(1, 2_000_000),
    shares=st.lists(st.floats(0, 1), max_size=20),
)
def test_the_same_as_counted_on_the_common_bounds(context: int, shares: list[float]) -> None:
    lengths = [round(share * context) for share in shares]
    bounds = length_bounds(context)
    engine = EngineStats(model_name="m", prompt_length=_observed(lengths, bounds))
    expected = _observed(lengths, max(BOUNDS, bounds, key=len))
    assert on_common_bounds(engine).prompt_length == expected


def test_other_bounds_are_left_alone() -> None:
    for bounds in ((3.0, 10.0, math.inf), (math.inf,)):
        engine = EngineStats(model_name="m", generation_length=Histogram(bounds, (1,) * len(bounds), 2.0))
        assert on_common_bounds(engine) is engine


def test_the_exemplar_of_the_last_bucket_moves_to_the_bucket_that_holds_it() -> None:
    seen = Exemplar("a" * 32, 1010.0, 1.0)
    bounds = length_bounds(1024)
    histogram = Histogram(bounds, (*(0,) * (len(bounds) - 1), 1), 1010.0, (*(None,) * (len(bounds) - 1), seen))
    made = on_common_bounds(EngineStats(model_name="m", prompt_length=histogram)).prompt_length
    assert made is not None
    assert len(made.exemplars) == len(made.bounds)
    assert made.bounds[made.exemplars.index(seen)] == 2000
