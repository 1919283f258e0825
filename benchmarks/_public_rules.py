"""Public rule sets for vLLM, written down from their documented conditions, to run beside ours.

They ask vLLM's own metric names, so Prometheus scrapes the engine's own page for them. Their defects are kept: that is
what is compared. What cannot be run here is named in `LEFT_OUT`.
"""

from __future__ import annotations

from typing import Any

Rule = tuple[str, str, str, str]  # alert, expression, for, severity

_ERRORS = (
    'sum by (namespace) (rate(vllm:request_success_total{{finished_reason="error"}}[{0}]))'
    " / sum by (namespace) (rate(vllm:request_success_total[{0}]))"
)
_HITS = (
    "sum by (namespace) (rate(vllm:prefix_cache_hits_total[5m]))"
    " / sum by (namespace) (rate(vllm:prefix_cache_queries_total[5m]))"
)
_SLOW = (
    'rate(vllm:e2e_request_latency_seconds_count[5m]) - rate(vllm:e2e_request_latency_seconds_bucket{le="120"}[5m]) > 0'
)


def _p(q: str, histogram: str, window: str = "5m") -> str:
    return f"histogram_quantile({q}, sum by (le, namespace) (rate(vllm:{histogram}_bucket[{window}])))"


LLM_D: tuple[Rule, ...] = (
    ("HighErrorRate", _ERRORS.format("5m") + " > 0.05", "2m", "critical"),
    ("ModelHighErrorRate", _ERRORS.format("5m") + " > 0.1", "5m", "warning"),
    ("ElevatedErrorRate", _ERRORS.format("5m") + " > 0.01", "10m", "warning"),
    ("NoHealthyBackends", 'sum by (namespace) (up{job="vllm"}) == 0', "1m", "critical"),
    ("ExtremeTTFT", _p("0.99", "time_to_first_token_seconds") + " > 30", "2m", "critical"),
    ("HighTTFT", _p("0.99", "time_to_first_token_seconds") + " > 10", "5m", "warning"),
    ("HighLatencyP99", _p("0.99", "e2e_request_latency_seconds") + " > 10", "5m", "warning"),
    ("HighPreemptions", "rate(vllm:num_preemptions[5m]) > 1", "5m", "warning"),
    ("KVCacheSaturation", "max by (namespace) (vllm:kv_cache_usage_perc) > 0.9", "10m", "warning"),
    ("DecodeKVCacheSaturation", "max by (namespace) (vllm:kv_cache_usage_perc) > 0.95", "5m", "critical"),
    ("QueueBuildup", "sum by (namespace) (vllm:num_requests_waiting) > 50", "5m", "warning"),
    ("PrefillQueueBuildup", "sum by (namespace) (vllm:num_requests_waiting) > 100", "5m", "critical"),
    ("LowPrefixCacheHit", _HITS + " < 0.3", "15m", "warning"),
    ("AvailabilitySLOBurn", f"({_ERRORS.format('1h')} > 0.001) and ({_ERRORS.format('5m')} > 0.001)", "2m", "critical"),
    ("LatencySLO", _p("0.99", "e2e_request_latency_seconds", "1h") + " > 5", "5m", "warning"),
    ("TTFTSLO", _p("0.95", "time_to_first_token_seconds", "1h") + " > 3", "5m", "warning"),
)

VLLM_EXAMPLE: tuple[Rule, ...] = (
    ("HighE2ELatency", _p("0.99", "e2e_request_latency_seconds") + " > 120", "5m", "warning"),
    ("HighTTFT", _p("0.99", "time_to_first_token_seconds") + " > 30", "5m", "warning"),
    ("HighITL", _p("0.99", "inter_token_latency_seconds") + " > 1", "5m", "warning"),
    ("KVCacheHigh", "max by (namespace) (vllm:kv_cache_usage_perc) > 0.95", "5m", "warning"),
    ("QueueHigh", "sum by (namespace) (vllm:num_requests_waiting) > 50", "5m", "warning"),
    ("SlowRequests", _SLOW, "5m", "warning"),
    ("Preemptions", "rate(vllm:num_preemptions[5m]) > 0", "5m", "warning"),
)

SETS: dict[str, tuple[Rule, ...]] = {"llm-d": LLM_D, "vLLM example": VLLM_EXAMPLE}

LEFT_OUT = (
    "llm-d: SchedulerDown, GPUUnderutil, PD imbalance, PodRestartLoop, PodsPending, LowReplicaCount and MemoryPressure",
    "vLLM example: `count(up==1) < 40` (a number of one cluster)",
    "nvidia_gpu_exporter: its 15 rules ask its own exporter's names; their conditions are in our GPU alerts",
)


def groups(shorten: Any) -> list[dict[str, Any]]:
    """Return rule groups; `shorten` maps an expression or duration to its time-compressed form."""
    return [
        {
            "name": name,
            "rules": [
                {
                    "alert": alert,
                    "expr": shorten(expr),
                    "for": shorten(for_),
                    "labels": {"severity": severity, "ruleset": name},
                }
                for alert, expr, for_, severity in rules
            ],
        }
        for name, rules in SETS.items()
    ]
