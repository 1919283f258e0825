"""What one simulated engine has counted since it started, and how that becomes `EngineStats`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmobs import stats
from llmobs.catalog.engine import ADMISSION_REASONS, CACHE_TIERS, FINISH_REASONS, PROMPT_SOURCES
from llmobs.instrument.histogram import Accumulator
from llmobs.simulate.scenario import EngineSettings
from llmobs.snapshot import FAILURE_REASONS, OOM_KINDS, TOKEN_BUCKETS, Exemplar, Histogram

#: Part of the requests that carry a trace id, shown as exemplars.
TRACED = 0.2

# Fine enough for every version's bounds of tokens per step: CUDA-graph capture sizes up to 0.8.4, powers of two after.
_STEP_FINE = tuple(sorted({1, 2, 4, *range(8, 513, 8), *(2**i for i in range(15))}))
_LENGTHS = stats.length_bounds(1_000_000)
_N = (1.0, 2.0, 5.0, 10.0, 20.0, math.inf)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, math.inf)
RESIDENCY_BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, math.inf,
)  # fmt: skip

_POSITION_ENDS = (0, 1, 5, 20, 50, 100, 500)


def position_bucket(position: int) -> int:
    """Return the index into TOKEN_BUCKETS of a token's position in the output, counted from 0."""
    for index, end in enumerate(_POSITION_ENDS):
        if position <= end:
            return index
    return len(_POSITION_ENDS)


@dataclass(slots=True)
class Gauges:
    """What the scheduler said after its last step. It does not change while the engine stands still."""

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    usage: float = 0.0
    lora_running: dict[str, float] = field(default_factory=dict)
    lora_waiting: dict[str, float] = field(default_factory=dict)


class Tally:
    """Counters and histograms of one engine. `wall` maps the simulation's seconds to Unix time, for exemplars."""

    def __init__(self, settings: EngineSettings, rng: random.Random, wall: Callable[[float], float]) -> None:
        self._rng, self._wall = rng, wall
        self._max_model_len = settings.max_model_len
        self.gauges = Gauges()
        self.arrived = 0
        self.preemptions = 0
        self.prefix_queries = self.prefix_hits = 0
        self.preempted_queries = self.preempted_hits = 0
        self.external_queries = self.external_hits = 0
        self.mm_queries = self.mm_hits = 0
        self.transfer_failures = 0
        self.offload_bytes = {"load": 0.0, "store": 0.0}
        self.offload_seconds = {"load": 0.0, "store": 0.0}
        self.generation_tokens = 0
        self.prompt_sources = dict.fromkeys(PROMPT_SOURCES, 0)
        self.cached_tiers = dict.fromkeys(CACHE_TIERS, 0)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.failed = dict.fromkeys(FAILURE_REASONS, 0)
        self.oom = dict.fromkeys(OOM_KINDS, 0)
        self.rejections = dict.fromkeys(ADMISSION_REASONS, 0)
        self.corrupted = 0
        self.near_limit = self.outliers = 0
        self.drafts = self.draft_tokens = self.accepted = 0
        self.accepted_at = [0] * settings.speculation.tokens
        self.flops = self.read_bytes = self.written_bytes = 0.0
        self.step_tokens = Accumulator((*_STEP_FINE, math.inf))
        self.ttft = Accumulator(stats.TTFT_BOUNDS)
        self.inter_token = Accumulator(stats.INTER_TOKEN_BOUNDS)
        self.per_output_token = Accumulator(stats.INTER_TOKEN_BOUNDS)
        self.e2e = Accumulator(stats.REQUEST_BOUNDS)
        self.queue = Accumulator(stats.QUEUE_BOUNDS)
        self.prefill = Accumulator(stats.PREFILL_BOUNDS)
        self.decode = Accumulator(stats.DECODE_BOUNDS)
        self.inference = Accumulator(stats.REQUEST_BOUNDS)
        self.prompt_length = Accumulator(_LENGTHS)
        self.generation_length = Accumulator(_LENGTHS)
        self.max_tokens = Accumulator(_LENGTHS)
        self.n = Accumulator(_N)
        self.request_preemptions = Accumulator(_PREEMPTIONS)
        self.computed_length = Accumulator(_LENGTHS)
        self.transfer_time = Accumulator(stats.QUEUE_BOUNDS)
        self.block_lifetime = Accumulator(RESIDENCY_BOUNDS)
        self.block_idle = Accumulator(RESIDENCY_BOUNDS)
        self.block_gap = Accumulator(RESIDENCY_BOUNDS)
        self.steps = [Accumulator(stats.DECODE_STEP_BOUNDS) for _ in TOKEN_BUCKETS]
        self.http = {"2xx": 0, "4xx": 0, "5xx": 0}
        self.http_seconds = {status: Accumulator(HTTP_BOUNDS) for status in self.http}

    def trace_id(self) -> str | None:
        """Return the trace id of a new request, or None for those that are not traced."""
        return f"{self._rng.getrandbits(128):032x}" if self._rng.random() < TRACED else None

    def observe(self, histogram: Accumulator, value: float, trace: str | None, at: float) -> None:
        """Count `value`, with an exemplar when the request is traced."""
        histogram.observe(value)
        if trace is not None:
            histogram.exemplify(value, trace, self._wall(at))

    def responded(self, status: str, seconds: float) -> None:
        """Count one HTTP response of a generation endpoint."""
        self.http[status] += 1
        self.http_seconds[status].observe(seconds)

    def lengths(self, histogram: Accumulator) -> Histogram:
        """Return a token histogram with the bounds that this engine's longest sequence gives it."""
        return rebin(histogram.snapshot(), stats.length_bounds(self._max_model_len))

    def decode_steps(self) -> Mapping[str, Histogram]:
        """Return the step latency by token position; positions without a token are left out."""
        return {name: a.snapshot() for name, a in zip(TOKEN_BUCKETS, self.steps) if any(a.counts)}


#: Bounds of `http_request_duration_highr_seconds` in the instrumentator that vLLM uses.
HTTP_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60, math.inf,
)  # fmt: skip


def rebin(histogram: Histogram, bounds: tuple[float, ...]) -> Histogram:
    """Return `histogram` with fewer bounds. Every bound asked for must be one it has; exemplars move along."""
    index = {bound: i for i, bound in enumerate(histogram.bounds)}
    places = [index[bound] for bound in bounds]
    exemplars: tuple[Exemplar | None, ...] = ()
    if any(histogram.exemplars):
        starts = [0, *(place + 1 for place in places[:-1])]
        exemplars = tuple(
            next((e for e in reversed(histogram.exemplars[start : place + 1]) if e), None)
            for start, place in zip(starts, places)
        )
    return Histogram(bounds, tuple(histogram.counts[place] for place in places), histogram.sum, exemplars)
