"""The Kubernetes tree: every manifest valid, every overlay complete, scaling asked so that one answer comes back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule, ServiceMonitor

from llmobs.deploy import files
from llmobs.deploy.autoscaling import adapter_rules, waiting
from llmobs.deploy.settings import Settings
from llmobs.generate import Options, check

ROOT = Path(__file__).resolve().parents[2]
_FILES = files(Options())
_KUBERNETES = {name: text for name, text in _FILES.items() if name.startswith("deploy/kubernetes/")}
_OVERLAYS = sorted({name.split("/")[3] for name in _KUBERNETES if name.startswith("deploy/kubernetes/overlays/")})
_CRDS = {"PodMonitor": PodMonitor, "ServiceMonitor": ServiceMonitor, "PrometheusRule": PrometheusRule,
         "ScaledObject": ScaledObject}  # fmt: skip
#: The first Kubernetes with native sidecars by default, and a current one.
_VERSIONS = ("1.29", "1.36")


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, text in _KUBERNETES.items():
        for document in yaml.safe_load_all(text):
            if document.get("kind") not in ("Kustomization", "Component") and "/patch-" not in name:
                yield name, document


def _validate(document: dict[str, Any]) -> None:
    """Check one object against the API's own schema, or the schema of its CRD."""
    kind = document["kind"]
    if kind in _CRDS:
        _schema(kind).validate(document)
    else:
        for version in _VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@lru_cache
def _schema(kind: str) -> jsonschema.Draft202012Validator:
    schema = _strict(_CRDS[kind].model_json_schema(by_alias=True))
    if kind == "ScaledObject":
        # The newest model for this Python is KEDA 2.16; 2.17 added this field.
        behavior = {"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]}
        schema["$defs"]["Fallback"]["properties"]["behavior"] = behavior
    return jsonschema.Draft202012Validator(schema)


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown fields in every object that names its fields."""
    if schema.get("properties"):
        schema.setdefault("additionalProperties", False)
    if "(?i)" in str(schema.get("pattern", "")):
        # Go takes the flag anywhere, Python only in front.
        schema["pattern"] = "(?i)" + schema["pattern"].replace("(?i)", "")
    for value in schema.values():
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            if isinstance(part, dict):
                _strict(part)
    return schema


def test_the_committed_files_are_current() -> None:
    """What is committed is what the generator makes."""
    check(_FILES, ROOT)


def test_nothing_is_left_over_from_an_older_version() -> None:
    """Every file below the generated folders is generated."""
    there = {
        str(p.relative_to(ROOT))
        for folder in ("kubernetes", "compose", "systemd")
        for p in (ROOT / "deploy" / folder).rglob("*")
        if p.is_file()
    }
    assert there == {name for name in _FILES if name.startswith("deploy/")}


@pytest.mark.parametrize(("name", "document"), list(_documents()), ids=[n for n, _ in _documents()])
def test_each_manifest_is_valid(name: str, document: dict[str, Any]) -> None:
    """The API's schema, strict, accepts each manifest; a CRD's model accepts each custom object."""
    del name
    _validate(document)


@pytest.mark.parametrize("kind", sorted(_CRDS))
def test_a_wrong_field_in_a_custom_object_is_noticed(kind: str) -> None:
    """The check of custom objects is able to fail."""
    document = next((d for _, d in _documents() if d["kind"] == kind), None)
    assert document is not None
    _validate(document)
    with pytest.raises(jsonschema.ValidationError):
        _validate({**document, "spec": {**document["spec"], "sample_limit": 3}})


if shutil.which("kubectl"):

    @pytest.mark.parametrize("overlay", _OVERLAYS)
    def test_each_overlay_builds_into_valid_objects(overlay: str) -> None:
        """Real kustomize renders each overlay, and every object in it is valid and in its namespace."""
        command = ["kubectl", "kustomize", str(ROOT / "deploy/kubernetes/overlays" / overlay)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        documents = list(yaml.safe_load_all(done.stdout))
        assert documents
        for document in documents:
            _validate(document)
            if not document["kind"].startswith("Cluster"):
                assert document["metadata"]["namespace"] == "vllm"

    @pytest.mark.parametrize(("overlay", "kind"), [("deployment", "Deployment"), ("statefulset", "StatefulSet")])
    def test_the_component_adds_the_sidecar(overlay: str, kind: str) -> None:
        """After kustomize, the workload has the native sidecar, and vLLM's container the shared folder."""
        command = ["kubectl", "kustomize", str(ROOT / "deploy/kubernetes/overlays" / overlay)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        (workload,) = [d for d in yaml.safe_load_all(done.stdout) if d["kind"] == kind]
        pod = workload["spec"]["template"]["spec"]
        (sidecar,) = pod["initContainers"]
        (engine,) = pod["containers"]
        assert sidecar["restartPolicy"] == "Always"
        assert "readinessProbe" not in sidecar
        assert {"name": "llmobs-state", "mountPath": "/var/lib/llmobs"} in engine["volumeMounts"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in engine["volumeMounts"]
        assert {"name": "LLMOBS_STATE_DIR", "value": "/var/lib/llmobs"} in engine["env"]

    def test_the_plugin_component_goes_with_the_sidecars(tmp_path: Path) -> None:
        """Both components together: one init container keeps running, the other ends, and vLLM finds the plugin."""
        base = os.path.relpath(ROOT / "deploy/kubernetes", tmp_path)
        kustomization = {
            "resources": [f"{base}/overlays/deployment"],
            "components": [f"{base}/components/plugin"],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        command = ["kubectl", "kustomize", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        (workload,) = [d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "Deployment"]
        _validate(workload)
        pod = workload["spec"]["template"]["spec"]
        assert {c["name"]: c.get("restartPolicy") for c in pod["initContainers"]} == {
            "llmobs": "Always",
            "llmobs-plugin": None,
        }
        environment = {e["name"]: e["value"] for e in pod["containers"][0]["env"]}
        assert environment["PYTHONPATH"] == "/opt/llmobs-plugin"
        assert environment["LLMOBS_STATE_DIR"] == "/var/lib/llmobs"

    def test_a_dashboard_becomes_a_config_map_that_grafana_finds() -> None:
        """Each dashboard is one ConfigMap below 1 MiB, with the label that Grafana's sidecar looks for."""
        command = ["kubectl", "kustomize", str(ROOT / "dashboards")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        maps = list(yaml.safe_load_all(done.stdout))
        assert len(maps) == len(list((ROOT / "dashboards").glob("*.json")))
        for document in maps:
            assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
            ((name, text),) = document["data"].items()
            assert json.loads(text)["uid"]
            assert len(text.encode()) < 1024 * 1024, name


def test_no_pod_asks_for_rights_it_does_not_use() -> None:
    """The sidecar has no service account of its own; only the node agent and the Collector may ask the API."""
    roles = {
        name.split("/")[3]: document["rules"] for name, document in _documents() if document["kind"] == "ClusterRole"
    }
    assert set(roles) == {"node", "collector"}
    assert roles["node"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    verbs = {verb for rule in roles["collector"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_every_container_of_ours_is_hardened() -> None:
    """No container that we add may write its root, gain rights or run as root."""
    seen = 0
    for _, document in _documents():
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in [*pod.get("containers", []), *pod.get("initContainers", [])]:
            if container["name"] == "vllm":
                continue
            seen += 1
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["runAsNonRoot"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
    assert seen >= 4


def _scaler_queries() -> dict[str, str]:
    keda = yaml.safe_load(_FILES["deploy/kubernetes/components/keda/scaledobject.yaml"])
    trigger = keda["spec"]["triggers"][0]["metadata"]
    rule = yaml.safe_load(adapter_rules(Settings())["data"]["config.yaml"])["externalRules"][0]  # type: ignore[index, call-overload]
    return {
        "keda": trigger["query"],
        # What prometheus-adapter puts in for a namespaced metric without selector.
        "hpa": rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="vllm"'),
    }


_SERIES = 'vllm_request_waiting_queue_length_peak{namespace="%s",pod="%s",target="t",engine="%s",model_name="%s"}'
_MODEL = Settings().model_name


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("scaler", ["keda", "hpa"])
@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({("vllm", "a", "0"): "7x9", ("vllm", "b", "0"): "5x9"}, 12),
        ({("vllm", "a", "0"): "7x9", ("vllm", "a", "1"): "5x9"}, 12),
        ({("vllm", "a", "0"): "7x9", ("elsewhere", "b", "0"): "5x9"}, 7),
        ({("vllm", "a", "0"): "0x9", ("vllm", "b", "0"): "0x9"}, 0),
        ({("vllm", "a", "0"): "7 7 stale", ("vllm", "b", "0"): "3x9"}, 3),
        ({("vllm", "a", "0"): "7 7 stale"}, None),
        ({("elsewhere", "a", "0"): "7x9"}, None),
    ],
    ids=["two replicas", "two ranks", "other namespace", "idle", "one replica gone", "all gone", "none here"],
)
def test_a_scaler_gets_one_number_or_nothing(
    tmp_path: Path, scaler: str, series: dict[tuple[str, str, str], str], expected: float | None
) -> None:
    """Real PromQL: exactly one element for this namespace and model, and no element (never 0) when nothing is known."""
    rules = tmp_path / "rules.yaml"
    query = _scaler_queries()[scaler]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [{"record": "scaler", "expr": query}]}]}))
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": _SERIES % (*key, _MODEL), "values": v} for key, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": "scaler",
                        "eval_time": "5m",
                        "exp_samples": [] if expected is None else [{"labels": "scaler", "value": expected}],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_answer_never_scales_down() -> None:
    """KEDA neither reads an empty answer as 0 nor falls to the minimum, and nothing scales to zero unasked."""
    spec = yaml.safe_load(_FILES["deploy/kubernetes/components/keda/scaledobject.yaml"])["spec"]
    assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["minReplicaCount"] >= 1
    assert "vector(0)" not in waiting("x") + str(_scaler_queries())


def test_both_scalers_follow_the_same_pace() -> None:
    """HPA and KEDA use the same metric, target and behaviour."""
    hpa = yaml.safe_load(_FILES["deploy/kubernetes/components/hpa/hpa.yaml"])["spec"]
    keda = yaml.safe_load(_FILES["deploy/kubernetes/components/keda/scaledobject.yaml"])["spec"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    target = hpa["metrics"][0]["external"]["target"]["averageValue"]
    assert keda["triggers"][0]["metadata"]["threshold"] == target == "5"
    assert (
        hpa["metrics"][0]["external"]["metric"]["name"] in _FILES["deploy/kubernetes/components/hpa/adapter-rules.yaml"]
    )
