"""vLLM's `/metrics` page of a simulated server, in the dialect of a version.

The look follows real pages: labels sorted, numbers in Go's notation, `_created` gauges behind counters and histograms
in single-process mode, histograms as buckets, count, sum there and sum, buckets, count in multi-process mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from llmobs.simulate.dialects import FINISHED_SINCE, Dialect, bounds
from llmobs.simulate.engine import Engine
from llmobs.simulate.families import FAMILIES, Family
from llmobs.simulate.scenario import ModelSettings
from llmobs.simulate.server import SimulatedVllm
from llmobs.simulate.tally import HTTP_BOUNDS, rebin
from llmobs.snapshot import EngineSnapshot, EngineStats, Histogram

Labels = dict[str, str]

#: The endpoint whose responses are counted; clients of the simulation only chat.
HANDLER = "/v1/chat/completions"

#: Process ids of the API servers that multi-process mode tells apart.
PIDS = ("101", "102")


def number(value: float) -> str:
    """Return a value as Prometheus clients write it: 1.0, 1.5e+09, +Inf."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    if math.isnan(value):
        return "NaN"
    text = repr(float(value))
    whole, dot, rest = text.partition(".")
    if dot and "e" not in text and len(whole) > 6:
        digits = (whole[1:] + rest).rstrip("0")
        return f"{whole[0]}.{digits or '0'}e+{len(whole) - 1:02d}" if digits else f"{whole[0]}e+{len(whole) - 1:02d}"
    return text


def page(server: SimulatedVllm, snapshot: EngineSnapshot, dialect: Dialect) -> str:
    """Return the page. `snapshot` is `facts.snapshot(server)` of the same moment."""
    return "".join(_Page(server, snapshot, dialect).lines())


class _Page:
    def __init__(self, server: SimulatedVllm, snapshot: EngineSnapshot, dialect: Dialect) -> None:
        self.server, self.snapshot, self.dialect = server, snapshot, dialect
        self.created = (snapshot.start_time or 0.0) + 0.5
        self.parts = list(zip(snapshot.engines, server.engines()))
        if dialect.version < (0, 10, 0) and not dialect.v0:
            # Each engine's logger unregistered the one before it: only a model's last rank was left.
            self.parts = [p for p in self.parts if p[1][1] == p[1][0].engines - 1]

    def lines(self) -> Iterator[str]:
        dialect = self.dialect
        if not dialect.forked_page and not dialect.ray:
            yield from self._process()
        for family in FAMILIES:
            if dialect.shows(family):
                yield from self._family(family)
        yield from self._lora()
        yield from self._config()
        if dialect.has_http:
            yield from self._http()

    # vLLM's families

    def _family(self, family: Family) -> Iterator[str]:
        name = self._name(family.name)
        body = "".join(self._samples(family, name))
        if not body:
            return
        yield from self._head(name + ("_total" if family.kind == "counter" else ""), family.kind, family.help)
        yield body
        if family.kind != "gauge" and not self.dialect.forked_page and not self.dialect.ray:
            yield from self._head(f"{name}_created", "gauge", family.help)
            yield from (f"{name}_created{_text(labels)} {number(self.created)}\n" for labels in self._series(family))

    def _name(self, name: str) -> str:
        if not self.dialect.ray:
            return f"vllm:{name}"
        return f"ray_vllm_{name}" if self.dialect.version >= (0, 11, 0) else f"ray_vllm:{name}"

    def _head(self, name: str, kind: str, text: str) -> Iterator[str]:
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"

    def _labels(self, stats: EngineStats, *, per_engine: bool = True) -> Labels:
        labels = {"model_name": stats.model_name}
        if per_engine and self.dialect.has_engine_label:
            labels["engine"] = stats.engine
        if self.dialect.ray:
            labels["WorkerId"] = "5f6c0a" + self.snapshot.instance[:10] if self.snapshot.instance else ""
            if self.dialect.version >= (0, 12, 0):
                labels["ReplicaId"] = "replica-0"
        return labels

    def _values(self, family: Family) -> Iterator[tuple[Labels, float | Histogram]]:
        """Yield (labels, value) of every series of the family."""
        done: set[str] = set()
        for stats, (model, _, engine) in self.parts:
            if family.when and not getattr(stats, family.when):
                continue
            value = self._value(family, stats, model, engine)
            if value is None:
                continue
            labels = self._labels(stats, per_engine=family.per_engine)
            if not family.per_engine:
                if stats.model_name in done:
                    continue
                done.add(stats.model_name)
                value = self._summed(family, stats.model_name)
            if isinstance(value, Mapping):
                for key, part in value.items():
                    if family.by is None:
                        if key == family.key:
                            yield labels, part
                    elif self._has(family, key):
                        yield {**labels, family.by: key}, part
            else:
                yield labels, value

    def _has(self, family: Family, key: str) -> bool:
        return family.value != "finished" or FINISHED_SINCE[key] <= self.dialect.version

    def _summed(self, family: Family, model: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for stats, _ in self.parts:
            if stats.model_name == model:
                for key, value in getattr(stats, family.value).items():
                    total[key] = total.get(key, 0.0) + value
        return total

    def _value(
        self, family: Family, stats: EngineStats, model: ModelSettings, engine: Engine
    ) -> float | Histogram | Mapping[str, float] | None:
        if family.value in _COMPUTED:
            return self._computed(family.value, stats)
        value: float | Histogram | Mapping[str, float] | None = getattr(stats, family.value)
        if isinstance(value, Histogram):
            wanted = bounds(family.bounds, self.dialect.version)
            if family.value == "step_tokens":
                value = engine.tally.step_tokens.snapshot()
            return rebin(value, wanted) if wanted else value
        if family.scale == "blocks" and isinstance(value, (int, float)):
            return value // model.engine.block_size
        return value

    def _computed(self, name: str, stats: EngineStats) -> float | None:
        if name == "zero":
            return 0.0
        if name == "minus_one":
            return -1.0
        if name == "lifetime_hit_rate":
            return (stats.prefix_hits or 0) / stats.prefix_queries if stats.prefix_queries else 0.0
        if name == "prompt_tokens_cached":
            return sum(v for source, v in stats.prompt_tokens_by_source.items() if source != "local_compute")
        if name in ("prompt_rate", "generation_rate"):
            # The real ones are means over the last few seconds; over the life of the server they mean the same here.
            life = max(1.0, self.server.now - self.server.process.ready_at)
            return ((stats.prompt_tokens if name == "prompt_rate" else stats.generation_tokens) or 0.0) / life
        drafted, accepted, drafts = stats.spec_draft_tokens, stats.spec_accepted_tokens, stats.spec_drafts
        if not drafted or accepted is None or not drafts:
            return None
        emitted = accepted + drafts
        return {
            "acceptance_rate": accepted / drafted,
            "spec_efficiency": emitted / (drafted + drafts),
            "spec_emitted": emitted,
        }[name]

    def _series(self, family: Family) -> Iterator[Labels]:
        return (labels for labels, _ in self._values(family))

    def _samples(self, family: Family, name: str) -> Iterator[str]:
        dialect = self.dialect
        per_pid = dialect.multiprocess and family.pid_until is not None and dialect.version <= family.pid_until
        for labels, value in self._values(family):
            if isinstance(value, Histogram):
                if dialect.ray and not value.count:
                    continue
                yield from _histogram(name, labels, value, sum_first=dialect.forked_page)
            elif family.kind == "counter":
                if dialect.ray and not value:
                    continue  # Ray's wrapper swallows inc(0)
                yield f"{name}_total{_text(labels)} {number(value)}\n"
            elif per_pid and not dialect.v0:
                # Every API server repeats what it heard last; the second one has heard nothing for a while.
                yield from (f"{name}{_text({**labels, 'pid': pid})} {number(value)}\n" for pid in PIDS)
            else:
                yield f"{name}{_text(labels)} {number(value)}\n"

    def _lora(self) -> Iterator[str]:
        since = (0, 6, 4) if self.dialect.v0 else (0, 8, 0)
        adapters = [(s, m) for s, (m, _, _) in self.parts if m.traffic.adapters]
        if not adapters or self.dialect.version < since:
            return
        name = self._name("lora_requests_info")
        yield from self._head(name, "gauge", "Running stats on lora requests.")
        for stats, model in adapters:
            labels = {
                "max_lora": str(model.engine.max_loras),
                "waiting_lora_adapters": ",".join(stats.lora_waiting),
                "running_lora_adapters": ",".join(stats.lora_running),
            }
            yield f"{name}{_text(labels)} {number(self.snapshot.wall_time)}\n"

    def _config(self) -> Iterator[str]:
        dialect = self.dialect
        if dialect.ray or (not dialect.v0 and dialect.version < (0, 8, 0)):
            return
        yield from self._head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        for stats, (model, _, _) in self.parts:
            engine = model.engine
            labels = {
                "block_size": str(engine.block_size),
                "cache_dtype": "auto",
                "enable_prefix_caching": str(engine.prefix_caching),
                "gpu_memory_utilization": "0.92",
                # With data parallelism vLLM writes the sum over all ranks on each of them.
                "num_gpu_blocks": str(engine.kv_blocks * model.engines),
                "num_gpu_blocks_override": "None",
                "sliding_window": "None",
            }
            if not dialect.v0 and dialect.version < (0, 9, 0):
                labels["num_gpu_blocks"] = "None"
            if not dialect.v0 and dialect.version >= (0, 9, 0):
                labels["engine"] = stats.engine
            if dialect.version >= (0, 24, 0):
                labels["kv_cache_size_tokens"] = str(engine.kv_blocks * engine.block_size)
                labels["kv_cache_max_concurrency"] = str(engine.kv_blocks * engine.block_size / engine.max_model_len)
            if dialect.version >= (0, 32, 0):
                labels["kv_cache_memory_bytes"] = f"{stats.kv_cache_bytes or 0:.0f}"
            yield f"vllm:cache_config_info{_text(labels)} 1.0\n"

    # What is not vLLM's own

    def _process(self) -> Iterator[str]:
        busy = sum(e.busy_seconds for _, _, e in self.server.engines())
        for name, kind, text, value in (
            ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", 3.1e9),
            (
                "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.",
                self.snapshot.start_time or 0.0,
            ),
            ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", 20 + busy),
            ("process_open_fds", "gauge", "Number of open file descriptors.", 64.0),
            ("process_max_fds", "gauge", "Maximum number of open file descriptors.", 65535.0),
        ):  # fmt: skip
            yield from self._head(name, kind, text)
            yield f"{name} {number(value)}\n"
        yield from self._head("python_info", "gauge", "Python platform information")
        labels = {"implementation": "CPython", "major": "3", "minor": "11", "patchlevel": "9", "version": "3.11.9"}
        yield f"python_info{_text(labels)} 1.0\n"

    def _http(self) -> Iterator[str]:
        tallies = [engine.tally for _, _, engine in self.server.engines()]
        name = "http_requests_total"
        yield from self._head(name, "counter", "Total number of requests by method, status and handler.")
        durations = [0] * len(HTTP_BOUNDS)
        seconds = 0.0
        for status in ("2xx", "4xx", "5xx"):
            count = sum(t.http[status] for t in tallies)
            if count:
                yield f"{name}{_text({'handler': HANDLER, 'method': 'POST', 'status': status})} {number(count)}\n"
            for tally in tallies:
                spread = tally.http_seconds[status]
                durations = [a + b for a, b in zip(durations, spread.counts)]
                seconds += spread.total
        whole = Histogram(HTTP_BOUNDS, tuple(accumulate(durations)), seconds)
        first = self.dialect.forked_page
        for name, labels, histogram in (
            ("http_request_duration_highr_seconds", {}, whole),
            (
                "http_request_duration_seconds",
                {"handler": HANDLER, "method": "POST"},
                rebin(whole, (0.1, 0.5, 1, math.inf)),
            ),
        ):
            yield from self._head(name, "histogram", "Latency of responses.")
            yield from _histogram(name, labels, histogram, sum_first=first)


_COMPUTED = frozenset(
    (
        "zero", "minus_one", "lifetime_hit_rate", "prompt_tokens_cached", "prompt_rate", "generation_rate",
        "acceptance_rate", "spec_efficiency", "spec_emitted",
    )
)  # fmt: skip


def _text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(labels[name])}"' for name in sorted(labels)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram(name: str, labels: Labels, histogram: Histogram, *, sum_first: bool) -> Iterable[str]:
    buckets = [
        f"{name}_bucket{_text({**labels, 'le': number(bound)})} {number(count)}\n"
        for bound, count in zip(histogram.bounds, histogram.counts)
    ]
    total = f"{name}_sum{_text(labels)} {number(histogram.sum)}\n"
    count = f"{name}_count{_text(labels)} {number(histogram.count)}\n"
    return (total, *buckets, count) if sum_first else (*buckets, count, total)
