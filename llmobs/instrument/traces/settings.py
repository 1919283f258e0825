"""Settings of tracing: the standard ``OTEL_*`` variables, and ours for token and layer detail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: Variable → what it does. docs/traces.md lists every one, and a test holds it to that.
VARIABLES: Mapping[str, str] = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "the Collector; naming one here or in the next switches spans on",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "the same, for spans only; vLLM's --otlp-traces-endpoint sets it too",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc (default) or http/protobuf",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "the same, for spans only",
    "OTEL_EXPORTER_OTLP_HEADERS": "name=value,… sent along, percent-encoded; spans only: …_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "seconds for an export with its retries, default 10; spans only: …_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "none (default) or gzip; spans only: …_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "CA of the Collector, a PEM file; spans only: …_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY": "our key for mutual TLS; spans only: …_TRACES_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "our certificate for it; spans only: …_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_INSECURE": "true for gRPC without TLS where no scheme says it; spans only: …_TRACES_INSECURE",
    "OTEL_TRACES_EXPORTER": "otlp, or none to switch spans off",
    "OTEL_SDK_DISABLED": "true switches spans off",
    "OTEL_TRACES_SAMPLER": "always_on, always_off, traceidratio, or parentbased_ and one of them",
    "OTEL_TRACES_SAMPLER_ARG": "share of new traces that is recorded, 0 to 1; default 1",
    "OTEL_SERVICE_NAME": "service.name of the spans; default vllm",
    "OTEL_RESOURCE_ATTRIBUTES": "further resource attributes",
    "OTEL_BSP_MAX_QUEUE_SIZE": "spans that may wait for the Collector before new ones are dropped; default 2048",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "spans per export; default 512",
    "OTEL_BSP_SCHEDULE_DELAY": "milliseconds between two exports; default 5000",
    "LLMOBS_TRACE_LABELS": "labels of the model, put on the root span: version=7,canary=true",
    "LLMOBS_TRACE_DETAIL": "allow lets a caller ask for token detail with the header X-LLMObs-Detail: 1",
    "LLMOBS_TRACE_DETAIL_RATIO": "share of the recorded traces that get token detail, 0 to 1; default 0",
    "LLMOBS_TRACE_DETAIL_EVERY": "after the first 64 steps every k-th is kept; default 16",
    "LLMOBS_TRACE_LAYERS": "one engine step in N becomes a trace of its decoder layers; default 0, off",
}

_SAMPLERS = ("always_on", "always_off", "traceidratio")
_PROTOCOLS = ("grpc", "http/protobuf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """What the operator chose, checked. `delay` is in seconds, `queue` and `batch` in spans, ratios are 0–1.

    `endpoint` is only set when the exporter must be told, which is when vLLM's flag names it; else the exporter reads
    its own variables. `layers` is the N of "one engine step in N", 0 for none.
    """

    endpoint: str | None = None
    protocol: str = "grpc"
    parent_based: bool = True
    ratio: float = 1.0
    queue: int = 2048
    batch: int = 512
    delay: float = 5.0
    labels: Mapping[str, str]
    detail_allowed: bool = False
    detail_ratio: float = 0.0
    detail_every: int = 16
    layers: int = 0


def load(
    environ: Mapping[str, str] = os.environ, *, endpoint: str | None = None
) -> tuple[TraceSettings | None, tuple[str, ...]]:
    """Return the settings, or None when spans are off, and one sentence for each value that cannot be used.

    `endpoint` is that of vLLM's ``--otlp-traces-endpoint``, which is enough to switch spans on.
    """
    reader = _Reader(environ)
    exporter = reader.text("OTEL_TRACES_EXPORTER").lower()
    own = reader.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or reader.text("OTEL_EXPORTER_OTLP_ENDPOINT")
    if reader.text("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none":
        return None, ()
    if exporter and exporter != "otlp":
        return None, (f"OTEL_TRACES_EXPORTER={exporter!r} is neither otlp nor none; no spans are made",)
    if not (own or endpoint or exporter):
        return None, ()
    protocol = reader.text("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or reader.text("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if protocol not in _PROTOCOLS:
        return None, (f"OTLP protocol {protocol!r} is not one of {', '.join(_PROTOCOLS)}; no spans are made",)
    parent_based, ratio = reader.sampler()
    queue = int(reader.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, low=1))
    settings = TraceSettings(
        endpoint=endpoint,
        protocol=protocol,
        parent_based=parent_based,
        ratio=ratio,
        queue=queue,
        batch=min(queue, int(reader.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, low=1))),
        delay=reader.number("OTEL_BSP_SCHEDULE_DELAY", 5000, low=1) / 1000,
        labels=reader.labels("LLMOBS_TRACE_LABELS"),
        detail_allowed=reader.text("LLMOBS_TRACE_DETAIL").lower() == "allow",
        detail_ratio=reader.number("LLMOBS_TRACE_DETAIL_RATIO", 0, low=0, high=1),
        detail_every=int(reader.number("LLMOBS_TRACE_DETAIL_EVERY", 16, low=1)),
        layers=int(reader.number("LLMOBS_TRACE_LAYERS", 0, low=0)),
    )
    return settings, tuple(reader.problems)


class _Reader:
    """Reads typed values and collects what is wrong with them; an empty variable counts as unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def number(self, name: str, default: float, *, low: float, high: float = float("inf")) -> float:
        text = self.text(name)
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high or value == float("inf"):
            span = f"from {low:g} to {high:g}" if high != float("inf") else f"of at least {low:g}"
            self.problems.append(f"{name}={text!r} is not a number {span}; using {default:g}")
            return default
        return value

    def sampler(self) -> tuple[bool, float]:
        """Return whether the caller's decision is followed, and the share of traces that start here."""
        name = self.text("OTEL_TRACES_SAMPLER").lower() or "parentbased_traceidratio"
        kind = name.removeprefix("parentbased_")
        if kind not in _SAMPLERS:
            self.problems.append(f"OTEL_TRACES_SAMPLER={name!r} is not known; using parentbased_traceidratio")
            name, kind = "parentbased_traceidratio", "traceidratio"
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
        if ratio is None:
            ratio = self.number("OTEL_TRACES_SAMPLER_ARG", 1.0, low=0, high=1)
        return name != kind, ratio

    def labels(self, name: str) -> Mapping[str, str]:
        found = {}
        for part in filter(None, (p.strip() for p in self.text(name).split(","))):
            key, equals, value = part.partition("=")
            if not equals or not key.strip().replace("_", "").isalnum():
                self.problems.append(f"{name}: {part!r} is not NAME=VALUE; leaving it out")
                continue
            found[key.strip()] = value.strip()
        return found
