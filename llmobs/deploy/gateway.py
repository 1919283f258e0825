"""The Collector in Kubernetes: gateways that sample, and a load balancer in front of them."""

from __future__ import annotations

from llmobs.collector.text import Noted, Value
from llmobs.deploy import images
from llmobs.deploy.settings import Settings
from llmobs.deploy.workload import metadata

GATEWAY, BALANCER = "llmobs-gateway", "llmobs-load-balancer"
_OTLP: list[Value] = [{"name": "otlp-grpc", "port": 4317}, {"name": "otlp-http", "port": 4318}]


def documents(settings: Settings) -> dict[str, dict[str, Value]]:
    """Return the manifests by file name. The ConfigMaps come from the kustomization in ``collector/``."""
    return {
        "gateway.yaml": _stateful_set(settings),
        "gateway-service.yaml": _service(settings, "llmobs-gateway-headless", GATEWAY, headless=True),
        "load-balancer.yaml": _deployment(settings),
        # Senders know this name; with one gateway and no balancer, let it select the gateway instead.
        "load-balancer-service.yaml": _service(settings, GATEWAY, BALANCER, headless=False),
        "serviceaccount.yaml": {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(GATEWAY, settings)},
        "role.yaml": _role(settings),
        "rolebinding.yaml": _binding(settings),
    }


def _metadata(name: str, settings: Settings, app: str | None = None) -> dict[str, Value]:
    labels: Value = {"app.kubernetes.io/name": app or name, "app.kubernetes.io/part-of": "llmobs"}
    return {**metadata(name, settings), "labels": labels}


def _stateful_set(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(GATEWAY, settings),
        "spec": {
            "replicas": 2,
            "serviceName": "llmobs-gateway-headless",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app.kubernetes.io/name": GATEWAY}},
            "template": _template(GATEWAY, "2Gi", "1600MiB"),
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "state"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
                }
            ],
        },
    }


def _deployment(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(BALANCER, settings),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app.kubernetes.io/name": BALANCER}},
            "template": _template(BALANCER, "512Mi", "400MiB", ephemeral=True),
        },
    }


def _template(name: str, limit: str, gomemlimit: str, *, ephemeral: bool = False) -> dict[str, Value]:
    container: Value = {
        "name": "collector",
        "image": images.COLLECTOR,
        "args": ["--config=/etc/otelcol/config.yaml"],
        "env": [
            {"name": "GOMEMLIMIT", "value": Noted("80 % of the memory limit.", gomemlimit)},
            {"name": "LLMOBS_COLLECTOR_STATE", "value": "/var/lib/otelcol"},
        ],
        "ports": [
            {"name": "otlp-grpc", "containerPort": 4317},
            {"name": "otlp-http", "containerPort": 4318},
            {"name": "metrics", "containerPort": 8888},
            {"name": "health", "containerPort": 13133},
        ],
        "livenessProbe": {"httpGet": {"path": "/", "port": "health"}, "initialDelaySeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/", "port": "health"}},
        "resources": {"requests": {"cpu": "200m", "memory": limit}, "limits": {"memory": limit}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/otelcol", "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/otelcol"},
        ],
    }
    volumes: list[Value] = [{"name": "config", "configMap": {"name": f"{name}-config"}}]
    if ephemeral:
        volumes.append({"name": "state", "emptyDir": {"sizeLimit": "2Gi"}})
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "serviceAccountName": GATEWAY,
            "terminationGracePeriodSeconds": 60,
            "securityContext": {"fsGroup": 10001},
            "containers": [container],
            "volumes": volumes,
        },
    }


def _service(settings: Settings, name: str, app: str, *, headless: bool) -> dict[str, Value]:
    spec: dict[str, Value] = {"selector": {"app.kubernetes.io/name": app}, "ports": _OTLP}
    if headless:
        spec = {
            "clusterIP": Noted("All addresses by DNS, so that the balancer can choose by trace id.", "None"),
            **spec,
        }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, settings, app), "spec": spec}


def _role(settings: Settings) -> dict[str, Value]:
    """Return what the k8s_attributes processor needs, and nothing else."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": _metadata(GATEWAY, settings),
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list", "watch"]},
        ],
    }


def _binding(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": _metadata(GATEWAY, settings),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": GATEWAY},
        "subjects": [{"kind": "ServiceAccount", "name": GATEWAY, "namespace": settings.namespace}],
    }
