"""Versions of vLLM as dialects of its `/metrics` page: their names, bounds, and small habits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from llmobs.errors import ConfigError
from llmobs.simulate.families import Family, Version, version_of


@dataclass(frozen=True, slots=True)
class Dialect:
    """A version of vLLM and how it is run."""

    version: Version
    v0: bool = False
    ray: bool = False
    multiprocess: bool = False

    @property
    def text(self) -> str:
        """The version as `/version` says it."""
        return "0.6.6.post1" if self.version == (0, 6, 6) else ".".join(map(str, self.version))

    @property
    def forked_page(self) -> bool:
        """Whether the page comes from Prometheus' multi-process mode, as V0's separate frontend always used it."""
        return self.multiprocess or (self.v0 and self.version >= (0, 5, 5))

    @property
    def has_engine_label(self) -> bool:
        """Whether series carry `engine`."""
        return not self.v0 and self.version >= (0, 8, 3)

    @property
    def has_http(self) -> bool:
        """Whether the `http_*` families are there."""
        return self.version >= (0, 8, 3) and not self.ray

    @property
    def dead_status(self) -> int:
        """What /health answers when the engine is dead."""
        if self.v0:
            return 500
        if self.version < (0, 9, 2):
            return 200
        return 500 if self.version < (0, 11, 0) else 503

    def shows(self, family: Family) -> bool:
        """Whether this version has the family."""
        span = family.v0 if self.v0 else family.v1
        return span is not None and span[0] <= self.version <= span[1]


#: Dialects that are kept up: `--dialect` takes them and any other version from 0.5.0 on.
NAMES = (
    "0.5.0", "0.5.5", "0.6.6", "0.7.3-v0", "0.7.3-v1", "0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.16.0", "0.20.0",
    "0.24.0", "0.32.0", "0.33.0", "0.32.0-ray", "0.10.2-ray", "0.32.0-multiprocess", "0.9.2-multiprocess",
)  # fmt: skip


def dialect(name: str) -> Dialect:
    """Return the dialect written as ``VERSION[-v0|-v1][-ray][-multiprocess]``. Raises ConfigError."""
    match = re.fullmatch(r"(\d+\.\d+(?:\.\d+)?)(?:\.post\d+)?((?:-(?:v0|v1|ray|multiprocess))*)", name)
    version = version_of(match[1]) if match else (0, 0, 0)
    if match is None or version < (0, 5, 0):
        raise ConfigError(f"dialect {name!r}: write a version from 0.5.0 on, as one of {', '.join(NAMES)}")
    parts = match[2].split("-")
    v0 = "v0" in parts or (version < (0, 8, 0) and "v1" not in parts)
    if v0 and version >= (0, 11, 1):
        raise ConfigError(f"dialect {name!r}: the V0 engine ended with vLLM 0.11.0")
    return Dialect(version, v0, "ray" in parts, "multiprocess" in parts)


# Bounds, by name; a later entry that fits replaces an earlier one.
_INF = math.inf
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_BOUNDS: dict[str, tuple[tuple[Version, tuple[float, ...]], ...]] = {
    "ttft": ((version_of("0.5"), (*_TTFT, _INF)), (version_of("0.8.4"), (*_TTFT, 20, 40, 80, 160, 640, 2560, _INF))),
    "itl": ((version_of("0.5"), (*_ITL, _INF)), (version_of("0.8.4"), (*_ITL, 5, 7.5, 10, 20, 40, 80, _INF))),
    "latency": (
        (version_of("0.5"), (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, _INF)),
        (version_of("0.6.4"), (*_LATENCY, _INF)),
        (version_of("0.8.4"), (*_LATENCY, 120, 240, 480, 960, 1920, 7680, _INF)),
    ),
    "steps": (
        (version_of("0.5"), (1, 2, 4, *range(8, 257, 8), _INF)),
        (version_of("0.7.3"), (1, 2, 4, *range(8, 513, 8), _INF)),
        (version_of("0.8.5"), (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, _INF)),
    ),
}


def bounds(name: str, version: Version) -> tuple[float, ...] | None:
    """Return the bounds of that kind of histogram in this version; None for those that follow the settings."""
    found = [edges for since, edges in _BOUNDS.get(name, ()) if version >= since]
    return found[-1] if found else None


#: finished_reason values by version: the first one in which each exists.
FINISHED_SINCE = {
    "stop": version_of("0.5"),
    "length": version_of("0.5"),
    "abort": version_of("0.5"),
    "error": version_of("0.13"),
    "repetition": version_of("0.17"),
}
