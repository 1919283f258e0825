"""What the engine was started with: limits as facts, all effective flags for the log, secrets masked."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_SECRET = re.compile(
    r"api_?key|^token$|(hf|auth|access|bearer|api)_token$|secret|passw(or)?d|authorization|credential|headers?$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?i)([?&](?:[\w-]*(?:key|token|secret|password|signature))=)[^&\s]+")
_DEPTH = 4
_ITEMS = 64
_TEXT = 512
MASK = "***"


def static_facts(vllm_config: Any, engines: int) -> dict[str, Any]:
    """Return the facts of `EngineStats` that don't change while the engine lives."""
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    # vLLM sums the blocks over the data-parallel engines of this server.
    blocks = getattr(cache, "num_gpu_blocks", None)
    blocks = blocks / engines if blocks is not None else None
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    block_size = getattr(cache, "block_size", None)
    if tokens is None and blocks is not None and block_size is not None:
        tokens = blocks * block_size
    config = {
        "cache_dtype": getattr(cache, "cache_dtype", None),
        "block_size": block_size,
        "enable_prefix_caching": getattr(cache, "enable_prefix_caching", None),
        "gpu_memory_utilization": getattr(cache, "gpu_memory_utilization", None),
        "dtype": getattr(vllm_config.model_config, "dtype", None),
        "quantization": getattr(vllm_config.model_config, "quantization", None),
        "tensor_parallel_size": getattr(vllm_config.parallel_config, "tensor_parallel_size", None),
        "pipeline_parallel_size": getattr(vllm_config.parallel_config, "pipeline_parallel_size", None),
        "data_parallel_size": getattr(vllm_config.parallel_config, "data_parallel_size", None),
        "enforce_eager": getattr(vllm_config.model_config, "enforce_eager", None),
    }
    return {
        "max_num_seqs": _number(getattr(scheduler, "max_num_seqs", None)),
        "max_num_batched_tokens": _number(getattr(scheduler, "max_num_batched_tokens", None)),
        "max_model_len": _number(getattr(vllm_config.model_config, "max_model_len", None)),
        "kv_cache_blocks": _number(blocks),
        "kv_cache_block_size": _number(block_size),
        "kv_cache_tokens": _number(tokens),
        "config": {name: str(value) for name, value in config.items() if value is not None},
    }


def effective_config(vllm_config: Any) -> dict[str, Any]:
    """Return all settings of the engine as JSON-ready values, nested as in vLLM, secrets replaced by `MASK`."""
    value = _plain(vllm_config, 0)
    return value if isinstance(value, dict) else {}


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return mask(value)[:_TEXT]
    if depth >= _DEPTH:
        return type(value).__name__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
        return {n: MASK if _SECRET.search(n) and getattr(value, n, None) else _plain(getattr(value, n, None), depth + 1)
                for n in names}  # fmt: skip
    if isinstance(value, dict):
        items = list(value.items())[:_ITEMS]
        return {str(k): MASK if _SECRET.search(str(k)) and v else _plain(v, depth + 1) for k, v in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v, depth + 1) for v in list(value)[:_ITEMS]]
    text = str(value)
    return mask(text)[:128] if len(text) < 1024 else type(value).__name__


def mask(text: str) -> str:
    """Return `text` with user information in URLs and secrets in query strings replaced by `MASK`."""
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(f"{MASK}@", text))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
