"""Every metric of the contract about an engine can really be published, and real pages give what they must."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from llmobs.catalog.engine import ENGINE_METRICS
from llmobs.derive.publish import samples
from llmobs.derive.target import Limits, advance, begin
from llmobs.snapshot import (
    FACTS,
    EngineSnapshot,
    EngineStats,
    Evidence,
    GpuSnapshot,
    GpuStats,
    Histogram,
    OomEvent,
    Reading,
)  # fmt: skip
from tests.derive.conftest import NO_EVIDENCE, Rules
from tests.engine.conftest import captured, read

KEYS = {"sleep_state": "awake", "failed": "oom", "oom": "cuda"}


def full_engine(growth: float) -> EngineStats:
    """An engine that says everything; counters grow with `growth`."""
    facts: dict[str, Any] = {}
    for name, fact in FACTS.items():
        one: Any = 0.5 if fact.kind == "gauge" else 100.0 + growth
        if fact.kind == "histogram":
            one = Histogram((1.0, math.inf), (growth, growth), growth / 10)
        facts[name] = {KEYS.get(name, "x"): one} if fact.by else one
    facts |= {
        "kv_cache_usage": 0.1 + growth / 1000, "waiting": 3.0, "running": 1.0, "seconds_since_progress": 0.5,
        "prompt_tokens_by_source": {"local_compute": growth, "local_cache_hit": growth},
        "e2e_latency": Histogram((1.0, math.inf), (growth, growth), growth), "kv_cache_bytes": 10.0,
        "config": {"block_size": "16"}, "prefix_cache_unit": "tokens",
    }  # fmt: skip
    return EngineStats(model_name="m", **facts)


def test_every_metric_about_an_engine_can_be_published() -> None:
    """A source that says everything, with GPU and evidence, gives every metric of the contract's first part."""
    state = begin(0.0)
    for at in (1.0, 2.0, 3.0):
        snapshot = EngineSnapshot(
            taken_at=at, wall_time=at, source="stats", dialect="x", engines=(full_engine(at * 10),), start_time=1.0,
            http_responses={"2xx": at}, hook_active={"a": 1.0}, hook_errors={"a": 0.0}, dropped={"spans": 0.0},
        )  # fmt: skip
        gpu = GpuStats(
            uuid="u", index=0, up=True, watched=True, energy_joules=at * 5, utilization=0.0, memory_total_bytes=50.0
        )
        gpus = GpuSnapshot(taken_at=at, wall_time=at, available=True, devices=(gpu,))
        evidence = Evidence(
            can_tell=frozenset({"cuda", "host"}), ooms=(OomEvent("cuda", "log", at),),
            host_memory_used_bytes=1.0, host_memory_limit_bytes=2.0,
        )  # fmt: skip
        reading = Reading(taken_at=at, wall_time=at, snapshot=snapshot, health=200)
        state = advance(state, reading, evidence, Limits(), gpus)
        Rules().check(samples(state, "t", Limits())[0])
    missing = {m.name for m in ENGINE_METRICS} - {s.metric for s in samples(state, "t", Limits())[0]}
    assert not missing


def golden(name: str) -> dict[tuple[str, ...], float]:
    """Return what one captured page publishes: (metric, labels after the target's …) → value or count."""
    page = read(captured(name), version="0.32.0")
    state = begin(0.0)
    for at in (1.0, 2.0):
        snapshot = dataclasses.replace(page, taken_at=at, wall_time=at)
        state = advance(state, Reading(taken_at=at, wall_time=at, snapshot=snapshot, health=200), NO_EVIDENCE, Limits())
    found = samples(state, "t", Limits())[0]
    Rules().check(found)
    return {(s.metric, *s.labels[1:]): s.value.count if isinstance(s.value, Histogram) else s.value for s in found}


TINY = ("tiny", "0")
COMMON = {
    ("vllm_up",): 1,
    ("vllm_health_status",): 1,
    ("vllm_engine_restarts_total",): 0,
    ("vllm_num_running_requests", *TINY): 0,
    ("vllm_request_waiting_queue_length", *TINY): 0,
    ("vllm_request_waiting_by_reason", *TINY, "capacity"): 0,
    ("vllm_request_waiting_by_reason", *TINY, "deferred"): 0,
    ("vllm_kv_cache_usage_ratio", *TINY): 0,
    ("vllm_kv_cache_free_ratio", *TINY): 1,
    ("vllm_engine_stalled", *TINY): 0,
    ("vllm_prefix_cache_hits_total", *TINY): 0,
    ("vllm_gpu_cache_hit_rate_since_start", *TINY): 0,
    ("vllm_preemptions_total", *TINY): 0,
    ("vllm_sleep_state", *TINY, "awake"): 1,
    ("vllm_request_failed_total", *TINY, "error"): 0,
    ("vllm_request_failed_total", *TINY, "rejected"): 0,
    ("vllm_request_failed_total", *TINY, "engine_dead"): 0,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vllm-0.32-single-small-load",
            {
                ("vllm_prompt_tokens_total", *TINY): 102,
                ("vllm_prefill_tokens_computed_total", *TINY): 102,
                ("vllm_prefill_tokens_cached_total", *TINY): 0,
                ("vllm_time_to_first_token_seconds", *TINY): 4,
                ("vllm_request_finished_total", *TINY, "length"): 4,
                ("vllm_request_failed_total", *TINY, "abort"): 0,
                ("vllm_http_responses_total", "2xx"): 4,
                ("llmobs_target_unmapped_series",): 0,
            },
        ),
        (
            "vllm-0.32-single",
            {
                ("vllm_time_to_first_token_seconds", *TINY): 3,
                ("vllm_request_finished_total", *TINY, "length"): 2,
                ("vllm_request_failed_total", *TINY, "abort"): 1,  # the client that went away
                ("vllm_http_responses_total", "2xx"): 3,
                ("vllm_http_responses_total", "4xx"): 2,
                ("llmobs_target_unmapped_series",): 2,
            },
        ),
        (
            "vllm-0.32-multiprocess",
            {
                ("vllm_prompt_tokens_total", *TINY): 36,
                ("vllm_decode_tokens_total", *TINY): 60,
                ("vllm_decode_tokens_per_second_total", *TINY): 60,
                ("vllm_time_to_first_token_seconds", *TINY): 12,
                ("vllm_request_finished_total", *TINY, "length"): 12,
            },
        ),
    ],
)
def test_the_captured_pages_give_their_known_figures(name: str, expected: dict[tuple[str, ...], float]) -> None:
    """What the servers behind the captured pages had done is what is published."""
    found = golden(name)
    assert {key: found.get(key) for key in {**COMMON, **expected}} == {**COMMON, **expected}


def test_what_the_multiprocess_page_cannot_know_is_absent() -> None:
    """No start time, no clients that went away, no rates without work, no oom."""
    found = {key[0] for key in golden("vllm-0.32-multiprocess")}
    assert not found & {"vllm_start_time_seconds", "vllm_oom_total", "vllm_gpu_cache_hit_rate", "vllm_phase_ratio"}
    assert ("vllm_request_failed_total", *TINY, "abort") not in golden("vllm-0.32-multiprocess")
