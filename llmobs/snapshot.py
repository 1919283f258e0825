"""The values that travel from readers to `derive`: what one vLLM said, and what its GPUs said, at one moment.

An absent fact is ``None`` (or a missing key), never zero. Counters and histograms are cumulative since the engine
started, exactly as the source gave them; making them monotonic over restarts is the work of `derive`.

Each field of `EngineStats` carries its kind and, where it is split by a label, that label's name, in its metadata:
the `/stats` codec (`llmobs.stats`), the dialects (`llmobs.engine`) and the contract (`llmobs.catalog`) all read it
from there, so that a new fact is added in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["gauge", "counter", "histogram"]

#: Why a request failed; closed, so that a dashboard can list it. `abort` and `timeout` are clients that gave up
#: (a timeout when they had waited longer than the limit), `rejected` is admission control, `invalid` and
#: `context_length` are the caller's own mistake.
FAILURE_REASONS = ("oom", "timeout", "abort", "error", "engine_dead", "rejected", "invalid", "context_length")

#: What ran out of memory: the GPU allocator (`cuda`) or the host (`host`).
OOM_KINDS = ("cuda", "host")

#: Phases of a request, in order.
PHASES = ("queue", "prefill", "decode")

#: Upper ends of the token positions that `decode_step_latency` is split by; the label is `token_bucket`.
TOKEN_BUCKETS = ("0", "1", "2-5", "6-20", "21-50", "51-100", "101-500", "501+")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation with the trace it came from. `timestamp` is Unix time in seconds."""

    trace_id: str
    value: float
    timestamp: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram: `counts[i]` observations were ≤ `bounds[i]`; the last bound is +Inf.

    `exemplars` is empty or has one entry per bucket. `sum` is in the unit of the bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    exemplars: tuple[Exemplar | None, ...] = ()

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1] if self.counts else 0.0


def _gauge(by: str | None = None) -> Any:
    return _fact("gauge", by)


def _counter(by: str | None = None) -> Any:
    return _fact("counter", by)


def _histogram(by: str | None = None) -> Any:
    return _fact("histogram", by)


def _fact(kind: Kind, by: str | None) -> Any:
    default: Any = MappingProxyType({}) if by else None
    # A factory, because dataclasses refuse unhashable defaults and mappingproxy is one of them.
    return field(default_factory=lambda: default, metadata={"kind": kind, "by": by})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What one engine (data-parallel rank) of one model reported. Units: seconds, bytes, tokens, ratios 0–1.

    Counts of requests are counts of *sequences*, as everywhere in vLLM: `n=4` is four.
    """

    model_name: str
    engine: str = "0"

    # Scheduler
    running: float | None = _gauge()
    waiting: float | None = _gauge()  # including deferred ones
    waiting_by_reason: Mapping[str, float] = _gauge("reason")  # capacity, deferred
    swapped: float | None = _gauge()  # V0 only
    oldest_waiting_seconds: float | None = _gauge()
    seconds_since_progress: float | None = _gauge()  # since the last step with output while there was work
    max_num_seqs: float | None = _gauge()
    max_num_batched_tokens: float | None = _gauge()
    max_model_len: float | None = _gauge()
    sleep_state: Mapping[str, float] = _gauge("state")  # awake, weights_offloaded, discard_all
    preemptions: float | None = _counter()
    admission_rejections: Mapping[str, float] = _counter("reason")
    step_tokens: Histogram | None = _histogram()  # tokens per engine step; its count is the step heartbeat

    # KV cache and prefix cache
    kv_cache_usage: float | None = _gauge()
    kv_cache_blocks: float | None = _gauge()
    kv_cache_block_size: float | None = _gauge()  # tokens
    kv_cache_tokens: float | None = _gauge()
    kv_cache_bytes: float | None = _gauge()
    cpu_kv_cache_usage: float | None = _gauge()
    prefix_hit_rate_lifetime: float | None = _gauge()  # V0 publishes only this
    prefix_queries: float | None = _counter()  # tokens, unless prefix_cache_unit says blocks
    prefix_hits: float | None = _counter()
    prefix_preempted_queries: float | None = _counter()
    prefix_preempted_hits: float | None = _counter()
    external_queries: float | None = _counter()
    external_hits: float | None = _counter()
    mm_queries: float | None = _counter()  # items
    mm_hits: float | None = _counter()
    kv_block_lifetime: Histogram | None = _histogram()
    kv_block_idle_before_evict: Histogram | None = _histogram()
    kv_block_reuse_gap: Histogram | None = _histogram()
    kv_transfer_failures: Mapping[str, float] = _counter("kind")
    kv_transfer_time: Histogram | None = _histogram()
    kv_offload_bytes: Mapping[str, float] = _counter("direction")  # load, store
    kv_offload_seconds: Mapping[str, float] = _counter("direction")

    # Tokens
    prompt_tokens: float | None = _counter()
    prompt_tokens_by_source: Mapping[str, float] = _counter("source")
    cached_tokens_by_tier: Mapping[str, float] = _counter("tier")
    generation_tokens: float | None = _counter()

    # Requests
    finished: Mapping[str, float] = _counter("finished_reason")
    completed: float | None = _counter()  # HTTP requests answered in full; with `failed` every request is counted once
    failed: Mapping[str, float] = _counter("reason")  # only where the source counts every failure itself
    oom: Mapping[str, float] = _counter("kind")
    corrupted: float | None = _counter()  # NaN logits
    prompts_near_limit: float | None = _counter()
    prompt_outliers: float | None = _counter()
    time_to_first_token: Histogram | None = _histogram()
    inter_token_latency: Histogram | None = _histogram()
    time_per_output_token: Histogram | None = _histogram()  # mean of each request
    e2e_latency: Histogram | None = _histogram()
    queue_time: Histogram | None = _histogram()
    prefill_time: Histogram | None = _histogram()
    decode_time: Histogram | None = _histogram()
    inference_time: Histogram | None = _histogram()
    decode_step_latency: Mapping[str, Histogram] = _histogram("token_bucket")
    prompt_length: Histogram | None = _histogram()
    generation_length: Histogram | None = _histogram()
    max_tokens_param: Histogram | None = _histogram()
    n_param: Histogram | None = _histogram()
    preemptions_per_request: Histogram | None = _histogram()
    prefill_computed_length: Histogram | None = _histogram()

    # Speculative decoding
    spec_drafts: float | None = _counter()
    spec_draft_tokens: float | None = _counter()
    spec_accepted_tokens: float | None = _counter()
    spec_accepted_per_position: Mapping[str, float] = _counter("position")

    # LoRA, model cost, worker memory
    lora_running: Mapping[str, float] = _gauge("adapter")
    lora_waiting: Mapping[str, float] = _gauge("adapter")
    flops: float | None = _counter()
    memory_read_bytes: float | None = _counter()
    memory_written_bytes: float | None = _counter()
    worker_memory_allocated: Mapping[str, float] = _gauge("rank")  # bytes the allocator handed out
    worker_memory_reserved: Mapping[str, float] = _gauge("rank")  # bytes it holds from the driver

    #: "tokens", "blocks", or None when the source does not say which unit the prefix-cache counters have.
    prefix_cache_unit: str | None = None
    #: Settings worth showing (cache dtype, block size, …), values as text.
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Fact:
    """One field of `EngineStats`: its name, kind, and the label it is split by."""

    name: str
    kind: Kind
    by: str | None


#: Every fact of `EngineStats`, by field name, in order.
FACTS: Mapping[str, Fact] = MappingProxyType(
    {f.name: Fact(f.name, f.metadata["kind"], f.metadata["by"]) for f in dataclasses.fields(EngineStats) if f.metadata}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """One answer of one target. `taken_at` is the reader's monotonic clock in seconds, `wall_time` is Unix time."""

    taken_at: float
    wall_time: float
    source: str  # "stats" or "metrics"
    dialect: str  # a word for people: "vllm-v1", "vllm-v0", "ray", "llmobs.stats/v1"
    engines: tuple[EngineStats, ...]
    version: str | None = None
    #: Unix time at which the serving process started; a change is a restart.
    start_time: float | None = None
    #: Name of this run of the server (new at each start), where the source gives one.
    instance: str | None = None
    simulated: bool = False
    #: The source speaks for a part of the server only (one of several API server processes).
    partial: bool = False
    #: Gauges and counters were taken at one instant by one process; False in Prometheus' multi-process mode.
    consistent: bool = True
    #: Series that no dialect knows.
    unmapped_series: int = 0
    #: Responses of the API by status class ("2xx", "4xx", "5xx"), generation endpoints only.
    http_responses: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    #: Hooks of our instrumentation: 1 active, 0 removed; and how often each failed.
    hook_active: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    hook_errors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    #: What our instrumentation had to drop: "spans", "log_lines", "journal_lines".
    dropped: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The outcome of one cycle on one target: a snapshot, or the reason why there is none.

    `health` is the status code of GET /health, None when it did not answer. `error_reason` is one of the contract's
    TARGET_ERRORS. Times as in `EngineSnapshot`.
    """

    taken_at: float
    wall_time: float
    snapshot: EngineSnapshot | None = None
    error_reason: str | None = None
    error_message: str = ""
    health: int | None = None


@dataclass(frozen=True, slots=True)
class OomEvent:
    """One out-of-memory event and how it was recognised (`evidence`: in_process, log, cgroup, memory_full).

    `id` names the event where its source does; events without one are told apart by time. `time` is Unix time.
    """

    kind: str
    evidence: str
    time: float
    id: str | None = None


@dataclass(frozen=True, slots=True)
class LostRequests:
    """What the failure journal says about requests lost at an engine death; see `llmobs.journal`."""

    id: str
    time: float
    instance: str | None
    reason: str
    count: int
    total: int | None
    model_name: str | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was found besides the page since the last cycle. `can_tell` names the OOM kinds it would have shown."""

    can_tell: frozenset[str] = frozenset()
    ooms: tuple[OomEvent, ...] = ()
    lost: tuple[LostRequests, ...] = ()
    #: Memory of the target's cgroup and its limit; None without a cgroup, or without a limit.
    host_memory_used_bytes: float | None = None
    host_memory_limit_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Memory of one class of processes on one GPU. `proof` says how it was recognised: procfs or config."""

    role: str  # engine, worker, foreign
    proof: str
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG GPU instance; `memory_*` in bytes, activity as ratio 0–1."""

    gpu_instance: str
    profile: str
    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStats:
    """What one GPU said. Bytes, ratios 0–1, watts, joules, °C, hertz; None where it could not be read."""

    uuid: str
    index: int
    up: bool
    #: Why it is not up, one word: lost, reset_required, hung, unreadable (it refuses every field), error.
    reason: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    minor: int | None = None
    #: The watched vLLM runs on it; None when that is not known. `watched_proof` says how it is known.
    watched: bool | None = None
    watched_proof: str = "none"

    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None  # without the reserved part; with it when that is None
    memory_free_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    memory_unaccounted_bytes: float | None = None  # used, but owned by no visible process
    processes: tuple[GpuProcess, ...] = ()

    utilization: float | None = None
    memory_utilization: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None

    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None  # cumulative
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    temperature_thresholds: Mapping[str, float] = field(default_factory=dict)  # shutdown, slowdown, memory_max, gpu_max
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)  # graphics, sm, memory
    clocks_max_hertz: Mapping[str, float] = field(default_factory=dict)
    clock_event_reasons: Mapping[str, float] = field(default_factory=dict)  # reason → 0/1, the whole closed set
    fan_ratio: float | None = None
    performance_state: float | None = None

    ecc_errors: Mapping[str, float] = field(default_factory=dict)  # corrected, uncorrected since driver load
    ecc_errors_lifetime: Mapping[str, float] = field(default_factory=dict)  # aggregate, survives reloads
    remapped_rows: Mapping[str, float] = field(default_factory=dict)  # corrected, uncorrected
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: float | None = None  # 0 none … 7 system reboot

    pcie_bytes: Mapping[str, float] = field(default_factory=dict)  # tx, rx; cumulative, unwrapped
    pcie_replays: float | None = None
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    nvlink_bytes: Mapping[str, float] = field(default_factory=dict)  # tx, rx; cumulative

    xid_errors: Mapping[str, float] = field(default_factory=dict)  # code → count since our start
    xid_last_seen: Mapping[str, float] = field(default_factory=dict)  # code → Unix time
    xid_listening: bool | None = None  # Xid errors of this GPU would be seen
    mig_instances: tuple[MigInstance, ...] = ()
    #: Fields this device refused → why: unsupported, no_permission, unknown, error, suspect.
    unsupported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """All GPUs at one moment. `available` is False without driver or device, and `reason` then says why in a word.

    Reasons: no_library, no_driver, version_mismatch, no_permission, no_devices, hung, disabled, error.
    """

    taken_at: float
    wall_time: float
    available: bool
    reason: str | None = None
    detail: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    xid_listener_up: bool | None = None
    devices: tuple[GpuStats, ...] = ()
    #: Xid errors that came without a device we know, by code, and when they were last seen (Unix time).
    unknown_xid_errors: Mapping[str, float] = field(default_factory=dict)
    unknown_xid_last_seen: Mapping[str, float] = field(default_factory=dict)
    #: Failed NVML calls since our start, by kind of error; refusals that are a device's nature are not counted.
    nvml_errors: Mapping[str, float] = field(default_factory=dict)
