"""What the Prometheus operator and Grafana's sidecar are told: monitors, rules, dashboards."""

from __future__ import annotations

from llmobs.collector.text import Noted, Value
from llmobs.deploy.settings import Settings
from llmobs.deploy.workload import labels, metadata

#: Pod labels that become labels of every series, so that versions and canaries can be compared.
_POD_LABELS = ["version", "canary"]


def pod_monitor(settings: Settings) -> dict[str, Value]:
    """Return the PodMonitor of the sidecars."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "jobLabel": Noted("Makes the label job the workload's name.", "app.kubernetes.io/name"),
            "selector": {"matchLabels": labels(settings)},
            "podMetricsEndpoints": [
                {
                    "port": Noted("The sidecar only: vLLM's own page costs it time.", "llmobs"),
                    "interval": "15s",
                    "relabelings": [
                        Noted(
                            "The same pod name again after a restart is the same series.",
                            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"},
                        )
                    ],
                }
            ],
        },
    }


def service_monitor(name: str, settings: Settings) -> dict[str, Value]:
    """Return the ServiceMonitor of the node agents, whose labels name the pods they watch."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(name, settings),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "endpoints": [{"port": "llmobs", "interval": "15s"}],
        },
    }
