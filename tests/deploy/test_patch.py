"""`llmobs generate deploy --for k8s --patch FILE`: a reader's own workload with the sidecar, as additions only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from llmobs.cli import main
from llmobs.deploy.patch import patch, patched
from llmobs.deploy.settings import Settings
from llmobs.errors import ConfigError, GenerateError

_MINIMAL = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  selector:
    matchLabels: {app: chat}
  template:
    metadata:
      labels: {app: chat}
    spec:
      containers:
        - name: server
          image: vllm/vllm-openai:v0.32.0
"""

_FULL = """\
# The chat model.
apiVersion: v1
kind: Service
metadata:
  name: chat
spec:
  selector: {app: chat}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: chat   # as in the contract
spec:
  serviceName: chat
  selector:
    matchLabels: {app: chat}
  template:
    metadata:
      labels:
        app: chat
    spec:
      securityContext:
        runAsUser: 0
      initContainers:
      # fetches the weights
      - name: fetch
        image: alpine:3
      containers:
      - image: envoyproxy/envoy:v1
        name: proxy
      - args: ["--model", "m", "--port", "8080"]
        name: server
        image: vllm/vllm-openai:v0.32.0
        env:
        # from the vault
        - name: VLLM_API_KEY
          valueFrom:
            secretKeyRef: {name: key, key: key}
        volumeMounts:
        - {name: cache, mountPath: /cache}
      volumes:
      - name: cache
        emptyDir: {}
"""


def _pod(text: str, kind: str = "Deployment") -> dict[str, Any]:
    (document,) = [d for d in yaml.safe_load_all(text) if d["kind"] == kind]
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


def _sidecar(text: str, kind: str = "Deployment") -> dict[str, Any]:
    (container,) = [c for c in _pod(text, kind)["initContainers"] if c["name"] == "llmobs"]
    return dict(container)


@pytest.mark.parametrize("text", [_MINIMAL, _FULL], ids=["minimal", "full"])
def test_the_diff_has_additions_only(tmp_path: Path, text: str) -> None:
    """Every line of the reader's file stays, in its order, comments included."""
    path = tmp_path / "vllm.yaml"
    path.write_text(text)
    new, diff = patch(path, ())
    changes = [line for line in diff.splitlines()[2:] if not line.startswith((" ", "@@"))]
    assert changes
    assert all(line.startswith("+") for line in changes)
    rest = iter(new.splitlines())
    assert all(line in rest for line in text.splitlines())


@pytest.mark.parametrize("text", [_MINIMAL, _FULL], ids=["minimal", "full"])
def test_the_result_is_valid_kubernetes(text: str) -> None:
    """The API's own schema accepts every object of the result."""
    for document in yaml.safe_load_all(patched(text, Settings(), "f")):
        kubernetes_validate.validate(document, "1.29", strict=True)


def test_the_sidecar_is_native_and_watches_the_server_in_the_pod() -> None:
    """The container starts before vLLM, keeps running, and asks the port that vLLM's arguments name."""
    sidecar = _sidecar(patched(_FULL, Settings(), "f"), "StatefulSet")
    assert sidecar["restartPolicy"] == "Always"
    assert "--target=http://localhost:8080" in sidecar["args"]
    assert sidecar["volumeMounts"] == [{"name": "llmobs-state", "mountPath": "/var/lib/llmobs", "readOnly": True}]


def test_vllm_gets_the_shared_folder_and_keeps_everything_else() -> None:
    """Only the container that runs vLLM changes, by one variable and one mount."""
    before, after = _pod(_FULL, "StatefulSet"), _pod(patched(_FULL, Settings(), "f"), "StatefulSet")
    proxy, server = after["containers"]
    assert proxy == before["containers"][0]
    assert server["env"][1:] == before["containers"][1]["env"]
    assert server["env"][0] == {"name": "LLMOBS_STATE_DIR", "value": "/var/lib/llmobs"}
    assert server["volumeMounts"][1:] == before["containers"][1]["volumeMounts"]
    assert {k: v for k, v in server.items() if k not in ("env", "volumeMounts")} == {
        k: v for k, v in before["containers"][1].items() if k not in ("env", "volumeMounts")
    }


def test_an_api_key_reaches_the_sidecar_as_a_reference() -> None:
    """The key's secret is referenced as vLLM references it; its value appears nowhere."""
    sidecar = _sidecar(patched(_FULL, Settings(), "f"), "StatefulSet")
    assert "--api-key-env=VLLM_API_KEY" in sidecar["args"]
    assert {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}} in sidecar["env"]


def test_in_a_pod_that_runs_as_root_the_sidecar_does_not() -> None:
    """A pod-wide runAsUser 0 is overridden for the sidecar, which may not be root."""
    assert _sidecar(patched(_FULL, Settings(), "f"), "StatefulSet")["securityContext"]["runAsUser"] == 65532
    assert "runAsUser" not in _sidecar(patched(_MINIMAL, Settings(), "f"))["securityContext"]


def test_a_server_with_a_uid_of_its_own_shares_it() -> None:
    """Files that vLLM writes as its own user are readable for a sidecar under the same user."""
    text = _MINIMAL + "          securityContext: {runAsUser: 2000, runAsGroup: 3000}\n"
    security = _sidecar(patched(text, Settings(), "f"))["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (2000, 3000)


def test_labels_and_targets_are_the_readers(tmp_path: Path) -> None:
    """Labels given as flags are in the arguments; a label of the same name is no longer taken from the pod."""
    path = tmp_path / "vllm.yaml"
    path.write_text(_MINIMAL)
    text, _ = patch(path, (("label", "model_id=chat-8b"), ("label", "version=v7"), ("image", "registry/llmobs:1")))
    sidecar = _sidecar(text)
    assert sidecar["image"] == "registry/llmobs:1"
    assert {"--label=model_id=chat-8b", "--label=version=v7", "--label=canary=$(POD_LABEL_CANARY)"} <= set(
        sidecar["args"]
    )
    assert not any("$(POD_LABEL_VERSION)" in a for a in sidecar["args"])


@pytest.mark.parametrize(
    ("command", "url"),
    [
        ('args: ["--port=9000"]', "http://localhost:9000"),
        ('command: ["sh", "-c", "exec vllm serve m --port 9001"]', "http://localhost:9001"),
        ('args: ["--ssl-certfile", "/c", "--port", "9002"]', "https://localhost:9002"),
        ("ports: [{containerPort: 7000, name: grpc}, {containerPort: 7001, name: http}]", "http://localhost:7001"),
        ("ports: [{containerPort: 7002}]", "http://localhost:7002"),
        ("tty: false", "http://localhost:8000"),
    ],
)
def test_the_port_is_found(command: str, url: str) -> None:
    """The server's port comes from its arguments, else from the container's ports, else it is vLLM's default."""
    assert f"--target={url}" in _sidecar(patched(f"{_MINIMAL}          {command}\n", Settings(), "f"))["args"]


def test_another_container_can_be_named() -> None:
    """A server whose image and command do not say vLLM is found by its name."""
    text = _MINIMAL.replace("vllm/vllm-openai:v0.32.0", "our/llm:3")
    with pytest.raises(ConfigError, match="--container"):
        patched(text, Settings(), "f")
    assert _sidecar(patched(text, Settings(), "f", named="server"))


def test_the_plugin_comes_along_on_request() -> None:
    """With the plugin, an init container copies it and vLLM's Python finds it; vLLM's image and command stay."""
    after = _pod(patched(_FULL, Settings(), "f", plugin=True), "StatefulSet")
    names = [c["name"] for c in after["initContainers"]]
    assert names == ["llmobs", "llmobs-plugin", "fetch"]
    server = after["containers"][1]
    before = _pod(_FULL, "StatefulSet")["containers"][1]
    assert (server["image"], server["args"]) == (before["image"], before["args"])
    assert {"name": "PYTHONPATH", "value": "/opt/llmobs-plugin"} in server["env"]
    assert {"name": "llmobs-plugin", "mountPath": "/opt/llmobs-plugin", "readOnly": True} in server["volumeMounts"]
    for document in yaml.safe_load_all(patched(_FULL, Settings(), "f", plugin=True)):
        kubernetes_validate.validate(document, "1.29", strict=True)


def test_a_python_path_of_the_readers_own_is_not_replaced() -> None:
    """A container that sets PYTHONPATH itself is refused, with the other way named."""
    text = _MINIMAL + "          env:\n            - {name: PYTHONPATH, value: /mine}\n"
    assert patched(text, Settings(), "f")
    with pytest.raises(ConfigError, match="install llmobs in its image"):
        patched(text, Settings(), "f", plugin=True)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("kind: Service\nmetadata: {name: x}\n", ConfigError, "no Deployment"),
        ("a: [", ConfigError, "not YAML"),
        ("a: {{ .Values.x }}\nb: {{ if }}", ConfigError, "helm template"),
        (_MINIMAL + "          env: []\n", GenerateError, "f:14: 'env' is empty"),
        (_MINIMAL + "          env: [{name: A, value: b}]\n", GenerateError, "f:14: 'env' is written in one line"),
        (patched(_MINIMAL, Settings(), "f"), ConfigError, "already has"),
    ],
    ids=["no workload", "not YAML", "template", "empty list", "flow list", "twice"],
)
def test_what_cannot_be_patched_is_said_plainly(text: str, error: type[Exception], message: str) -> None:
    """A file that cannot be patched is refused in one line that says why and what to do."""
    with pytest.raises(error, match=message) as caught:
        patched(text, Settings(), "f")
    assert "\n" not in str(caught.value)


def test_the_command_prints_yaml_and_the_diff_apart(tmp_path: Path) -> None:
    """The new YAML goes to stdout, fit for a pipe or a file; the diff goes to stderr, for the eyes."""
    path = tmp_path / "vllm.yaml"
    path.write_text(_FULL)
    command = [sys.executable, "-m", "llmobs", "generate", "deploy", "--for", "k8s", "--patch", str(path)]
    code = "import sys; from llmobs.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([command[0], "-c", code, *command[3:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert _sidecar(done.stdout, "StatefulSet")
    assert done.stderr.startswith("--- a/vllm.yaml\n+++ b/vllm.yaml\n@@")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "deploy", "--for", "systemd", "--patch", "x"],
        ["generate", "alerts", "--for", "k8s"],
        ["generate", "deploy", "--label", "novalue"],
        ["generate", "deploy", "--label", "a-b=c"],
        ["generate", "deploy", "--target", "http://user:secret@host"],
        ["generate", "deploy", "--name", "Not_A_Name"],
        ["generate", "deploy", "--patch", "/does/not/exist"],
    ],
)
def test_wrong_flags_are_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags that cannot be used end with code 2 and one line, and no secret in it."""
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as exit_:  # argparse: not a kind yet
        code = int(exit_.code or 0)
    error = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in error
    assert "secret" not in error
