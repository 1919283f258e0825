"""What is known about each component of the OpenTelemetry Collector that our pipelines use.

Setting names are those of the components' own documentation; a setting that is not listed is refused at generation,
as ``otelcol validate`` would refuse it at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Signal = Literal["traces", "metrics", "logs"]
Role = Literal["receiver", "processor", "exporter", "connector", "extension"]

ALL: frozenset[Signal] = frozenset(("traces", "metrics", "logs"))

_QUEUE = ("sending_queue", "retry_on_failure", "timeout")


@dataclass(frozen=True, slots=True)
class Kind:
    """One component type. `place` orders processors; `old` is its name before Collector `RENAMED`."""

    role: Role
    settings: tuple[str, ...]
    signals: frozenset[Signal] = ALL
    #: Connectors only: the signals they give, where `signals` are those they take.
    gives: frozenset[Signal] = frozenset()
    place: int = 0
    old: str | None = None


#: From this version on, every renamed type is known under its new name (the renames came between 0.144 and 0.157);
#: older Collectors know only the old names, newer ones take both and warn about the old.
RENAMED = (0, 157)

#: Component type (today's name) → what it is. Places of processors: the limiter refuses work before any is done; what
#: needs the sender's address comes before anything that regroups; content is removed before anything can keep it;
#: sampling sees complete, clean spans.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # Receivers
        "otlp": Kind("receiver", ("protocols",)),
        "prometheus": Kind("receiver", ("config", "target_allocator"), frozenset(("metrics",))),
        "file_log": Kind(
            "receiver",
            ("include", "exclude", "start_at", "operators", "resource", "storage", "include_file_path",
             "max_log_size", "poll_interval", "retry_on_failure"),
            frozenset(("logs",)), old="filelog",
        ),
        # Processors
        "memory_limiter": Kind(
            "processor",
            ("check_interval", "limit_mib", "spike_limit_mib", "limit_percentage", "spike_limit_percentage"),
            place=1,
        ),
        "resource_detection": Kind(
            "processor", ("detectors", "override", "timeout", "system", "env"), place=2, old="resourcedetection"
        ),
        "k8s_attributes": Kind(
            "processor", ("auth_type", "passthrough", "filter", "extract", "pod_association", "wait_for_metadata"),
            place=3, old="k8sattributes",
        ),
        "filter": Kind("processor", ("error_mode", "traces", "metrics", "logs"), place=4),
        "transform": Kind(
            "processor", ("error_mode", "trace_statements", "metric_statements", "log_statements"), place=5
        ),
        "resource": Kind("processor", ("attributes",), place=6),
        "tail_sampling": Kind(
            "processor",
            ("decision_wait", "num_traces", "expected_new_traces_per_sec", "decision_cache", "policies",
             "sample_on_first_match", "drop_pending_traces_on_shutdown"),
            frozenset(("traces",)), place=7,
        ),
        "batch": Kind("processor", ("timeout", "send_batch_size", "send_batch_max_size"), place=8),
        # Exporters
        "otlp_grpc": Kind("exporter", ("endpoint", "tls", "headers", "compression", *_QUEUE), old="otlp"),
        "otlp_http": Kind(
            "exporter", ("endpoint", "traces_endpoint", "logs_endpoint", "tls", "headers", "compression", *_QUEUE),
            old="otlphttp",
        ),
        "prometheus_remote_write": Kind(
            "exporter",
            ("endpoint", "tls", "headers", "external_labels", "resource_to_telemetry_conversion", "remote_write_queue",
             "retry_on_failure", "timeout", "target_info", "wal", "send_metadata", "add_metric_suffixes"),
            frozenset(("metrics",)), old="prometheusremotewrite",
        ),
        "load_balancing": Kind(
            "exporter", ("routing_key", "protocol", "resolver", *_QUEUE), frozenset(("traces", "logs")),
            old="loadbalancing",
        ),
        "debug": Kind("exporter", ("verbosity",)),
        # Connectors
        "span_metrics": Kind(
            "connector",
            ("histogram", "dimensions", "exclude_dimensions", "namespace", "metrics_flush_interval",
             "metrics_expiration", "exemplars", "resource_metrics_key_attributes", "aggregation_cardinality_limit"),
            frozenset(("traces",)), frozenset(("metrics",)), old="spanmetrics",
        ),
        "forward": Kind("connector", (), ALL, ALL),
        # Extensions
        "health_check": Kind("extension", ("endpoint", "path")),
        "file_storage": Kind("extension", ("directory", "create_directory", "timeout", "compaction", "fsync")),
        "zpages": Kind("extension", ("endpoint",)),
    }
)  # fmt: skip


def type_name(component_type: str, release: tuple[int, int]) -> str:
    """Return what a Collector of `release` (major, minor) calls the type."""
    old = KINDS[component_type].old
    return component_type if old is None or release >= RENAMED else old
