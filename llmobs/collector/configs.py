"""The four Collector configurations: agent, gateway, load balancer, all-in-one."""

from __future__ import annotations

from llmobs.collector import exits, parts
from llmobs.collector.checks import REDACTION, check
from llmobs.collector.model import Collector, Component, Pipeline
from llmobs.collector.settings import Settings

_STATE = "${env:LLMOBS_COLLECTOR_STATE:-/var/lib/otelcol}/queue"


def agent(settings: Settings) -> Collector:
    """Beside vLLM: takes spans and logs from the pod, scrapes the sidecar, hands everything to the gateway."""
    first = ("memory_limiter", "resource_detection")
    last = _last(settings)
    clean = (*first, *_redaction(settings), *last)
    gateway = ("otlp_grpc/gateway",)
    metrics = ("otlp", "prometheus") if settings.scrape else ("otlp",)
    return check(
        Collector(
            title="agent",
            longest_request_seconds=settings.longest_request,
            content_allowed=settings.content == "keep",
            components=(
                *_extensions(),
                parts.otlp_receiver(),
                *((parts.prometheus_receiver("${env:LLMOBS_SIDECAR:-localhost:9401}"),) if settings.scrape else ()),
                parts.log_files(),
                parts.memory_limiter(),
                parts.resource_detection(),
                *_redactor(settings),
                exits.gateway_exporter(settings),
                *_batcher(settings),
            ),
            pipelines=(
                Pipeline(signal="traces", receivers=("otlp",), processors=clean, exporters=gateway),
                Pipeline(signal="metrics", receivers=metrics, processors=(*first, *last), exporters=gateway),
                Pipeline(signal="logs", receivers=("otlp", "file_log"), processors=clean, exporters=gateway),
            ),
        )
    )


def gateway(settings: Settings) -> Collector:
    """One per cluster: Kubernetes attributes, span metrics, then tail sampling, then the backends."""
    return check(
        Collector(
            title="gateway",
            longest_request_seconds=settings.longest_request,
            content_allowed=settings.content == "keep",
            components=(*_extensions(), parts.otlp_receiver(), *_backend_components(settings, settings.kubernetes)),
            pipelines=_backend_pipelines(settings, settings.kubernetes, logs=("otlp",)),
        )
    )


def all_in_one(settings: Settings) -> Collector:
    """One Collector for one host or a trial: agent and gateway in one."""
    return check(
        Collector(
            title="all-in-one",
            longest_request_seconds=settings.longest_request,
            content_allowed=settings.content == "keep",
            components=(
                *_extensions(),
                parts.otlp_receiver(),
                parts.log_files(),
                *_backend_components(settings, kubernetes=False),
            ),
            pipelines=_backend_pipelines(settings, kubernetes=False, logs=("otlp", "file_log")),
        )
    )


def load_balancer(settings: Settings) -> Collector:
    """In front of more than one gateway: sends all spans of a trace to the same one."""
    # Attributes that need the sender's address are added here: the gateways see only this balancer.
    context = ("memory_limiter", *(("k8s_attributes",) if settings.kubernetes else ()))
    last = _last(settings)
    clean = (*context, *_redaction(settings), *last)
    return check(
        Collector(
            title="load balancer",
            longest_request_seconds=settings.longest_request,
            content_allowed=settings.content == "keep",
            components=(
                *_extensions(),
                parts.otlp_receiver(),
                parts.memory_limiter(),
                *((parts.k8s_attributes(),) if settings.kubernetes else ()),
                *_redactor(settings),
                exits.load_balancing(settings),
                *_batcher(settings),
                exits.remote_write(),
            ),
            pipelines=(
                Pipeline(signal="traces", receivers=("otlp",), processors=clean, exporters=("load_balancing",)),
                Pipeline(signal="logs", receivers=("otlp",), processors=clean, exporters=("load_balancing",)),
                Pipeline(
                    signal="metrics",
                    receivers=("otlp",),
                    processors=(*context, *last),
                    exporters=("prometheus_remote_write",),
                    note="Metrics have no trace to keep together and need no gateway.",
                ),
            ),
        )
    )


def _extensions() -> tuple[Component, ...]:
    return (parts.health_check(), parts.storage(_STATE))


def _last(settings: Settings) -> tuple[str, ...]:
    """Return what stands last before exporters: nothing where their queues batch."""
    return () if settings.queue_batches else ("batch",)


def _batcher(settings: Settings) -> tuple[Component, ...]:
    return () if settings.queue_batches else (exits.batch(),)


def _redaction(settings: Settings) -> tuple[str, ...]:
    return (REDACTION,) if settings.content == "redact" else ()


def _redactor(settings: Settings) -> tuple[Component, ...]:
    return (parts.redaction(),) if settings.content == "redact" else ()


def _backend_components(settings: Settings, kubernetes: bool) -> tuple[Component, ...]:
    return (
        parts.memory_limiter(),
        parts.k8s_attributes() if kubernetes else parts.resource_detection(),
        *_redactor(settings),
        parts.tail_sampling(settings),
        parts.span_metrics(),
        Component("connector", "forward/sampling", note="Carries the clean spans from the way in to the sampling."),
        exits.tempo(settings),
        exits.remote_write(),
        exits.loki(settings),
        *_batcher(settings),
    )


def _backend_pipelines(settings: Settings, kubernetes: bool, logs: tuple[str, ...]) -> tuple[Pipeline, ...]:
    context = ("memory_limiter", "k8s_attributes" if kubernetes else "resource_detection")
    clean = (*context, *_redaction(settings))
    last = _last(settings)
    return (
        Pipeline(
            signal="traces",
            name="in",
            receivers=("otlp",),
            processors=clean,
            exporters=("span_metrics", "forward/sampling"),
            note="Everything is cleaned and counted here, before any of it is sampled away.",
        ),
        Pipeline(
            signal="traces",
            name="sampled",
            receivers=("forward/sampling",),
            processors=("memory_limiter", "tail_sampling", *last),
            exporters=("otlp_grpc/tempo",),
        ),
        Pipeline(
            signal="metrics",
            receivers=("otlp", "span_metrics"),
            processors=("memory_limiter", *last),
            exporters=("prometheus_remote_write",),
        ),
        Pipeline(signal="logs", receivers=logs, processors=(*clean, *last), exporters=("otlp_http/loki",)),
    )
