"""The cache of one engine, from the labels of `cache_config_info` and the version: its size, and its unit of count."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping


def prefix_cache_unit(*, old_names: bool, version: str | None) -> str | None:
    """Return the unit of the prefix-cache counters: the new names count tokens, the old ones blocks up to 0.8.5.

    None when the names are old and the version is not known; a build without tags calls itself 0.1.dev….
    """
    if not old_names:
        return "tokens"
    parts = re.match(r"(\d+)\.(\d+)", version or "")
    if parts is None or (known := (int(parts[1]), int(parts[2]))) < (0, 5):
        return None
    return "tokens" if known >= (0, 9) else "blocks"


def capacity(config: Mapping[str, str], *, engines: int) -> dict[str, float]:
    """Return the size of the KV cache of one engine, from the settings on the page.

    With data parallelism `num_gpu_blocks` is the sum over all engines, repeated on each: it is left out then.
    `kv_cache_size_tokens` (0.24+) is per engine.
    """
    block_size = _setting(config, "block_size")
    blocks = _setting(config, "num_gpu_blocks") if engines == 1 else None
    tokens = _setting(config, "kv_cache_size_tokens")
    if tokens is None and blocks is not None and block_size is not None:
        tokens = blocks * block_size
    found = {
        "kv_cache_block_size": block_size,
        "kv_cache_blocks": blocks,
        "kv_cache_tokens": tokens,
        "kv_cache_bytes": _setting(config, "kv_cache_memory_bytes"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _setting(config: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(config[name])
    except (KeyError, ValueError):
        return None  # vLLM writes the text "None" for what it does not know
    return value if math.isfinite(value) and value > 0 else None
