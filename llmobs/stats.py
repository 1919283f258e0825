"""The `/stats` document (`llmobs.stats/v1`): what runs inside vLLM writes it, the sidecar reads it.

`encode` and `decode` are each other's inverse for every fact of `EngineStats`. The schema only ever grows: unknown
fields are ignored, missing ones are absent facts. `docs/stats.md` describes it field by field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from llmobs.errors import TargetError
from llmobs.snapshot import FACTS, EngineSnapshot, EngineStats, Exemplar, Histogram

SCHEMA = "llmobs.stats/v1"

#: Most engines, and most label values of one fact, that are read from one document.
MAX_ENGINES = 1024
MAX_KEYS = 1024

# Upper bounds of our own histograms, in seconds. Each holds every bound of vLLM's histogram of the same quantity
# (so that one objective fits both sources) and adds the lower ones that production values need.
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, math.inf)
TTFT_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2,
    2.5, 3, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560, math.inf,
)  # fmt: skip
INTER_TOKEN_BOUNDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, math.inf,
)  # fmt: skip
REQUEST_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, *_LONG)
QUEUE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, *_LONG)
PREFILL_BOUNDS = QUEUE_BOUNDS
DECODE_BOUNDS = REQUEST_BOUNDS
DECODE_STEP_BOUNDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1, 2.5, 10, math.inf,
)  # fmt: skip
STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, math.inf)


def length_bounds(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to `max_model_len` that vLLM uses for its token histograms, and +Inf."""
    bounds: list[float] = []
    exponent = 0
    while True:
        for mantissa in (1, 2, 5):
            value = mantissa * 10**exponent
            if value > max_model_len:
                return (*bounds, math.inf)
            bounds.append(value)
        exponent += 1


def encode(snapshot: EngineSnapshot) -> dict[str, Any]:
    """Return the document as JSON-ready values. Infinite bounds are written as the text "+Inf"."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "time": snapshot.wall_time,
        "version": snapshot.version,
        "start_time": snapshot.start_time,
        "instance": snapshot.instance,
        "simulated": snapshot.simulated,
        "partial": snapshot.partial,
        # The two names that published runbooks read, for the whole server.
        "gpu_cache_usage": _mean(e.kv_cache_usage for e in snapshot.engines),
        "num_total_gpu_blocks": _total(e.kv_cache_blocks for e in snapshot.engines),
        "http_responses": dict(snapshot.http_responses),
        "hook_active": dict(snapshot.hook_active),
        "hook_errors": dict(snapshot.hook_errors),
        "dropped": dict(snapshot.dropped),
        "engines": [_encode_engine(e) for e in snapshot.engines],
    }
    return document


def decode(document: Any, *, taken_at: float, wall_time: float) -> EngineSnapshot:
    """Return the snapshot in `document`, as parsed from JSON by a peer that is not trusted.

    Raises TargetError (reason ``parse``) when it is not an `llmobs.stats/v1` document. A single malformed fact is
    absent, and does not cost the others.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise TargetError("parse", f"/stats is not a {SCHEMA} document; update llmobs where vLLM runs, or here")
    engines = document.get("engines")
    if not isinstance(engines, list) or len(engines) > MAX_ENGINES:
        raise TargetError("parse", f"/stats: 'engines' is not a list of at most {MAX_ENGINES} engines")
    return EngineSnapshot(
        taken_at=taken_at,
        wall_time=wall_time,
        source="stats",
        dialect=SCHEMA,
        version=_text(document.get("version")),
        start_time=_number(document.get("start_time")),
        instance=_text(document.get("instance")),
        simulated=document.get("simulated") is True,
        partial=document.get("partial") is True,
        http_responses=_numbers(document.get("http_responses")),
        hook_active=_numbers(document.get("hook_active")),
        hook_errors=_numbers(document.get("hook_errors")),
        dropped=_numbers(document.get("dropped")),
        engines=tuple(_decode_engine(e) for e in engines if isinstance(e, dict)),
    )


def _encode_engine(engine: EngineStats) -> dict[str, Any]:
    out: dict[str, Any] = {"model_name": engine.model_name, "engine": engine.engine, "config": dict(engine.config)}
    for name, fact in FACTS.items():
        value = getattr(engine, name)
        if value is None or (fact.by and not value):
            continue
        if fact.kind == "histogram":
            out[name] = {k: _encode_histogram(h) for k, h in value.items()} if fact.by else _encode_histogram(value)
        else:
            out[name] = dict(value) if fact.by else value
    return out


def _encode_histogram(histogram: Histogram) -> dict[str, Any]:
    out: dict[str, Any] = {
        "bounds": [b if math.isfinite(b) else "+Inf" for b in histogram.bounds],
        "counts": list(histogram.counts),
        "sum": histogram.sum,
    }
    if any(histogram.exemplars):
        out["exemplars"] = [e and [e.trace_id, e.value, e.timestamp] for e in histogram.exemplars]
    return out


def _decode_engine(document: Mapping[str, Any]) -> EngineStats:
    facts: dict[str, Any] = {}
    for name, fact in FACTS.items():
        value = document.get(name)
        if value is None:
            continue
        if fact.kind == "histogram":
            facts[name] = _histograms(value) if fact.by else _histogram(value)
        else:
            facts[name] = _numbers(value) if fact.by else _number(value)
    config = document.get("config")
    return EngineStats(
        model_name=_text(document.get("model_name")) or "",
        engine=_text(document.get("engine")) or "0",
        prefix_cache_unit="tokens",
        config={k: v for k, v in config.items() if isinstance(v, str)} if isinstance(config, dict) else {},
        **facts,
    )


def _number(value: Any) -> float | None:
    """Return a fact's number: finite and, as all facts are, not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no end
        return None
    return number if 0 <= number < math.inf else None


def _text(value: Any) -> str | None:
    return value[:256] if isinstance(value, str) else None


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MAX_KEYS:
        return {}
    return {k[:256]: n for k, v in value.items() if (n := _number(v)) is not None}


def _histograms(value: Any) -> dict[str, Histogram]:
    if not isinstance(value, dict) or len(value) > MAX_KEYS:
        return {}
    return {k[:256]: h for k, v in value.items() if (h := _histogram(v)) is not None}


def _histogram(value: Any) -> Histogram | None:
    if not isinstance(value, dict):
        return None
    bounds, counts, total = value.get("bounds"), value.get("counts"), _number(value.get("sum"))
    if not isinstance(bounds, list) or not isinstance(counts, list) or total is None:
        return None
    if not 0 < len(bounds) == len(counts) <= MAX_KEYS or bounds[-1] != "+Inf":
        return None
    finite = [_number(b) for b in bounds[:-1]]
    cumulative = [_number(c) for c in counts]
    if None in finite or None in cumulative:
        return None
    edges = (*(b for b in finite if b is not None), math.inf)
    heights = tuple(c for c in cumulative if c is not None)
    if any(a >= b for a, b in zip(edges, edges[1:])) or any(a > b for a, b in zip((0.0, *heights), heights)):
        return None
    return Histogram(edges, heights, total, _exemplars(value.get("exemplars"), len(edges)))


def _exemplars(value: Any, size: int) -> tuple[Exemplar | None, ...]:
    if not isinstance(value, list) or len(value) != size:
        return ()
    return tuple(_exemplar(e) for e in value)


def _exemplar(value: Any) -> Exemplar | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    trace_id, observed, timestamp = _text(value[0]), _number(value[1]), _number(value[2])
    if trace_id is None or observed is None or timestamp is None:
        return None
    if len(trace_id) != 32 or not set(trace_id) <= set("0123456789abcdef"):
        return None
    return Exemplar(trace_id, observed, timestamp)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
