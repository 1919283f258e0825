"""A few numbers that the engine core shares with the API server through a mapped file: no message, no copy, no lock."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_FORMAT = struct.Struct("<d")  # arrival of the oldest waiting request as Unix time; 0: none waits


class BeatWriter:
    """The engine core's side. Writing costs well under a microsecond."""

    def __init__(self, run_dir: Path, engine: int) -> None:
        descriptor = os.open(run_dir / _name(engine), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _FORMAT.size)
            self._map = mmap.mmap(descriptor, _FORMAT.size)
        finally:
            os.close(descriptor)

    def write(self, oldest_arrival: float) -> None:
        """Publish the arrival of the oldest waiting request as Unix time, 0 when none waits."""
        _FORMAT.pack_into(self._map, 0, oldest_arrival)


class BeatReader:
    """The API server's side."""

    def __init__(self, run_dir: Path | None, engine: int) -> None:
        self._path = run_dir / _name(engine) if run_dir is not None else None
        self._map: mmap.mmap | None = None

    def oldest_arrival(self) -> float | None:
        """Return the arrival of the oldest waiting request as Unix time, 0 when none waits, None when not known."""
        if self._map is None:
            if self._path is None:
                return None
            try:
                with self._path.open("rb") as file:
                    self._map = mmap.mmap(file.fileno(), _FORMAT.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError):
                return None
        return float(_FORMAT.unpack_from(self._map, 0)[0])


def _name(engine: int) -> str:
    return f"beat-{engine}"
