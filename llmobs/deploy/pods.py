"""Which vLLM pods run on this node: asked from the Kubernetes API, written as a file_sd file for `llmobs run`.

Used by the DaemonSet variant. It lists, it does not watch: one small request every ten seconds from each node, which
needs the single verb ``list`` on pods. When the API does not answer, the file stays as it was.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmobs import log
from llmobs.errors import ConfigError, LlmobsError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach the API: its address, and the files with the token (it is renewed) and the authority."""

    url: str
    token_file: Path
    ca_file: Path | None

    @classmethod
    def from_pod(cls) -> Cluster:
        """Return the cluster this process runs in. Raises ConfigError outside of one."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (_ACCOUNT / "token").exists():
            raise ConfigError("`llmobs pods` runs in a Kubernetes pod with a service account; there is none here")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which pods are wanted, and which of their ports is the API: a name, or a number."""

    node: str
    selector: str
    namespace: str | None = None
    port: str = "http"


def follow(cluster: Cluster, query: Query, out: Path, interval: float) -> None:
    """Keep `out` current until SIGTERM or SIGINT. Returns then."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        try:
            update(cluster, query, out)
        except LlmobsError as error:
            log.get().warning("pods_failed", detail=str(error))
        stop.wait(interval)


def update(cluster: Cluster, query: Query, out: Path) -> bool:
    """Ask once and write `out` when something changed; return whether it did. Raises LlmobsError when it fails."""
    text = json.dumps(groups(_ask(cluster, query), query.port), indent=1, sort_keys=True) + "\n"
    if out.exists() and out.read_text(encoding="utf-8") == text:
        return False
    part = out.with_name(f".{out.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(out)
    return True


def groups(answer: Mapping[str, Any], port: str) -> list[dict[str, Any]]:
    """Return the file_sd groups for a PodList: one per running pod that has an address and the port.

    The labels name the watched pod; they have a prefix, because `pod` and `namespace` are the labels of llmobs' own
    pod where Prometheus scrapes it.
    """
    found = []
    for pod in answer.get("items") or []:
        meta, status = pod.get("metadata") or {}, pod.get("status") or {}
        number = _port(pod.get("spec") or {}, port)
        address = status.get("podIP")
        if status.get("phase") != "Running" or not address or number is None or meta.get("deletionTimestamp"):
            continue
        host = f"[{address}]" if ":" in address else address
        labels = {"vllm_pod": str(meta.get("name")), "vllm_namespace": str(meta.get("namespace"))}
        found.append({"targets": [f"{host}:{number}"], "labels": labels})
    return sorted(found, key=lambda group: str(group["targets"]))


def _port(spec: Mapping[str, Any], port: str) -> int | None:
    if port.isdigit():
        return int(port)
    for container in spec.get("containers") or []:
        for entry in container.get("ports") or []:
            if entry.get("name") == port:
                return int(entry["containerPort"])
    return None


def _ask(cluster: Cluster, query: Query) -> Mapping[str, Any]:
    scope = f"namespaces/{urllib.parse.quote(query.namespace)}/" if query.namespace else ""
    parameters = {"fieldSelector": f"spec.nodeName={query.node}", "labelSelector": query.selector}
    url = f"{cluster.url}/api/v1/{scope}pods?{urllib.parse.urlencode(parameters)}"
    try:
        token = cluster.token_file.read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(cluster.ca_file)) if cluster.ca_file else None
        # The API is never behind a proxy of the environment.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        request = urllib.request.Request(  # noqa: S310
            url, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"}
        )
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            document = json.loads(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        hint = "; it needs the verb list on pods (see deploy/kubernetes/overlays/node)" if error.code == 403 else ""
        raise LlmobsError(f"the Kubernetes API answered {error.code} to the list of pods{hint}") from None
    except (OSError, ValueError) as error:
        raise LlmobsError(f"the Kubernetes API cannot be asked for pods: {error}") from None
    if not isinstance(document, dict):
        raise LlmobsError("the Kubernetes API answered something else than a list of pods")
    return document
