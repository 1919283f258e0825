"""The components behind which data leaves a Collector: queues, retries, and the exporters."""

from __future__ import annotations

from llmobs.collector.model import Component
from llmobs.collector.settings import Settings
from llmobs.collector.text import Noted, Value


def queue(settings: Settings, *, items: int) -> Value:
    """Return a sending queue of `items` spans, points or records that survives a restart and batches what it sends."""
    if not settings.queue_batches:
        size: Value = Noted("In requests, each a batch. A full queue drops; see enqueue_failed.", max(1, items // 2048))
        return {"queue_size": size, "num_consumers": 10, "storage": "file_storage"}
    return {
        "sizer": "items",
        "queue_size": Noted("In spans, points or records. A full queue drops; see enqueue_failed.", items),
        "num_consumers": 10,
        "storage": "file_storage",
        "batch": {"flush_timeout": "1s", "min_size": 2048, "max_size": 8192},
    }


def batch() -> Component:
    """Return the batch processor, for Collectors whose queues do not batch."""
    return Component(
        "processor",
        "batch",
        {"timeout": "1s", "send_batch_size": 2048, "send_batch_max_size": 8192},
        note="Last. Newer Collectors batch in the exporter's queue, which loses nothing at a restart.",
    )


def retry() -> Value:
    """Return retries that give up after five minutes, so that a dead backend does not fill the queue with the old."""
    return {"enabled": True, "initial_interval": "1s", "max_interval": "30s", "max_elapsed_time": "300s"}


def tempo(settings: Settings) -> Component:
    """Return the way to Tempo."""
    return Component(
        "exporter",
        "otlp_grpc/tempo",
        {
            "endpoint": "${env:LLMOBS_TEMPO_ENDPOINT:-tempo:4317}",
            "tls": {"insecure": Noted("true only where the network is trusted.", "${env:LLMOBS_TEMPO_INSECURE:-true}")},
            "retry_on_failure": retry(),
            "sending_queue": queue(settings, items=100_000),
        },
    )


def loki(settings: Settings) -> Component:
    """Return the way to Loki, by OTLP: resource attributes become labels as Loki's own configuration says."""
    return Component(
        "exporter",
        "otlp_http/loki",
        {
            "endpoint": "${env:LLMOBS_LOKI_ENDPOINT:-http://loki:3100/otlp}",
            "retry_on_failure": retry(),
            "sending_queue": queue(settings, items=50_000),
        },
    )


def remote_write() -> Component:
    """Return the way to Prometheus or Mimir."""
    return Component(
        "exporter",
        "prometheus_remote_write",
        {
            "endpoint": "${env:LLMOBS_REMOTE_WRITE_URL:-http://prometheus:9090/api/v1/write}",
            "resource_to_telemetry_conversion": {"enabled": False},
            "retry_on_failure": retry(),
            "remote_write_queue": Noted(
                "In memory: this exporter has no persistent queue. What a restart loses is seconds of span metrics;\n"
                "the sidecar's own metrics are scraped by Prometheus and do not pass here.",
                {"enabled": True, "queue_size": 10_000, "num_consumers": 5},
            ),
        },
        note="Prometheus needs --web.enable-remote-write-receiver and --enable-feature=exemplar-storage; for Mimir\n"
        "set LLMOBS_REMOTE_WRITE_URL=http://mimir/api/v1/push and the tenant's X-Scope-OrgID header.",
    )


def gateway_exporter(settings: Settings) -> Component:
    """Return the way from an agent to the gateway, or to the load balancer in front of several."""
    return Component(
        "exporter",
        "otlp_grpc/gateway",
        {
            "endpoint": "${env:LLMOBS_GATEWAY_ENDPOINT:-llmobs-gateway:4317}",
            "tls": {"insecure": "${env:LLMOBS_GATEWAY_INSECURE:-true}"},
            "retry_on_failure": retry(),
            "sending_queue": queue(settings, items=50_000),
        },
    )


def load_balancing(settings: Settings) -> Component:
    """Return the exporter that sends all spans of one trace to one gateway."""
    return Component(
        "exporter",
        "load_balancing",
        {
            "routing_key": "traceID",
            "protocol": {"otlp": {"tls": {"insecure": True}, "timeout": "5s"}},
            "resolver": {"dns": {"hostname": settings.gateway_dns, "port": "4317", "interval": "10s"}},
            "retry_on_failure": retry(),
            "sending_queue": queue(settings, items=100_000),
        },
        note="Why by trace id: tail sampling decides about a whole trace, and it can only do so where all of its\n"
        "spans are. A plain Service spreads connections: half a trace would be judged here and half there,\n"
        "and errors would be kept without their cause. When a gateway comes or goes, about 1/N of the open\n"
        "traces move: expect a few incomplete ones then.",
    )
