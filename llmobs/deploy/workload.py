"""The example workload: a vLLM server as users run it, before llmobs is added."""

from __future__ import annotations

from llmobs.collector.text import Noted, Value
from llmobs.deploy import images
from llmobs.deploy.settings import Settings

#: What every object of ours carries, and how the pods are found.
APP = "app.kubernetes.io/name"


def labels(settings: Settings) -> dict[str, Value]:
    """Return the labels that select the pods."""
    return {APP: settings.name}


def metadata(name: str, settings: Settings) -> dict[str, Value]:
    """Return metadata with the common labels; the namespace comes from the kustomization."""
    return {"name": name, "labels": {**labels(settings), "app.kubernetes.io/part-of": "llmobs"}}


def deployment(settings: Settings) -> dict[str, Value]:
    """Return the example Deployment."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels(settings)},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": _template(settings),
        },
    }


def stateful_set(settings: Settings) -> dict[str, Value]:
    """Return the example StatefulSet, for replicas whose names (and caches) stay."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "replicas": 2,
            "serviceName": f"{settings.name}-headless",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(settings)},
            "template": _template(settings),
        },
    }


def _template(settings: Settings) -> Value:
    return {
        "metadata": {"labels": {**labels(settings), "version": "v1"}},
        "spec": {
            "terminationGracePeriodSeconds": Noted("As long as the longest request may take.", 120),
            "containers": [
                {
                    "name": settings.container,
                    "image": images.VLLM,
                    "args": [f"--model={settings.model}", f"--served-model-name={settings.model_name}"],
                    "ports": [{"name": "http", "containerPort": 8000}],
                    "startupProbe": Noted(
                        "Loading weights takes minutes; nothing listens until then.",
                        {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 180},
                    ),
                    "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        },
    }


def services(settings: Settings) -> list[dict[str, Value]]:
    """Return the Service that clients use, and the headless one that names each replica."""
    http: Value = {"name": "http", "port": 8000, "targetPort": "http"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(settings.name, settings),
            "spec": {"selector": labels(settings), "ports": [http]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(f"{settings.name}-headless", settings),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": Noted("A replica that is still loading is watched too.", True),
                "selector": labels(settings),
                "ports": [http, {"name": "llmobs", "port": 9401, "targetPort": "llmobs"}],
            },
        },
    ]


def network_policy(settings: Settings) -> dict[str, Value]:
    """Return who may reach the pods: clients the API, the monitoring namespace the metrics."""
    monitoring: Value = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(f"{settings.name}-llmobs", settings),
        "spec": {
            "podSelector": {"matchLabels": labels(settings)},
            "policyTypes": ["Ingress"],
            "ingress": [
                Noted(
                    "The API: everyone who could reach it before. Narrow this to your gateway's namespace.",
                    {"ports": [{"port": 8000, "protocol": "TCP"}]},
                ),
                Noted(
                    "Metrics and the live page: the namespace Prometheus runs in, and nobody else.",
                    {"from": [monitoring], "ports": [{"port": 9401, "protocol": "TCP"}]},
                ),
            ],
        },
    }


def disruption_budget(settings: Settings) -> dict[str, Value]:
    """Return a PodDisruptionBudget: a node drain takes one replica at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(settings.name, settings),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": Noted(
                "A replica that hangs may be evicted, so that it does not block the drain of its node.", "AlwaysAllow"
            ),
            "selector": {"matchLabels": labels(settings)},
        },
    }
