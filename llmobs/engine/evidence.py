"""Evidence beside the page: the failure journal, vLLM's log, and the kernel's out-of-memory counter.

Each source is read from where it was left off, bounded in bytes per cycle, and never passes text on: a log line only
becomes "an out-of-memory event of this kind at this time". A file that cannot be read is reported once and costs only
itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from llmobs.config import TargetSettings
from llmobs.journal import FILE_NAME, from_line
from llmobs.snapshot import Evidence, LostRequests, OomEvent

#: Most bytes read from one file in one cycle; a log that grows faster is caught up with later.
MAX_BYTES = 1024 * 1024

_CUDA_OOM = re.compile(rb"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED")


class EvidenceReader:
    """Reads a target's evidence sources; `read` returns what is new since the call before."""

    def __init__(self, target: TargetSettings, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._started = wall()
        self._journal = _Tail(Path(target.state_dir) / FILE_NAME, from_start=True) if target.state_dir else None
        self._log = _Tail(Path(target.log_file), from_start=False) if target.log_file else None
        self._cgroup = Path(target.cgroup) if target.cgroup else None
        self._killed: int | None = None
        #: Sources that cannot be read now, with the reason; the daemon logs changes of it.
        self.problems: dict[str, str] = {}

    def read(self) -> Evidence:
        """Return new evidence. Reads files: call it in a thread."""
        ooms: list[OomEvent] = []
        lost: list[LostRequests] = []
        can_tell: set[str] = set()
        if self._journal is not None:
            self._read_journal(self._journal, ooms, lost, can_tell)
        if self._log is not None and (lines := self._lines("log", self._log)) is not None:
            can_tell.add("cuda")
            # A traceback repeats the error in many lines, and the engine repeats the worker's: one event a reading.
            if any(_CUDA_OOM.search(line) for line in lines):
                ooms.append(OomEvent("cuda", "log", self._wall()))
        used = limit = None
        if self._cgroup is not None:
            self._read_cgroup(self._cgroup, ooms, can_tell)
            used, limit = _memory(self._cgroup)
        return Evidence(
            can_tell=frozenset(can_tell),
            ooms=tuple(ooms),
            lost=tuple(lost),
            host_memory_used_bytes=used,
            host_memory_limit_bytes=limit,
        )

    def _read_journal(self, journal: _Tail, ooms: list[OomEvent], lost: list[LostRequests], can_tell: set[str]) -> None:
        lines = self._lines("journal", journal)
        if lines is None:
            return
        can_tell.update(("cuda", "host"))
        for line in lines:
            entry = from_line(line)
            # What happened before this daemon started is history: its counters begin with the daemon.
            if entry is None or entry.time < self._started:
                continue
            if entry.event == "oom":
                ooms.append(OomEvent(entry.kind or "cuda", "in_process", entry.time, entry.id))
            elif entry.event == "requests_failed" and entry.count is not None:
                lost.append(
                    LostRequests(
                        id=entry.id,
                        time=entry.time,
                        instance=entry.instance,
                        reason=entry.reason or "engine_dead",
                        count=entry.count,
                        total=entry.total,
                        model_name=entry.model_name,
                        engine=entry.engine,
                    )
                )

    def _read_cgroup(self, cgroup: Path, ooms: list[OomEvent], can_tell: set[str]) -> None:
        try:
            text = (cgroup / "memory.events").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            self.problems["cgroup"] = _why(error)
            return
        self.problems.pop("cgroup", None)
        counts = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        try:
            killed = int(counts["oom_kill"])
        except (KeyError, ValueError):
            self.problems["cgroup"] = "memory.events has no oom_kill; cgroup v2 is needed"
            return
        can_tell.add("host")
        # The first reading is the baseline; a new cgroup (the container restarted) starts again at 0.
        if self._killed is not None and killed > self._killed:
            ooms.append(OomEvent("host", "cgroup", self._wall()))
        self._killed = killed

    def _lines(self, name: str, tail: _Tail) -> list[bytes] | None:
        try:
            lines = list(tail.lines())
        except FileNotFoundError:
            # Not there yet: the journal is made by the first failure, its folder tells whether we would see it.
            if name == "journal" and tail.path.parent.is_dir() and os.access(tail.path.parent, os.R_OK | os.X_OK):
                self.problems.pop(name, None)
                return []
            self.problems[name] = f"{tail.path} is not there"
            return None
        except OSError as error:
            self.problems[name] = f"{tail.path} {_why(error)}"
            return None
        self.problems.pop(name, None)
        return lines


class _Tail:
    """Complete lines appended to a file since the last call, across truncation and rotation."""

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self.path = path
        self._from_start = from_start
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines. Raises OSError; once the file was missing, it is read from its start when it comes."""
        try:
            yield from self._lines()
        except FileNotFoundError:
            self._from_start = True
            raise

    def _lines(self) -> Iterator[bytes]:
        # Without O_NONBLOCK a pipe would be waited for.
        with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a file")
            if status.st_ino != self._inode or status.st_size < self._offset:
                first = self._inode is None
                if not first and status.st_ino != self._inode:
                    yield from self._rotated()
                self._inode, self._rest = status.st_ino, b""
                self._offset = 0 if self._from_start or not first else status.st_size
            stream.seek(self._offset)
            data = stream.read(MAX_BYTES)
        yield from self._complete(data)

    def _rotated(self) -> Iterator[bytes]:
        """Yield what was written to the file before it was renamed to FILE.1, and not read yet."""
        try:
            with self.path.with_name(self.path.name + ".1").open("rb") as stream:
                if os.fstat(stream.fileno()).st_ino != self._inode:
                    return
                stream.seek(self._offset)
                data = stream.read(MAX_BYTES)
        except OSError:
            return
        yield from self._complete(data)

    def _complete(self, data: bytes) -> list[bytes]:
        self._offset += len(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_BYTES:
            self._rest = b""
        return complete


def _memory(cgroup: Path) -> tuple[float | None, float | None]:
    """Memory in use without what the kernel can drop (as kubelet's working set), and the limit, both in bytes."""
    try:
        used = float((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = (cgroup / "memory.stat").read_text(encoding="ascii")
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        droppable = next(
            (float(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0.0
        )
        return max(0.0, used - droppable), None if limit == "max" else float(limit)
    except (OSError, ValueError, IndexError):
        return None, None


def _why(error: Exception) -> str:
    return f"cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})"
