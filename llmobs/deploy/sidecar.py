"""The sidecar container, once: the kustomize component, the overlays and the patch of a user's file all use it."""

from __future__ import annotations

from collections.abc import Mapping

from llmobs.collector.text import Noted, Value
from llmobs.deploy.settings import PORT, STATE_DIR, Settings

NAME = "llmobs"
VOLUME = "llmobs-state"
PLUGIN = "llmobs-plugin"
PLUGIN_DIR = "/opt/llmobs-plugin"


def arguments(settings: Settings, url: str, *, pod_labels: bool = True, api_key_env: str | None = None) -> list[str]:
    """Return the arguments of ``llmobs`` for the servers to watch; `url` is the one in the same pod."""
    out = ["run"]
    out += [f"--target={target}" for target in settings.target(url)]
    out.append(f"--state-dir={STATE_DIR}")
    out += [f"--label={name}={value}" for name, value in settings.labels.items()]
    if pod_labels:
        # Kubernetes fills $(VAR) in; a pod without the label gives an empty value, which llmobs leaves out.
        out += [f"--label={name}=$({variable(name)})" for name in settings.pod_labels if name not in settings.labels]
    if api_key_env:
        out.append(f"--api-key-env={api_key_env}")
    return out


def variable(label: str) -> str:
    """Return the environment variable that carries a pod label into the arguments."""
    return f"POD_LABEL_{label.upper()}"


def environment(settings: Settings) -> list[Value]:
    """Return the environment: which GPUs are seen, and the pod's labels."""
    out: list[Value] = [
        Noted(
            "Sees the GPUs through NVML without requesting one (a request would take it from vLLM). Where the cluster\n"
            "forbids this, GPU metrics are absent and llmobs_nvml_error says why.",
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        ),
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ]
    out += [
        {"name": variable(name), "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{name}']"}}}
        for name in settings.pod_labels
        if name not in settings.labels
    ]
    return out


def security(*, run_as_user: int | None = None, run_as_group: int = 0) -> dict[str, Value]:
    """Return the container's security context; the user only where the image's own would not do."""
    context: dict[str, Value] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if run_as_user is not None:
        context["runAsUser"] = run_as_user
        context["runAsGroup"] = run_as_group
    return context


def resources() -> Value:
    """Return requests and limits. No CPU limit: throttling would make readings late, and the need is small."""
    return {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}


def liveness() -> Value:
    """Return the probe that restarts the sidecar, and only it."""
    return {"httpGet": {"path": "/-/healthy", "port": "llmobs"}, "periodSeconds": 10, "failureThreshold": 3}


def container(
    settings: Settings,
    url: str,
    *,
    native: bool = True,
    user: tuple[int, int] | None = None,
    extra_environment: tuple[Mapping[str, Value], ...] = (),
    api_key_env: str | None = None,
) -> dict[str, Value]:
    """Return the container.

    `native`: as an init container that keeps running (Kubernetes 1.29 and newer). `user`: uid and gid, where the
    image's own would not do.
    """
    out: dict[str, Value] = {"name": NAME, "image": settings.image}
    if native:
        out["restartPolicy"] = Noted("A native sidecar: starts before vLLM, ends after it, and sees it die.", "Always")
    out |= {
        "args": list(arguments(settings, url, api_key_env=api_key_env)),
        "env": [*environment(settings), *extra_environment],
        "ports": [{"name": "llmobs", "containerPort": PORT}],
        "livenessProbe": Noted(
            "No readiness probe: a sidecar that is not ready would take its pod, and so vLLM, out of service.",
            liveness(),
        ),
        "resources": resources(),
        "securityContext": security(run_as_user=user[0], run_as_group=user[1]) if user else security(),
        "volumeMounts": [{"name": VOLUME, "mountPath": STATE_DIR, "readOnly": True}],
    }
    return out


def volume() -> dict[str, Value]:
    """Return the volume that vLLM's process and the sidecar share: failure journal and log lines."""
    return {"name": VOLUME, "emptyDir": {"sizeLimit": "256Mi"}}


def engine_environment(*, plugin: bool = False) -> list[Value]:
    """Return what vLLM's container needs: where the plugin writes and the sidecar reads, and where the plugin is."""
    out: list[Value] = [{"name": "LLMOBS_STATE_DIR", "value": STATE_DIR}]
    if plugin:
        out.append(Noted("Python finds the plugin here; vLLM's image stays as it is.",
                         {"name": "PYTHONPATH", "value": PLUGIN_DIR}))  # fmt: skip
        out.append({"name": "LLMOBS_LOG", "value": f"stderr,{STATE_DIR}/vllm.jsonl"})
    return out


def engine_mounts(*, plugin: bool = False) -> list[Value]:
    """Return the mounts in vLLM's container."""
    mounts: list[Value] = [{"name": VOLUME, "mountPath": STATE_DIR}]
    if plugin:
        mounts.append({"name": PLUGIN, "mountPath": PLUGIN_DIR, "readOnly": True})
    return mounts


def plugin_volume() -> dict[str, Value]:
    """Return the volume that the plugin is copied into; a few megabytes of Python."""
    return {"name": PLUGIN, "emptyDir": {"sizeLimit": "32Mi"}}


def plugin_container(settings: Settings, *, user: tuple[int, int] | None = None) -> dict[str, Value]:
    """Return the init container that copies the plugin for vLLM, and ends."""
    return {
        "name": PLUGIN,
        "image": settings.image,
        "args": ["plugin", f"--to={PLUGIN_DIR}"],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": security(run_as_user=user[0], run_as_group=user[1]) if user else security(),
        "volumeMounts": [{"name": PLUGIN, "mountPath": PLUGIN_DIR}],
    }
