"""Structured logs: one JSON line per event, rendered by structlog and written by a thread of our own.

Lines wait in a bounded queue. When it is full or a destination refuses a line (disk full, missing folder), the line is
dropped, counted, and that is said once.

A line is rendered where it is put, and the thread looks at the queue at intervals: whatever Python runs beside the
event loop takes the interpreter from it, and each hand-over costs more than the line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import logging.handlers
import multiprocessing.util
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from llmobs.instrument import jsontext
from llmobs.instrument.guard import logger
from llmobs.instrument.settings import InstrumentSettings

_BATCH = 256
#: Seconds between two looks at the queue, at most so long a line waits.
_PAUSE = 0.2


def iso(wall: float) -> str:
    """Return a Unix time as ISO 8601 in UTC with milliseconds."""
    seconds, milliseconds = divmod(int(wall * 1000), 1000)
    return f"{_iso_seconds(seconds)}.{milliseconds:03d}Z"


@functools.lru_cache(4)
def _iso_seconds(wall: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall))


def _flat(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    # The fields come in one piece: given as keywords, structlog would copy them four times.
    return {"event": event["event"], "timestamp": iso(event["wall"]), "level": level, **event["fields"]}


def _dumps(value: Any, **_options: Any) -> str:
    return jsontext.encode(value).decode()


class _Collect:
    """The sink structlog writes to: puts the rendered lines into the queue."""

    def __init__(self, queue: deque[Any]) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = queue.append


class _File(logging.handlers.RotatingFileHandler):
    """The standard rotating file, except that a failure is remembered instead of printed."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8", delay=True)
        # With backupCount 0 the standard handler never truncates; then the file is opened anew instead.
        self._alone = files == 1
        self.error: BaseException | None = None
        self._failed = False

    def doRollover(self) -> None:  # noqa: N802  name of the base class
        if self._alone:
            if self.stream:
                self.stream.close()
            self.stream = Path(self.baseFilename).open("w", encoding="utf-8")  # noqa: SIM115
            return
        super().doRollover()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.error = sys.exc_info()[1]

    def write(self, text: str) -> None:
        """Append `text`. Raises OSError when it could not be written."""
        self.error = None
        # After a failure half a line may stand at the end: it stays on a line of its own.
        begin = "\n" if self._failed and _ends_torn(Path(self.baseFilename)) else ""
        self.emit(logging.makeLogRecord({"msg": begin + text.removesuffix("\n")}))
        self._failed = self.error is not None
        if self._failed:
            self._forget()
            raise OSError(f"{self.baseFilename}: {self.error}") from self.error

    def _forget(self) -> None:
        """Give up the open file and what is in its buffer, which is counted as dropped: it must not come late."""
        stream: Any = self.stream
        self.stream = None
        with contextlib.suppress(OSError, AttributeError):
            stream.buffer.raw.close()


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # empty, or not there
        return False


class LogWriter:
    """Renders and writes events in its own thread. `tick` is called there about once a second."""

    def __init__(
        self, settings: InstrumentSettings, *, index: int = 0, stderr: Callable[[str], None] | None = None
    ) -> None:
        self.dropped = 0
        self._limit = settings.log_queue
        self._queue: deque[Any] = deque()  # lines, and work for the thread
        self._wake = threading.Event()
        self._log: Any = structlog.wrap_logger(
            _Collect(self._queue),
            processors=[_flat, structlog.processors.JSONRenderer(serializer=_dumps)],
            wrapper_class=structlog.BoundLogger,
        ).bind()
        self._sinks: list[Callable[[str], None]] = []
        if settings.log_stderr:
            self._sinks.append(stderr or _write_stderr)
        if settings.log_file is not None:
            self._sinks.append(
                _File(_own_path(settings.log_file, index), settings.log_max_bytes, settings.log_files).write
            )
        self._said: set[str] = set()
        self._stopping = False
        self.tick: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="llmobs-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        multiprocessing.util.Finalize(None, self.close, exitpriority=100)  # children leave without atexit

    @property
    def enabled(self) -> bool:
        """Whether any destination is configured."""
        return bool(self._sinks)

    def put(
        self, level: str, event: str, fields: Mapping[str, Any] | Callable[[], Mapping[str, Any]], wall: float
    ) -> None:
        """Queue one event of Unix time `wall`. A function as `fields` is called when there is room for the line."""
        if not self._sinks:
            return
        if len(self._queue) >= self._limit:
            self._drop(1, "the queue is full")
            return
        try:
            getattr(self._log, level)(event, wall=wall, fields=fields() if callable(fields) else fields)
        except Exception as error:  # noqa: BLE001  one bad event must not cost the others
            self._drop(1, f"an event could not be rendered: {error!r}")

    def call(self, work: Callable[[], None]) -> None:
        """Run `work`, which may block on a disk, in the writer's thread."""
        self._queue.append(work)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is queued and stop, within `timeout` seconds."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        next_tick = time.monotonic() + 1.0
        while True:
            last = self._wake.wait(0 if self._queue else _PAUSE)
            if batch := self._take():
                self._write(batch)
            elif last:
                return
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + 1.0
                if self.tick is not None:
                    self.tick()

    def _take(self) -> list[Any]:
        return [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]

    def _write(self, batch: list[Any]) -> None:
        lines = []
        for item in batch:
            if isinstance(item, str):
                lines.append(item)
                continue
            try:
                item()
            except Exception as error:  # noqa: BLE001  this thread must not end
                self._drop(1, f"what follows from an event could not be done: {error!r}")
        if not lines:
            return
        text = "\n".join(lines) + "\n"
        for sink in self._sinks:
            try:
                sink(text)
            except Exception as error:  # noqa: BLE001, PERF203  each destination fails for itself; this thread must not end
                self._drop(len(lines), str(error))

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        if why not in self._said and len(self._said) < 8:
            self._said.add(why)
            logger.warning("llmobs: log lines are being dropped and counted: %s", why)


def _write_stderr(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(2, data) :]


def _own_path(path: Path, index: int) -> Path:
    """Return the file of one API server process: two processes must not rotate the same file."""
    return path if index <= 0 else path.with_name(f"{path.stem}-{index}{path.suffix}")
