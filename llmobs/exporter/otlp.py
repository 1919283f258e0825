"""`llmobs run --otlp`: push the contract as OTLP metrics, for platforms that do not scrape.

Endpoint, headers, certificates, compression and protocol come from the standard ``OTEL_EXPORTER_OTLP_*`` variables
(``…_METRICS_*`` before the general ones), resource attributes from ``OTEL_RESOURCE_ATTRIBUTES`` and
``OTEL_SERVICE_NAME``. Exporting happens in a thread of its own, one at a time: a Collector that hangs delays the next
push and nothing else. A push that failed is not repeated, because the next one carries the same cumulative values.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from llmobs import log
from llmobs.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

    from llmobs.exporter.otlp_data import Group

_PROTOCOLS = ("grpc", "http/protobuf")


def exporter() -> MetricExporter:
    """Return the SDK's exporter for the protocol that the environment names (default grpc).

    Raises ConfigError when the protocol is unknown or the extra ``llmobs[otlp]`` is not installed.
    """
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = protocol or "grpc"
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not one of {', '.join(_PROTOCOLS)}")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

            return Grpc()
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

        return Http()
    except ModuleNotFoundError as error:
        raise ConfigError(f"--otlp needs the module {error.name!r}: pip install 'llmobs[otlp]'") from None


class Pusher:
    """Pushes samples. `pushes` counts what became of each push: ``success`` or ``failure``."""

    def __init__(self, made: MetricExporter | None = None) -> None:
        self.pushes = {"success": 0, "failure": 0}
        self._exporter = made or exporter()
        self._start_ns = time.time_ns()
        self._log = log.get()
        # The SDK logs every retry, with the endpoint in it; one rate-limited line of ours says the same.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

    def push(self, groups: Iterable[Group]) -> bool:
        """Send the samples as of now and return whether they arrived. Blocks up to the exporter's own timeout."""
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource

        from llmobs.exporter.otlp_data import metrics_data

        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or "llmobs"})
        try:
            data = metrics_data(groups, resource, start_ns=self._start_ns, now_ns=time.time_ns())
            arrived = self._exporter.export(data) is MetricExportResult.SUCCESS
            problem = "the receiver refused or did not answer"
        except Exception as error:  # noqa: BLE001 (an exporter of another version must not end the daemon)
            arrived, problem = False, type(error).__name__
        self.pushes["success" if arrived else "failure"] += 1
        if not arrived:
            self._log.warning("otlp_push_failed", detail=problem)
        return arrived

    async def run(self, collect: Callable[[], Sequence[Group]], interval: float) -> None:
        """Push what `collect` returns, every `interval` seconds, until cancelled."""
        try:
            while True:
                started = time.monotonic()
                await self._push_in_thread(collect())
                await asyncio.sleep(max(0.0, interval - (time.monotonic() - started)))
        finally:
            self.close()

    async def _push_in_thread(self, groups: Sequence[Group]) -> None:
        """Push in a daemon thread: one of a pool would be waited for when the process ends, however long it hangs."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def work() -> None:
            self.push(groups)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has ended meanwhile
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=work, name="otlp", daemon=True).start()
        await done.wait()

    def close(self) -> None:
        """End: a push under way is abandoned, nothing is waited for."""
        try:
            self._exporter.shutdown(timeout_millis=100)
        except Exception as error:  # noqa: BLE001 (the process is ending)
            self._log.debug("otlp_shutdown_failed", detail=type(error).__name__)
