"""Finding a node's vLLM pods through the Kubernetes API."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from llmobs.config import DiscoverySettings
from llmobs.deploy.pods import Cluster, Query, groups, update
from llmobs.errors import ConfigError, LlmobsError
from llmobs.exporter.discovery import read_files


def _pod(name: str, address: str | None = "10.0.0.1", **changes: Any) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "vllm"},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"phase": "Running", "podIP": address},
    }
    for key, value in changes.items():
        pod[key] = {**pod[key], **value}
    return pod


def test_a_running_pod_is_a_target() -> None:
    """A running pod becomes one target with labels that name it, IPv6 addresses in brackets."""
    found = groups({"items": [_pod("a"), _pod("b", "fd00::7")]}, "http")
    assert found == [
        {"targets": ["10.0.0.1:8000"], "labels": {"vllm_pod": "a", "vllm_namespace": "vllm"}},
        {"targets": ["[fd00::7]:8000"], "labels": {"vllm_pod": "b", "vllm_namespace": "vllm"}},
    ]


@pytest.mark.parametrize(
    "pod",
    [
        _pod("pending", status={"phase": "Pending"}),
        _pod("no address", None),
        _pod("going", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        _pod("other port", spec={"containers": [{"ports": [{"name": "grpc", "containerPort": 1}]}]}),
        {},
    ],
)
def test_a_pod_that_cannot_answer_is_left_out(pod: dict[str, Any]) -> None:
    """Pods that do not run, have no address, are going or lack the port are not watched."""
    assert groups({"items": [pod]}, "http") == []


class _Api(BaseHTTPRequestHandler):
    answer: tuple[int, Any] = (200, {"items": []})
    seen: list[tuple[str, dict[str, list[str]], str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.seen.append((parts.path, parse_qs(parts.query), self.headers["Authorization"]))
        code, document = self.answer
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An API that gives what the test says, and the token that the pod has for it."""
    _Api.answer, _Api.seen = (200, {"items": []}), []
    server = HTTPServer(("127.0.0.1", 0), _Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    yield Cluster(f"http://127.0.0.1:{server.server_port}", token, None)
    server.shutdown()
    server.server_close()


def test_the_api_is_asked_for_this_nodes_pods_only(cluster: Cluster, tmp_path: Path) -> None:
    """The request selects node and labels at the server, and carries the token."""
    update(cluster, Query(node="n1", selector="app=x", namespace="vllm"), tmp_path / "pods.json")
    ((path, query, token),) = _Api.seen
    assert path == "/api/v1/namespaces/vllm/pods"
    assert query == {"fieldSelector": ["spec.nodeName=n1"], "labelSelector": ["app=x"]}
    assert token == "Bearer secret-token"


def test_the_daemon_reads_what_is_written(cluster: Cluster, tmp_path: Path) -> None:
    """The file is a file_sd file: the daemon's own discovery finds the pod in it."""
    _Api.answer = (200, {"items": [_pod("a")]})
    out = tmp_path / "pods.json"
    assert update(cluster, Query(node="n", selector="s"), out) is True
    (target,) = read_files(DiscoverySettings(files=(str(out),)))
    assert target.url == "http://10.0.0.1:8000"
    assert target.labels == {"vllm_pod": "a", "vllm_namespace": "vllm"}


def test_an_unchanged_answer_leaves_the_file_alone(cluster: Cluster, tmp_path: Path) -> None:
    """The file changes only when the pods do, so that the daemon has nothing to read again."""
    out = tmp_path / "pods.json"
    assert update(cluster, Query(node="n", selector="s"), out) is True
    assert update(cluster, Query(node="n", selector="s"), out) is False


@pytest.mark.parametrize(
    ("answer", "message"), [((403, {}), "verb list"), ((500, {}), "500"), ((200, []), "something else")]
)
def test_an_api_that_fails_leaves_the_file_and_says_why(
    cluster: Cluster, tmp_path: Path, answer: tuple[int, Any], message: str
) -> None:
    """When the API refuses or fails, the last file stays, the message says why, and the token is not in it."""
    out = tmp_path / "pods.json"
    out.write_text("before")
    _Api.answer = answer
    with pytest.raises(LlmobsError, match=message) as caught:
        update(cluster, Query(node="n", selector="s"), out)
    assert out.read_text() == "before"
    assert "secret-token" not in str(caught.value)


def test_it_follows_the_pods_until_told_to_stop(cluster: Cluster, tmp_path: Path) -> None:
    """The command writes the file, follows a change within its interval, and ends at SIGTERM with code 0."""
    out = tmp_path / "pods.json"
    code = (
        "import sys, pathlib; from llmobs.deploy.pods import *; url, token, out = sys.argv[1:]; "
        "follow(Cluster(url, pathlib.Path(token), None), Query(node='n', selector='s'), pathlib.Path(out), 0.2)"
    )
    command = [sys.executable, "-c", code, cluster.url, str(cluster.token_file), str(out)]
    process = subprocess.Popen(command)
    try:
        _until(lambda: out.exists() and json.loads(out.read_text()) == [])
        _Api.answer = (200, {"items": [_pod("new")]})
        _until(lambda: "10.0.0.1:8000" in out.read_text())
    finally:
        process.terminate()
    assert process.wait(5) == 0


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_outside_of_a_cluster_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service account the command ends with one line."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="service account"):
        Cluster.from_pod()
