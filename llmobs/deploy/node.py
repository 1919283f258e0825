"""The other way to watch: one llmobs per node for all vLLM pods on it, instead of a sidecar in each.

It suits pods one may not change. It knows less: no failure journal and no log (those are files in the pod), so OOM
events and failure reasons are seen only as far as vLLM's own metrics tell.
"""

from __future__ import annotations

from llmobs.collector.text import Noted, Value
from llmobs.deploy import sidecar
from llmobs.deploy.settings import PORT, Settings
from llmobs.deploy.workload import metadata

NAME = "llmobs-node"
_TARGETS = "/run/llmobs"


def documents(settings: Settings) -> dict[str, dict[str, Value]]:
    """Return the manifests by file name."""
    return {
        "daemonset.yaml": _daemon_set(settings),
        "serviceaccount.yaml": _account(settings),
        "role.yaml": _role(settings),
        "rolebinding.yaml": _binding(settings),
        "service.yaml": _service(settings),
    }


def _labels() -> dict[str, Value]:
    return {"app.kubernetes.io/name": NAME}


def _metadata(settings: Settings) -> dict[str, Value]:
    return {**metadata(NAME, settings), "labels": {**_labels(), "app.kubernetes.io/part-of": "llmobs"}}


def _daemon_set(settings: Settings) -> dict[str, Value]:
    mount: dict[str, Value] = {"name": "targets", "mountPath": _TARGETS}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(settings),
        "spec": {
            "selector": {"matchLabels": _labels()},
            "template": {
                "metadata": {"labels": _labels()},
                "spec": {
                    "serviceAccountName": NAME,
                    "nodeSelector": Noted("Nodes with GPUs, as the GPU feature discovery labels them.",
                                          {"nvidia.com/gpu.present": "true"}),
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [
                        {
                            "name": sidecar.NAME,
                            "image": settings.image,
                            "args": ["run", f"--set=discovery.files={_TARGETS}/*.json",
                                     "--set=discovery.refresh_seconds=5"],
                            "env": list(sidecar.environment(Settings(pod_labels=()))),
                            "ports": [{"name": "llmobs", "containerPort": PORT}],
                            "livenessProbe": sidecar.liveness(),
                            "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "llmobs"}},
                            "resources": sidecar.resources(),
                            "securityContext": sidecar.security(),
                            "volumeMounts": [{**mount, "readOnly": True}],
                        },
                        {
                            "name": "pods",
                            "image": settings.image,
                            "args": [
                                "pods",
                                "--node=$(NODE_NAME)",
                                Noted("The pods to watch; each must have a port named http.",
                                      f"--selector=app.kubernetes.io/name={settings.name}"),
                                f"--out={_TARGETS}/pods.json",
                            ],
                            "env": [{"name": "NODE_NAME",
                                     "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                            "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "96Mi"}},
                            "securityContext": sidecar.security(),
                            "volumeMounts": [mount],
                        },
                    ],
                    "volumes": [{"name": "targets", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}],
                },
            },
        },
    }  # fmt: skip


def _account(settings: Settings) -> dict[str, Value]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(settings)}


def _role(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": _metadata(settings),
        "rules": [
            Noted(
                "List pods, nothing else: no watch, no single reads, no secrets.",
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            )
        ],
    }


def _binding(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": _metadata(settings),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": settings.namespace}],
    }


def _service(settings: Settings) -> dict[str, Value]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(settings),
        "spec": {
            "clusterIP": "None",
            "selector": _labels(),
            "ports": [{"name": "llmobs", "port": PORT, "targetPort": "llmobs"}],
        },
    }
