"""`llmobs probe URL`: one reading, shown to a person: what was found, what is missing, and why."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from llmobs.catalog import METRICS
from llmobs.catalog.engine import ENGINE_METRICS
from llmobs.config import DeriveSettings, TargetSettings, mask_url
from llmobs.derive.publish import Sample, samples
from llmobs.derive.target import Limits, TargetState, advance, begin
from llmobs.engine.target import TargetReader
from llmobs.snapshot import Evidence, Histogram

# Metrics whose absence has a reason worth telling: prefix of the name → reason.
_WINDOWED = "needs two readings with work between them; `llmobs run` shows it"
_STATS_ONLY = "only /stats has it: run vLLM with llmobs' plugin"
_REASONS = {
    "vllm_spec_decode": "the server runs without speculative decoding",
    "vllm_kv_block": "the server runs without --kv-cache-metrics",
    "vllm_kv_transfer": "the server runs without a KV connector",
    "vllm_kv_offload": "the server runs without KV offloading",
    "vllm_lora": _STATS_ONLY,
    "vllm_worker_memory": _STATS_ONLY,
    "vllm_decode_step": _STATS_ONLY,
    "vllm_prompt_outliers": _STATS_ONLY,
    "vllm_prompts_near": _STATS_ONLY,
    "vllm_request_oldest": _STATS_ONLY,
    "vllm_max_": _STATS_ONLY,
    "vllm_prefix_cache_rescheduled": _STATS_ONLY,
    "vllm_rescheduled": _STATS_ONLY,
    "vllm_num_swapped": "V0 engines only",
    "vllm_cpu_kv": "V0 engines only",
    "vllm_oom": "no evidence source is configured: state_dir, log_file or cgroup",
    "vllm_tokens_per_joule": "needs a GPU that is known to be the target's",
    "vllm_gpu_idle": "needs a GPU that is known to be the target's",
    "vllm_kv_cache_share": "needs a GPU that is known to be the target's",
    "vllm_engine_seconds_since_progress": "no request runs or waits",
}
_WINDOWED_NAMES = tuple(m.name for m in ENGINE_METRICS if "over the window" in m.help or "of the window" in m.help)


async def _read(target: TargetSettings) -> TargetState:
    reader = TargetReader(target)
    limits = Limits()
    try:
        state = begin(0.0)
        # Two readings, so that rates and ratios of a busy server show, too.
        for pause in (1.0, 0.0):
            state = advance(state, await reader.read(), Evidence(), limits)
            if state.reading is not None and state.reading.snapshot is None:
                break
            await asyncio.sleep(pause)
        return state
    finally:
        await reader.close()


def probe(target: TargetSettings, *, as_json: bool) -> tuple[str, bool]:
    """Read the target and return (text to print, whether it could be read)."""
    state = asyncio.run(_read(target))
    found, _ = samples(state, target.name, Limits(), max_label_values=DeriveSettings().max_label_values)
    missing = _missing({s.metric for s in found})
    report = _json(target, state, found, missing) if as_json else _table(target, state, found, missing)
    return report, state.up


def _missing(present: set[str]) -> dict[str, str]:
    missing = {}
    for metric in ENGINE_METRICS:
        if metric.name not in present:
            known = (reason for prefix, reason in _REASONS.items() if metric.name.startswith(prefix))
            missing[metric.name] = next(known, _WINDOWED if metric.name in _WINDOWED_NAMES else "not on the page")
    return missing


def _head(target: TargetSettings, state: TargetState) -> dict[str, Any]:
    last, reading = state.last, state.reading
    return {
        "url": mask_url(target.url),
        "state": state.word,
        "error": {"reason": reading.error_reason, "message": reading.error_message}
        if reading is not None and reading.error_reason
        else None,
        "version": last.version if last else None,
        "source": last.source if last else None,
        "dialect": last.dialect if last else None,
        "simulated": last.simulated if last else None,
        "unmapped_series": last.unmapped_series if last else None,
        "health": reading.health if reading else None,
    }


def _json(target: TargetSettings, state: TargetState, found: list[Sample], missing: dict[str, str]) -> str:
    rows = [
        {
            "metric": s.metric,
            "labels": dict(zip(METRICS[s.metric].labels, s.labels)),
            "value": {"count": s.value.count, "sum": s.value.sum} if isinstance(s.value, Histogram) else s.value,
        }
        for s in found
    ]
    return json.dumps({**_head(target, state), "metrics": rows, "missing": missing}, indent=2)


def _table(target: TargetSettings, state: TargetState, found: list[Sample], missing: dict[str, str]) -> str:
    lines = []
    for name, value in _head(target, state).items():
        if value is not None:
            shown = f"{value['reason']}: {value['message']}" if isinstance(value, dict) else value
            lines.append(f"{name.replace('_', ' '):16} {shown}")
    if state.up:
        lines += ["", "found"]
        for sample in found:
            labels = ", ".join(
                f"{k}={v}" for k, v in zip(METRICS[sample.metric].labels, sample.labels) if k != "target" and v
            )
            name = f"{sample.metric}{{{labels}}}" if labels else sample.metric
            lines.append(f"  {name:86} {_shown(sample.value)}")
        lines += ["", "missing"]
        lines += [f"  {name:52} {reason}" for name, reason in missing.items()]
    return "\n".join(lines)


def _shown(value: float | Histogram) -> str:
    if isinstance(value, Histogram):
        mean = f", mean {value.sum / value.count:.4g}" if value.count else ""
        return f"{value.count:g} observations{mean}"
    return f"{value:.6g}"
