"""From finished requests to the Collector: one thread that builds the spans and sends them, behind a bounded queue.

The SDK's batch processor is not used, because it takes finished spans (so the event loop would have to build them) and
does not say how many it dropped. The queue, its variables and their defaults are those of the specification of that
processor.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from llmobs.instrument.guard import guard, logger
from llmobs.instrument.traces.settings import TraceSettings

#: Seconds that the end of the process waits for the last spans.
CLOSE_SECONDS = 3.0

_THREAD = "llmobs-traces"

Build = Callable[[], Sequence[ReadableSpan]]


class OneResource(Resource):
    """A resource that compares by identity: the encoder hashes it for every span, as JSON in the SDK's own class."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def resource(attributes: dict[str, str]) -> Resource:
    """Return the resource of this process: `attributes`, and what the ``OTEL_*`` variables say, which wins."""
    made = Resource({**attributes}).merge(Resource.create())
    values = dict(made.attributes)
    if str(values.get("service.name", "")).startswith("unknown_service"):
        values["service.name"] = "vllm"  # the SDK's word for "nobody said"
    return OneResource(values, made.schema_url)


def exporter(settings: TraceSettings) -> SpanExporter:
    """Return the OTLP exporter; endpoint, TLS, headers, timeout and compression are those of the variables.

    Raises ModuleNotFoundError without the extra ``llmobs[otlp]``.
    """
    made: SpanExporter
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        # vLLM's own exporter never uses TLS: with its flag an endpoint without a scheme means the same here.
        plain = settings.endpoint is not None and not settings.endpoint.startswith("https://")
        made = Grpc(endpoint=settings.endpoint, insecure=True if plain else None)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        made = Http(endpoint=settings.endpoint)
    _quiet()
    return made


def _quiet() -> None:
    """Keep the exporter's complaints from our thread out of the log: a lost span is counted, and said once."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk")):
            logging.getLogger(name).addFilter(_not_ours)


def _not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD


class Pipeline:
    """A bounded queue of spans to be built, and the thread that empties it into an exporter.

    `make` is called in that thread. `on_drop` hears how many spans were lost, under a lock of the pipeline's.
    """

    def __init__(
        self, settings: TraceSettings, make: Callable[[], SpanExporter], on_drop: Callable[[int], None]
    ) -> None:
        self._settings = settings
        self._make = make
        self._on_drop = on_drop
        self._items: deque[tuple[int, Build]] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._told = False
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, count: int, build: Build) -> bool:
        """Queue about `count` spans, which `build` makes later in the thread; False, and counted, when it is full."""
        with self._lock:
            if self._waiting + count > self._settings.queue or self._closing:
                self._on_drop(count)
                return False
            self._items.append((count, build))
            self._waiting += count
            enough = self._waiting >= self._settings.batch
        if enough:
            self._wake.set()
        return True

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is queued, for at most so long; what is left is counted as dropped."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        with self._lock:
            left, self._waiting = self._waiting, 0
            self._items.clear()
            if left:
                self._on_drop(left)

    def _run(self) -> None:
        try:
            made = self._make()
        except Exception as error:  # noqa: BLE001  a bad certificate or header: every kind of error is possible
            self._tell(f"the exporter cannot be made: {error!r}")
            made = None
        while not self._closing or self._items:
            self._wake.wait(self._settings.delay)
            self._wake.clear()
            while batch := self._take():
                self._send(made, batch)
        if made is not None:
            made.shutdown()

    def _take(self) -> list[ReadableSpan]:
        """Build the spans of one export."""
        spans: list[ReadableSpan] = []
        while self._items and len(spans) < self._settings.batch:
            count, build = self._items.popleft()
            with self._lock:
                self._waiting -= count
            built = guard("traces_build").run(build)
            if built is None:
                self._drop(count)
            else:
                spans.extend(built)
        return spans

    def _send(self, made: SpanExporter | None, spans: list[ReadableSpan]) -> None:
        size = self._settings.batch
        for start in range(0, len(spans), size):
            batch = spans[start : start + size]
            problem: Any = "the Collector did not take them"
            if made is not None:
                try:
                    if made.export(batch) is SpanExportResult.SUCCESS:
                        continue
                except Exception as error:  # noqa: BLE001  whatever an exporter raises, the thread goes on
                    problem = repr(error)
            self._drop(len(batch))
            self._tell(problem)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._on_drop(count)

    def _tell(self, problem: str) -> None:
        if not self._told:
            self._told = True
            logger.warning("llmobs: spans are lost (%s); they are counted in dropped.spans of /stats", problem)
