"""The components that our Collector configurations share."""

from __future__ import annotations

from llmobs.collector.checks import REDACTION
from llmobs.collector.model import Component
from llmobs.collector.sampling import MARGIN_SECONDS, policies
from llmobs.collector.settings import Settings
from llmobs.collector.text import Noted, Value

#: Attributes that can hold what a user wrote or a model answered. Ours never do unless the operator switched it on;
#: other instrumentation in the same trace may.
CONTENT_KEYS = (
    r"^gen_ai\.(prompt|completion|input\.messages|output\.messages|system_instructions|tool\.definitions)",
    r"^gen_ai\.tool\.call\.(arguments|result)$",
    r"^(llm\.(prompts|completions|input_messages|output_messages|prompt_template)|input\.value|output\.value)",
    r"^traceloop\.entity\.(input|output)$",
    r"^(http\.(request|response)\.body|db\.(statement|query\.text))",
)
#: Layout of our timestamps, in the notation of Go's time package.
_ISO = "2006-01-02T15:04:05.999999Z07:00"

#: Credentials that instrumentation of HTTP clients and servers may record.
CREDENTIAL_KEYS = r"^http\.(request|response)\.header\.(proxy-authorization|authorization|cookie|set-cookie|x-api-key)$"

#: Bounds of the span metrics in Go durations: up to half an hour, because a long generation is no outlier.
SPAN_BUCKETS = (
    "1ms", "2500us", "5ms", "10ms", "25ms", "50ms", "100ms", "250ms", "500ms", "1s", "2500ms", "5s", "10s", "30s",
    "60s", "120s", "300s", "600s", "1800s",
)  # fmt: skip


def otlp_receiver() -> Component:
    """Return the way in for spans, metrics and logs; bound to all addresses, IPv4 and IPv6."""
    protocols: Value = {
        "grpc": {"endpoint": "[::]:4317", "max_recv_msg_size_mib": 16},
        "http": {"endpoint": "[::]:4318"},
    }
    return Component("receiver", "otlp", {"protocols": protocols})


def prometheus_receiver(target: str) -> Component:
    """Return a scrape of the sidecar, for platforms whose metrics travel through the Collector."""
    job: Value = {
        "job_name": "llmobs",
        "scrape_interval": "15s",
        "scrape_protocols": ["OpenMetricsText1.0.0", "PrometheusText0.0.4"],
        "static_configs": [{"targets": [target]}],
    }
    return Component(
        "receiver",
        "prometheus",
        {"config": {"scrape_configs": [job]}},
        note="Scrapes the sidecar only: vLLM's own page is expensive and changes its names. Where Prometheus scrapes\n"
        "the sidecar itself, generate with collector.scrape: false, or everything is stored twice.",
    )


def log_files() -> Component:
    """Return the reader of the JSON lines that llmobs writes inside vLLM."""
    operators: Value = [
        {
            "type": "json_parser",
            "timestamp": {"parse_from": "attributes.timestamp", "layout_type": "gotime", "layout": _ISO},
            "severity": {"parse_from": "attributes.level"},
            "trace": {
                "trace_id": {"parse_from": "attributes.trace_id"},
                "span_id": {"parse_from": "attributes.span_id"},
            },
            "on_error": "send_quiet",
        }
    ]
    return Component(
        "receiver",
        "file_log",
        {
            "include": ["${env:LLMOBS_LOG_GLOB:-/var/lib/llmobs/*.log}"],
            "start_at": "end",
            "storage": "file_storage",
            "operators": operators,
        },
        note="One JSON object a line; a line that is not JSON is passed on as it is.",
    )


def memory_limiter() -> Component:
    """Return the limiter; first in every pipeline."""
    return Component(
        "processor",
        "memory_limiter",
        {"check_interval": "1s", "limit_percentage": 80, "spike_limit_percentage": 20},
        note="First, so that work is refused before it is done. Set GOMEMLIMIT to 80 % of the container's limit.",
    )


def resource_detection() -> Component:
    """Return the host's and the environment's resource attributes."""
    return Component(
        "processor",
        "resource_detection",
        {"detectors": ["env", "system"], "override": False, "timeout": "5s"},
        note="What the sender said about itself wins.",
    )


def k8s_attributes() -> Component:
    """Return the pod's attributes, found by the sender's address or the uid that it sent."""
    names = ("k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.node.name", "k8s.deployment.name")
    association: Value = [
        {"sources": [{"from": "resource_attribute", "name": "k8s.pod.uid"}]},
        {"sources": [{"from": "connection"}]},
    ]
    return Component(
        "processor",
        "k8s_attributes",
        {"auth_type": "serviceAccount", "extract": {"metadata": list(names)}, "pod_association": association},
        note="Needs the sender's address, so it stands before whatever regroups spans; and get/list/watch on pods.",
    )


def redaction() -> Component:
    """Return the second wall: delete content and credentials from whatever arrives."""
    keys = [f'delete_matching_keys(attributes, "{_ottl(pattern)}")' for pattern in (*CONTENT_KEYS, CREDENTIAL_KEYS)]
    return Component(
        "processor",
        REDACTION,
        {
            # A statement that cannot be applied must not let the span pass unredacted.
            "error_mode": Noted("A statement that fails stops the batch instead of letting content pass.", "propagate"),
            "trace_statements": [
                {"context": "span", "statements": list(keys)},
                {"context": "spanevent", "statements": list(keys)},
            ],
            "log_statements": [{"context": "log", "statements": list(keys)}],
        },
        note="Prompts and completions are not ours to keep. llmobs never sends them unless told to; this is a\n"
        "second wall, for other instrumentation in the same traces.",
    )


def _ottl(pattern: str) -> str:
    return pattern.replace("\\", "\\\\")


def tail_sampling(settings: Settings) -> Component:
    """Return the decision which traces to keep."""
    return Component(
        "processor",
        "tail_sampling",
        {
            "decision_wait": Noted(
                f"Longer than the longest request ({settings.longest_request} s): its spans arrive when it ends,\n"
                "and a decision before that would be made without them.",
                f"{settings.longest_request + MARGIN_SECONDS}s",
            ),
            "num_traces": Noted(
                "New traces per second × decision_wait must stay below this, or the oldest are decided too early:\n"
                "watch otelcol_processor_tail_sampling_sampling_trace_dropped_too_early.",
                settings.traces_in_memory,
            ),
            "decision_cache": Noted(
                "A span that comes after the decision follows it. Larger than num_traces.",
                {
                    "sampled_cache_size": 2 * settings.traces_in_memory,
                    "non_sampled_cache_size": 10 * settings.traces_in_memory,
                },
            ),
            "policies": policies(settings),
        },
        note="Every span of a trace must reach the same gateway; see load-balancer.yaml for more than one.",
    )


def span_metrics() -> Component:
    """Return rates and durations per span name, with exemplars."""
    return Component(
        "connector",
        "span_metrics",
        {
            "histogram": {"unit": "s", "explicit": {"buckets": list(SPAN_BUCKETS)}},
            "dimensions": Noted(
                "Few and closed: each value multiplies the series.",
                [{"name": "gen_ai.request.model"}, {"name": "error.type"}],
            ),
            "exemplars": {"enabled": True},
            "metrics_flush_interval": "15s",
            "metrics_expiration": Noted("The default, 0, keeps a replica's series for ever after it is gone.", "5m"),
            "resource_metrics_key_attributes": ["service.name", "k8s.namespace.name"],
        },
        note="Fed before sampling: after it, it would count only what was kept.",
    )


def storage(directory: str) -> Component:
    """Return the place where queues survive a restart."""
    return Component(
        "extension", "file_storage", {"directory": directory, "create_directory": True, "timeout": "10s"},
        note="Mount a volume here: a queue in the container's own file system is gone with the container.",
    )  # fmt: skip


def health_check() -> Component:
    """Return the address that probes ask."""
    return Component("extension", "health_check", {"endpoint": "[::]:13133"})
