"""Images that the compose file and the examples run, pinned by version.

A version tag can be moved by whoever owns it; a digest cannot. For production replace ``name:tag`` by
``name:tag@sha256:<digest>``, where ``docker buildx imagetools inspect name:tag`` shows the digest.
"""

from __future__ import annotations

VLLM = "vllm/vllm-openai:v0.32.0"
VLLM_CPU = "vllm/vllm-openai-cpu:v0.32.0"
COLLECTOR = "otel/opentelemetry-collector-contrib:0.157.0"
TEMPO = "grafana/tempo:3.0.3"
LOKI = "grafana/loki:3.6.0"
PROMETHEUS = "prom/prometheus:v3.14.0"
ALERTMANAGER = "prom/alertmanager:v0.30.0"
GRAFANA = "grafana/grafana:13.1.3"
