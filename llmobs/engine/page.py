"""vLLM's `/metrics` page → `EngineSnapshot`.

Reading the page is the daemon's hot path, so the work is split. A `Plan` takes the page's series apart once: each
series as written gets a slot, each fact of each engine knows its slots. The next page of the same server has the same
series, and reading it is one split and one dictionary look-up per line. A series that the plan does not know (the
server registered a new one) makes a new plan.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmobs.engine import text
from llmobs.engine.capacity import capacity, prefix_cache_unit
from llmobs.engine.dialect import API_HANDLERS, CONFIG_LABELS, FAMILIES, UNUSED, Family
from llmobs.errors import TargetError
from llmobs.snapshot import FACTS, EngineSnapshot, EngineStats, Histogram

#: Most series of one page, and most engines; a page beyond that is refused instead of filling memory.
MAX_SERIES = 100_000
MAX_ENGINES = 1024
#: Longest label value that is passed on; what is beyond is cut.
MAX_LABEL = 256

_PREFIX = re.compile(r"(?:ray_)?vllm[:_]")
_FOREIGN = ("python_", "process_", "http_", "ray_", "go_", "otel_")
_UNUSED_PREFIXES = tuple(name[:-1] for name in UNUSED if name.endswith("*"))

# Sample name without prefix → (family, part). Part: "" for a value, "bucket", "sum", "count" for a histogram.
_SAMPLES: dict[str, tuple[Family, str]] = {}
_KNOWN: set[str] = {name for name in UNUSED if not name.endswith("*")}
for _family in FAMILIES:
    if _family.kind == "histogram":
        for _part in ("bucket", "sum", "count"):
            _SAMPLES[f"{_family.name}_{_part}"] = (_family, _part)
    else:
        _SAMPLES[_family.name] = (_family, "")
        if _family.kind == "counter":
            _SAMPLES[f"{_family.name}_total"] = (_family, "")


@dataclass(slots=True)
class _HistogramSlots:
    """Slots of one histogram: (bound, slot) pairs in ascending order once the plan is made; sum and count."""

    buckets: dict[float, list[int]] = field(default_factory=dict)
    sums: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    bounds: tuple[float, ...] = ()


#: What feeds one fact (or one key of it): rank, then slots.
_Slots = tuple[int, Any]


class Plan:
    """How to read the pages of one server; see the module's docstring."""

    def __init__(self, page: str) -> None:
        self._slots: dict[str, int] = {}
        self._values: list[float] = []
        self._facts: dict[tuple[str, str], dict[tuple[str, str | None], _Slots]] = {}
        self._families: dict[tuple[str, str], dict[str, int]] = {}
        self._configs: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._http: dict[str, list[int]] = {}
        self._start_time: list[int] = []
        self._ray = False
        self._colon = False
        self._pids = False
        #: Whether every line is ``series value``; timestamps or exemplars make reading slower.
        self._plain = True
        self.unmapped = 0
        self._compile(page)

    # Making the plan

    def _compile(self, page: str) -> None:
        parsed: list[tuple[int, str, dict[str, str]]] = []
        for line in page.split("\n"):
            if not line or line[0] == "#":
                continue
            found = text.sample(line)
            if found is None:
                continue  # a broken line costs only itself
            series, _ = found
            if line.rpartition(" ")[0] != series:
                self._plain = False
            if series in self._slots:
                continue
            if len(self._slots) >= MAX_SERIES:
                raise TargetError("too_large", f"the page has more than {MAX_SERIES} series")
            slot = len(self._slots)
            # Replicas of one model write the same series: their plans share the text.
            self._slots[sys.intern(series)] = slot
            apart = text.series(series)
            if apart is not None:
                parsed.append((slot, *apart))
        self._values = [math.nan] * len(self._slots)
        replicas = {labels["ReplicaId"] for _, _, labels in parsed if labels.get("ReplicaId")}
        for slot, name, labels in parsed:
            self._assign(slot, name, labels, several_replicas=len(replicas) > 1)
        if len(self._facts) > MAX_ENGINES:
            raise TargetError("too_large", f"the page has more than {MAX_ENGINES} engines")
        self._finish()

    def _assign(self, slot: int, name: str, labels: dict[str, str], *, several_replicas: bool) -> None:
        prefix = _PREFIX.match(name)
        if prefix is None:
            self._assign_foreign(slot, name, labels)
            return
        bare = name[prefix.end() :]
        self._ray |= name.startswith("ray_")
        self._colon |= ":" in prefix[0]
        engine = labels.get("engine", "")
        if several_replicas:
            engine = f"{labels.get('ReplicaId', '')}/{engine or '0'}"
        engine = engine[:MAX_LABEL]
        if bare in ("cache_config_info", "cache_config"):
            self._configs[engine] = (slot, {name: value[:MAX_LABEL] for name, value in labels.items()})
            return
        known = _SAMPLES.get(bare)
        if known is None:
            self._count_unmapped(bare)
            return
        family, part = known
        if family.label and family.label not in labels:
            self.unmapped += 1
            return
        key = labels[family.label][:MAX_LABEL] if family.label else family.key
        self._pids |= "pid" in labels
        facts = self._facts.setdefault((labels.get("model_name", "")[:MAX_LABEL], engine), {})
        rank, slots = facts.get((family.fact, key), (family.rank, None))
        if family.rank > rank:
            return
        if family.rank < rank or slots is None:
            slots = _HistogramSlots() if part else []
        facts[family.fact, key] = (family.rank, slots)
        if not part:
            slots.append(slot)
        elif part == "bucket":
            bound = _bound(labels.get("le", ""))
            if bound is not None:
                slots.buckets.setdefault(bound, []).append(slot)
        else:
            (slots.sums if part == "sum" else slots.counts).append(slot)

    def _assign_foreign(self, slot: int, name: str, labels: dict[str, str]) -> None:
        if name == "process_start_time_seconds":
            self._start_time.append(slot)
        elif name == "http_requests_total" and labels.get("handler", "").startswith(API_HANDLERS):
            if labels.get("method", "POST") == "POST":
                self._http.setdefault(labels.get("status", "")[:MAX_LABEL], []).append(slot)
        elif not name.startswith(_FOREIGN):
            self.unmapped += 1

    def _count_unmapped(self, bare: str) -> None:
        base = re.sub(r"_(?:created|total|bucket|sum|count)$", "", bare)
        if bare.endswith("_created") or bare in _KNOWN or base in _KNOWN or bare.startswith(_UNUSED_PREFIXES):
            return
        self.unmapped += 1

    def _finish(self) -> None:
        for facts in self._facts.values():
            for _, slots in facts.values():
                if isinstance(slots, _HistogramSlots):
                    slots.buckets = dict(sorted(slots.buckets.items()))
                    slots.bounds = tuple(slots.buckets)
        self._spread_model_facts()

    def _spread_model_facts(self) -> None:
        """Give the facts that a server counts per model, without an `engine` label, to the model's only engine.

        With several engines they stay under the engine "", which is published without that label.
        """
        for model in {model for model, engine in self._facts if not engine}:
            others = [engine for name, engine in self._facts if name == model and engine]
            if len(others) == 1:
                self._facts[model, others[0]].update(self._facts.pop((model, "")))
            elif not others:
                self._facts[model, "0"] = self._facts.pop((model, ""))

    # Reading a page

    def read(self, page: str) -> bool:
        """Take the page's values; return False when it holds a series this plan does not know."""
        values = [math.nan] * len(self._slots)
        slots = self._slots
        plain = self._plain
        for line in page.split("\n"):
            if not line or line[0] == "#":
                continue
            if plain:
                series, _, number = line.rpartition(" ")
                slot = slots.get(series)
                if slot is None:
                    if text.sample(line) is None:
                        continue
                    return False
                try:
                    # As in `text.sample`: float() also takes "1_0".
                    values[slot] = float(number) if "_" not in number else math.nan
                except ValueError:
                    continue
            else:
                found = text.sample(line)
                if found is None:
                    continue
                slot = slots.get(found[0])
                if slot is None:
                    return False
                values[slot] = found[1]
        self._values = values
        return True

    def snapshot(self, *, taken_at: float, wall_time: float, version: str | None) -> EngineSnapshot:
        """Return what the last page said. Raises TargetError (empty) when no engine is on it."""
        found = (self._engine(model, engine, facts, version) for (model, engine), facts in sorted(self._facts.items()))
        # An engine that the plan knows and this page does not has no facts.
        engines = tuple(engine for engine in found if engine is not None)
        if not engines:
            raise TargetError(
                "empty",
                "the page has no vLLM series: the server may still be loading, run with --disable-log-stats, "
                "or not be vLLM",
            )
        start = [v for v in (self._values[s] for s in self._start_time) if math.isfinite(v)]
        return EngineSnapshot(
            taken_at=taken_at,
            wall_time=wall_time,
            source="metrics",
            dialect=self.dialect,
            version=version,
            engines=engines,
            start_time=min(start) if start else None,
            # process_* exists in single-process mode only; with several processes the gauges have different ages.
            consistent=bool(start) and not self._pids,
            unmapped_series=self.unmapped,
            http_responses={s: count for s, slots in self._http.items() if (count := self._sum(slots)) is not None},
        )

    @property
    def dialect(self) -> str:
        """A word for people: which generation of vLLM's names the page speaks."""
        names = {fact for facts in self._facts.values() for fact, _ in facts}
        v0 = "cpu_kv_cache_usage" in names or "swapped" in names
        word = "v0" if v0 else "v1"
        spelling = "ray" if self._ray else "colon" if self._colon else "underscore"
        return (
            f"vllm-{word}" + ("" if spelling == "colon" else f"-{spelling}") + ("-multiprocess" if self._pids else "")
        )

    def _engine(
        self, model: str, engine: str, facts: Mapping[tuple[str, str | None], _Slots], version: str | None
    ) -> EngineStats | None:
        found: dict[str, Any] = {}
        for (name, key), (_, slots) in facts.items():
            fact = FACTS[name]
            value: Any
            if isinstance(slots, _HistogramSlots):
                value = self._histogram(slots)
            else:
                value = self._maximum(slots) if fact.kind == "gauge" else self._sum(slots)
            if value is None:
                continue
            if fact.by:
                found.setdefault(name, {})[key] = value
            else:
                found[name] = value
        if not found:
            return None
        config = self._config(engine)
        found = {**capacity(config, engines=len(self._facts)), **found}
        rank, _ = facts.get(("prefix_queries", None), (0, None))
        unit = prefix_cache_unit(old_names=rank > 0, version=version)
        if unit == "blocks" and (size := found.get("kv_cache_block_size")) is not None:
            # One unit for good: a counter must not change it when vLLM is upgraded.
            unit = "tokens"
            for name in ("prefix_queries", "prefix_hits"):
                if name in found:
                    found[name] *= size
        return EngineStats(
            model_name=model,
            engine=engine,
            prefix_cache_unit=unit,
            config={ours: config[theirs] for theirs, ours in CONFIG_LABELS.items() if theirs in config},
            **found,
        )

    def _config(self, engine: str) -> Mapping[str, str]:
        present = {e: labels for e, (slot, labels) in self._configs.items() if not math.isnan(self._values[slot])}
        config = present.get(engine) or present.get("") or {}
        if engine == "0" and not config and len(present) == 1:
            config = next(iter(present.values()))
        return config

    # No fact is ever negative; vLLM says −1 for "off".
    def _sum(self, slots: Iterable[int]) -> float | None:
        known = [v for v in (self._values[s] for s in slots) if 0 <= v < math.inf]
        return sum(known) if known else None

    def _maximum(self, slots: Iterable[int]) -> float | None:
        return max((v for v in (self._values[s] for s in slots) if 0 <= v < math.inf), default=None)

    def _histogram(self, slots: _HistogramSlots) -> Histogram | None:
        values = self._values
        try:
            counts = [values[s[0]] if len(s) == 1 else sum(values[i] for i in s) for s in slots.buckets.values()]
        except IndexError:
            return None
        sums = [v for v in (values[s] for s in slots.sums) if math.isfinite(v)]
        if not sums or not counts or slots.bounds[-1] != math.inf:
            return None
        last = 0.0
        for count in counts:
            if not count >= last:  # also catches NaN
                return None
            last = count
        # vLLM has observed negative queue times (its pull request 56238).
        return Histogram(slots.bounds, tuple(counts), max(0.0, sum(sums))) if math.isfinite(last) else None


def _bound(le: str) -> float | None:
    try:
        bound = float(le)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


class PageReader:
    """Reads the pages of one server one after another, keeping the plan between them."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def read(self, page: str, *, taken_at: float, wall_time: float, version: str | None) -> EngineSnapshot:
        """Return what `page` says. Raises TargetError (parse, empty, too_large)."""
        if "\x00" in page or page.lstrip()[:1] == "<":
            raise TargetError("parse", "the answer is not a metrics page (HTML or binary)")
        # Both formats end every line: a last one without its end was cut, and its number with it.
        page = page[: page.rfind("\n") + 1]
        if self._plan is None or not self._plan.read(page):
            self._plan = Plan(page)
            self._plan.read(page)
        try:
            return self._plan.snapshot(taken_at=taken_at, wall_time=wall_time, version=version)
        except TargetError:
            self._plan = None  # an empty page teaches nothing about the next one
            raise
