"""From finished requests to the Collector: spans wait in a bounded queue, and one thread sends them.

The SDK's batch processor is not used: it takes span objects, which cost more than all of this, and does not say how
many it dropped. The queue, its variables and their defaults are those of the specification of that processor.

A request's few spans are built and encoded where they are added. A thread that did it would have to take the
interpreter from the event loop, and those hand-overs cost more than the spans do. What takes longer is left to the
thread, which lets go of the interpreter before each piece of work: otherwise the event loop, which asks for it after
every system call, would get it back only 5 ms later.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.sdk.resources import Resource

from llmobs.instrument.guard import guard, logger
from llmobs.instrument.traces.encode import Batch, Head, Span
from llmobs.instrument.traces.options import SettingsError
from llmobs.instrument.traces.settings import TraceSettings
from llmobs.instrument.traces.transport import Lost, Transport, transport

#: Seconds that the end of the process waits for the last spans.
CLOSE_SECONDS = 3.0

Build = Callable[[], Sequence[Span]]


def head(attributes: dict[str, str]) -> Head:
    """Return the resource of this process: `attributes`, and what the ``OTEL_*`` variables say, which wins."""
    made = Resource({**attributes}).merge(Resource.create())
    values = dict(made.attributes)
    if str(values.get("service.name", "")).startswith("unknown_service"):
        values["service.name"] = "vllm"  # the SDK's word for "nobody said"
    return Head(values, made.schema_url)


class Pipeline:
    """A bounded queue of spans, and the thread that empties it into an exporter.

    `head` begins every export. `on_drop` hears how many spans were lost, under a lock of the pipeline's.
    """

    def __init__(self, settings: TraceSettings, head: Head, on_drop: Callable[[int], None]) -> None:
        self._settings = settings
        self._head = head
        self._on_drop = on_drop
        self._items: deque[tuple[int, Build]] = deque()  # to be built by the thread
        self._full: deque[Batch] = deque()
        self._batch = head.batch()  # the one that is being filled
        self._waiting = 0  # spans in these three
        self._held = 0  # spans that were taken from them and are neither sent nor lost
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._closed = False
        self._told = False
        self._transport: Transport | None = None
        self._thread = threading.Thread(target=self._run, name="llmobs-traces", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, count: int, build: Build) -> bool:
        """Queue about `count` spans, which `build` makes now; False, and counted, when the queue is full."""
        if not self._admit(count):
            return False
        self._encode(count, guard("traces_build").run(build))
        return True

    def put(self, count: int, build: Build) -> bool:
        """Queue about `count` spans, which `build` makes in the thread; False, and counted, when the queue is full."""
        if not self._admit(count):
            return False
        self._items.append((count, build))
        if self._waiting >= self._settings.batch:
            self._wake.set()
        return True

    def _admit(self, count: int) -> bool:
        with self._lock:
            full = self._waiting + count > self._settings.queue or self._closing
            if full:
                self._on_drop(count)
            else:
                self._waiting += count
        if full:
            self._tell("the queue is full: the Collector is slower than the requests")
        return not full

    def _encode(self, count: int, built: Sequence[Span] | None) -> None:
        """Write what was built for `count` spans of the queue into batches; None is all of them lost."""
        size, spans = self._settings.batch, built or ()
        with self._lock:
            written = 0
            for start, end in self._parts(len(self._batch), len(spans)):
                before = len(self._batch)
                guard("traces_encode").run(self._batch.extend, spans[start:end])
                written += len(self._batch) - before
                if len(self._batch) >= size:
                    self._full.append(self._batch)
                    self._batch = self._head.batch()
                    self._wake.set()
            if self._closed:
                return  # `close` has counted them as lost
            self._waiting += written - count
            lost = (count if built is None else len(spans)) - written
            if lost:
                self._on_drop(lost)

    def _parts(self, used: int, count: int) -> Iterator[tuple[int, int]]:
        """Return the slices of a request's spans that fit what is left of this batch, and the ones after it."""
        size = self._settings.batch
        edges = [0, *range(min(count, size - used), count, size), count]
        return zip(edges, edges[1:])

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is queued, for at most so long; what is left is counted as dropped."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._transport is not None:
            self._transport.closing(seconds)
        self._wake.set()
        self._thread.join(seconds)
        with self._lock:
            self._closed = True
            left = self._waiting + self._held
            self._waiting = self._held = 0
            self._items.clear()
            self._full.clear()
            self._batch = self._head.batch()
            if left:
                self._on_drop(left)

    def _run(self) -> None:
        try:
            made = self._transport = transport(self._settings)
        except Exception as error:  # noqa: BLE001  grpc and OpenSSL have their own kinds for a bad certificate
            self._tell(f"the exporter cannot be made: {_safe(error)}")
            made = None
        if made is not None and self._closing:  # `close` came while it was made
            made.closing(CLOSE_SECONDS)
        while not self._closing or self._waiting:
            asked = self._wake.wait(0 if self._closing else self._settings.delay)
            self._wake.clear()
            self._drain(made, everything=self._closing or not asked)
        if made is not None:
            made.close()

    def _drain(self, made: Transport | None, *, everything: bool) -> None:
        """Build what is left to this thread, and send all full batches, or `everything`."""
        while self._items:
            count, build = self._items.popleft()
            time.sleep(0)
            self._encode(count, guard("traces_build").run(build))
        while (batch := self._take()) is not None:
            self._send(made, batch)
        if everything and (batch := self._take(partial=True)) is not None:
            self._send(made, batch)

    def _take(self, *, partial: bool = False) -> Batch | None:
        """Return the next full batch, or with `partial` the one that is being filled; None when there is nothing."""
        with self._lock:
            if self._full:
                batch = self._full.popleft()
            elif partial and len(self._batch):
                batch, self._batch = self._batch, self._head.batch()
            else:
                return None
            self._waiting -= len(batch)
            self._held += len(batch)
            return batch

    def _send(self, made: Transport | None, batch: Batch) -> None:
        count = len(batch)
        if made is None:
            self._lost(count)
            return
        try:
            lost = made.send(batch.payload())
        except Exception as error:  # noqa: BLE001  whatever a protocol's library raises, the thread goes on
            lost = Lost(None, _safe(error))
        gone = 0 if lost is None else count if lost.spans is None else min(lost.spans, count)
        with self._lock:
            self._held -= count - gone
        if lost is not None:
            self._lost(gone)
            self._tell(lost.why)

    def _lost(self, count: int) -> None:
        """Count spans that were taken from the queue; at the end of the process `close` has counted them already."""
        if count:
            with self._lock:
                self._held -= count
                if not self._closed:
                    self._on_drop(count)

    def _tell(self, problem: str) -> None:
        if not self._told:
            self._told = True
            logger.warning("llmobs: spans are lost (%s); they are counted in dropped.spans of /stats", problem)


def _safe(error: Exception) -> str:
    """Return what can be said of an error: the text of one that is not ours may hold an endpoint or a header."""
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; pip install 'llmobs[otlp]'"
    return type(error).__name__
