"""Scenarios: what traffic a simulated server gets, how it is built, and what happens to it, as data.

A scenario is a YAML file whose keys are the fields below; `llmobs.simulate.files` reads it. Times are seconds since the
scenario began (scaled by the server's speed), lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A log-normal distribution of token counts with the given mean; `spread` is the sigma of its logarithm."""

    mean: float
    spread: float = 0.6
    minimum: int = 1
    maximum: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Shared beginnings of prompts (system prompts): each `family` has one of `tokens` tokens.

    `share` is the part of requests that begin with one; `skew` is the exponent of the families' popularity (0: equal).
    """

    families: int = 8
    tokens: int = 512
    share: float = 0.8
    skew: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests per second and what they are like. Ratios are parts of all requests, 0–1.

    The rate is ``rate × (1 − daily_swing × cos(2π t ÷ day_seconds))``: quietest at t = 0. A finished request is
    followed by the next turn of its conversation with `follow_up_ratio`, after `think_seconds` on average (at least 1).
    Clients leave after `timeout_seconds`, and `abort_ratio` of them after `abort_after_seconds` on average if the
    answer takes longer.
    """

    rate: float = 2.0
    daily_swing: float = 0.0
    day_seconds: float = 86400.0
    prompt: Lengths = Lengths(mean=300, minimum=16)
    output: Lengths = Lengths(mean=200)
    max_tokens: int = 1024
    prefix: Prefixes = Prefixes()
    follow_up_ratio: float = 0.0
    think_seconds: float = 8.0
    timeout_seconds: float | None = None
    abort_ratio: float = 0.0
    abort_after_seconds: float = 2.0
    error_ratio: float = 0.0
    invalid_ratio: float = 0.0
    context_length_ratio: float = 0.0
    corrupted_ratio: float = 0.0
    structured_ratio: float = 0.0
    structured_compile_seconds: float = 0.3
    multimodal_ratio: float = 0.0
    multimodal_hit_ratio: float = 0.5
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one engine step: base + per prefill token + per decoding sequence + per token of their context.

    `draft_seconds` is added per draft token of speculative decoding; `jitter` is the relative standard deviation.
    """

    base_seconds: float = 0.012
    prefill_seconds_per_token: float = 4e-5
    decode_seconds_per_sequence: float = 1.2e-4
    context_seconds_per_token: float = 6e-8
    draft_seconds: float = 0.0015
    jitter: float = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding with `tokens` drafts a step; position i is accepted with ``acceptance × decay^i``.

    `tokens` 0 switches it off. A position counts only when all before it were accepted.
    """

    tokens: int = 0
    acceptance: float = 0.8
    decay: float = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """A KV connector behind the local prefix cache: `hit_ratio` of the look-ups find their prompt there."""

    enabled: bool = False
    hit_ratio: float = 0.4
    bytes_per_second: float = 8e9
    failure_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine as vLLM's flags would build it. `kv_bytes_per_token` and `parameters` (a count) price its work."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 4096
    max_model_len: int = 16384
    kv_blocks: int = 9600
    block_size: int = 16
    prefix_caching: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_loras: int = 4
    speculation: Speculation = Speculation()
    connector: Connector = Connector()
    step: StepTime = StepTime()
    overhead_seconds: float = 0.004
    kv_cache_metrics: bool = False
    mfu_metrics: bool = False
    kv_bytes_per_token: float = 131072.0
    parameters: float = 8e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One served model: `engines` data-parallel ranks; `imbalance` 0 routes to the least loaded, 1 all to the first."""

    name: str = "demo/chat-8b"
    engines: int = 1
    imbalance: float = 0.0
    engine: EngineSettings = EngineSettings()
    traffic: Traffic = Traffic()


#: Kinds of events that last for `duration` seconds, and of those that happen at one instant.
LASTING = ("traffic", "slow", "draft_mismatch", "hang", "sleep", "memory_leak", "gpu_throttle")
INSTANT = ("oom", "host_oom", "engine_death", "restart", "abort_all", "oversized", "gpu_xid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens at `at`, and again `every` so many seconds, for `duration` seconds where it lasts.

    `traffic` changes what is named (factors multiply, the rest replaces). `slow` multiplies the step time by `factor`,
    `draft_mismatch` the acceptance. `oversized` sends one request of `tokens` prompt tokens. `memory_leak` loses
    `bytes_per_second` of GPU memory. `gpu_xid` reports error `code`. `model` limits an event to one model.
    """

    kind: str = ""
    at: float = 0.0
    every: float | None = None
    duration: float = 60.0
    model: str | None = None
    factor: float = 1.0
    level: int = 1
    tokens: int = 0
    bytes_per_second: float = 0.0
    code: int = 79
    rate_factor: float | None = None
    prompt_factor: float | None = None
    output_factor: float | None = None
    prefix_share: float | None = None
    timeout_seconds: float | None = None
    abort_ratio: float | None = None
    error_ratio: float | None = None
    invalid_ratio: float | None = None
    context_length_ratio: float | None = None
    imbalance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The simulated GPUs, one per engine. Bytes, watts, °C."""

    name: str = "Simulated GPU 48GB"
    memory_bytes: float = 48 * 2**30
    weights_bytes: float = 16.1e9
    workspace_bytes: float = 4.2e9
    idle_watts: float = 60.0
    max_watts: float = 450.0
    ambient_celsius: float = 31.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole scenario.

    `load_seconds` is how long nothing listens after a start, `exit_seconds` how long a server with a dead engine still
    answers, `down_seconds` how long nothing runs then. `canary` names the scenario that a second server runs beside
    this one where a pair is wanted.
    """

    name: str = ""
    description: str = ""
    version: str = "0.32.0"
    seed: int = 1
    models: tuple[ModelSettings, ...] = (ModelSettings(),)
    events: tuple[Event, ...] = ()
    load_seconds: float = 12.0
    load_at_start: bool = False
    exit_seconds: float = 2.0
    down_seconds: float = 4.0
    gpu: GpuSettings = GpuSettings()
    canary: str | None = None
