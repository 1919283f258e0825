"""What several groups of alerts share."""

from __future__ import annotations

#: Alerts that explain everything else about a model or replica: whoever knows of them needs no other page.
GONE = ("VllmMetricsAbsent", "VllmModelVanished", "VllmModelDown", "VllmTargetDown")
STUCK = ("VllmEngineStalled", "VllmEngineLivelock")
CRASH = ("VllmOutOfMemory",)
GPU_FAULT = ("GpuLost", "GpuXidNode", "GpuXidReset", "GpuRecoveryActionNeeded", "GpuRowRemapFailed")
OUTAGE = (*GONE, *STUCK, *CRASH, *GPU_FAULT)
#: A full KV cache is the cause of queues, preemptions and latency.
FULL = ("VllmKVCacheExhausted",)
#: What silences a symptom; what may be the cause of a full KV cache is silenced by an outage alone.
SYMPTOMS = (*OUTAGE, *FULL)


def of_target(expression: str) -> str:
    """Return a fact about a target with the model it served; the model is known for an hour after the target died."""
    return f"target:vllm_model:seen1h * on ($joined) group_left () ({expression})"


def of_gpu(expression: str) -> str:
    """Return a fact about a GPU with the model that runs on its host, when there is exactly one."""
    return f"({expression}) * on ($host) group_left (model_name) instance:vllm_model:single"


def usual(recorded: str) -> str:
    """Return a recorded series as it was at the same time yesterday, or an hour ago where there is no yesterday."""
    return f"({recorded} offset 1d or {recorded} offset 1h)"
