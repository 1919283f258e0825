"""Thresholds as the boards need them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a curve turns from good to bad. Seconds, ratios 0 to 1, requests, °C."""

    waiting: float = 10
    kv_usage: float = 0.85
    kv_usage_full: float = 0.95
    running_ratio: float = 0.95
    ttft_seconds: float = 1.5
    inter_token_seconds: float = 0.2
    e2e_seconds: float = 30
    error_ratio: float = 0.05
    preemptions_per_request: float = 0.1
    imbalance: float = 2
    acceptance_drop: float = 0.5
    temperature: float = 85
    canary_tokens_drop: float = 0.05
    canary_latency_growth: float = 0.1
    canary_failure_growth: float = 0.01
    stale_seconds: float = 60

    def boundary(self, histogram: str) -> str:
        """The objective's bucket boundary as Prometheus writes it in `le`."""
        return {"vllm_time_to_first_token_seconds": "2.5", "vllm_time_per_output_token_seconds": "0.2"}[histogram]
