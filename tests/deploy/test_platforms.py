"""Compose, systemd, and rendering for one platform with a user's own names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose

from llmobs.cli import main
from llmobs.config import load as load_settings
from llmobs.deploy import files
from llmobs.generate import Options

ROOT = Path(__file__).resolve().parents[2]
_FILES = files(Options())
_COMPOSE = _FILES["deploy/compose/compose.yaml"]


def _interpolated(text: str) -> str:
    """Fill in the defaults of ``${VARIABLE:-default}``, as compose does before it reads the file."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_the_compose_file_follows_the_specification() -> None:
    """A parser of the compose specification accepts the file, with every network and volume defined."""
    project = PyCompose.from_yaml(_interpolated(_COMPOSE))
    project.validate()
    assert "grafana" in project.service_names()


def test_a_mistake_in_the_compose_file_is_noticed() -> None:
    """The check of the compose file is able to fail."""
    document = yaml.safe_load(_interpolated(_COMPOSE))
    document["services"]["tempo"]["imagee"] = "x"
    with pytest.raises(ValueError, match="imagee"):
        PyCompose.from_yaml(yaml.safe_dump(document))


def test_each_profile_has_one_engine_or_simulator_and_one_llmobs() -> None:
    """Every profile brings exactly one thing called llmobs on the network, and what it watches."""
    services = yaml.safe_load(_COMPOSE)["services"]
    for profile in ("gpu", "cpu", "simulator"):
        members = [s for s in services.values() if profile in s.get("profiles", [profile])]
        aliases = [a for s in members for a in s.get("networks", {}).get("default", {}).get("aliases", [])]
        assert aliases.count("llmobs") == 1
        assert aliases.count("engine") == (0 if profile == "simulator" else 1)


def test_every_mounted_file_exists() -> None:
    """Each file or folder that a service mounts from the checkout is there."""
    services = yaml.safe_load(_COMPOSE)["services"]
    mounts = [v.split(":")[0] for s in services.values() for v in s.get("volumes", []) if v.startswith("..")]
    assert mounts
    for mount in mounts:
        assert (ROOT / "deploy/compose" / mount).resolve().exists(), mount


def test_nothing_is_reachable_from_outside() -> None:
    """Every published port is bound to the local interface."""
    services = yaml.safe_load(_COMPOSE)["services"]
    ports = [p for s in services.values() for p in s.get("ports", [])]
    assert ports
    assert all(p.startswith("127.0.0.1:") for p in ports)


def test_every_image_is_pinned() -> None:
    """No image floats: each has a version, and none is called latest."""
    services = yaml.safe_load(_interpolated(_COMPOSE))["services"]
    for service in services.values():
        name, _, tag = service["image"].rpartition(":")
        assert name
        assert re.match(r"v?\d", tag), service["image"]


def test_prometheus_is_started_as_its_configuration_needs() -> None:
    """The flags for exemplars and remote write are on the command line."""
    command = yaml.safe_load(_COMPOSE)["services"]["prometheus"]["command"]
    assert {"--enable-feature=exemplar-storage", "--web.enable-remote-write-receiver"} <= set(command)


def test_the_unit_is_sound(tmp_path: Path) -> None:
    """``systemd-analyze verify`` finds nothing, with the program where the unit expects it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (Debian package systemd)")
    unit = tmp_path / "llmobs.service"
    text = _FILES["deploy/systemd/usr/lib/systemd/system/llmobs.service"]
    unit.write_text(text.replace("/opt/llmobs/bin/llmobs", str(shutil.which("true"))))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shipped_settings_can_be_used(tmp_path: Path) -> None:
    """The configuration of the systemd unit loads, and says what its comments say."""
    path = tmp_path / "llmobs.yaml"
    path.write_text(_FILES["deploy/systemd/etc/llmobs/llmobs.yaml"])
    settings = load_settings(path, environment={})
    assert [t.url for t in settings.targets] == ["http://localhost:8000"]
    assert settings.targets[0].state_dir == "/var/lib/llmobs"


def test_systemd_is_rendered_for_a_users_names(tmp_path: Path) -> None:
    """Targets and labels from the command line are in the settings file, and nothing of another platform is written."""
    arguments = ["--for", "systemd", "--target", "http://gpu-7:8000", "--label", "model_id=chat-8b", "--out"]
    assert main(["generate", "deploy", *arguments, str(tmp_path)]) == 0
    settings = load_settings(tmp_path / "deploy/systemd/etc/llmobs/llmobs.yaml", environment={})
    (target,) = settings.targets
    assert (target.url, target.labels) == ("http://gpu-7:8000", {"model_id": "chat-8b"})
    assert {p.name for p in tmp_path.iterdir()} == {"deploy"}
    assert {p.name for p in (tmp_path / "deploy").iterdir()} == {"systemd"}


def test_compose_is_rendered_with_everything_it_mounts(tmp_path: Path) -> None:
    """The output folder stands on its own: each mounted file is there."""
    assert main(["generate", "deploy", "--for", "compose", "--label", "team=a", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "deploy/compose/compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    assert "--label=team=a" in services["llmobs"]["command"]
    # There is no checkout to build from.
    assert not any("build" in service for service in services.values())
    for service in services.values():
        for volume in service.get("volumes", []):
            if volume.startswith(".."):
                assert (tmp_path / "deploy/compose" / volume.split(":")[0]).resolve().exists(), volume


def test_kubernetes_is_rendered_for_a_users_names(tmp_path: Path) -> None:
    """Name, namespace and labels reach every object that carries them."""
    arguments = ["--for", "k8s", "--name", "chat", "--namespace", "serving", "--label", "tier=gold", "--out"]
    assert main(["generate", "deploy", *arguments, str(tmp_path)]) == 0
    root = tmp_path / "deploy/kubernetes"
    deployment = yaml.safe_load((root / "overlays/deployment/deployment.yaml").read_text())
    kustomization = yaml.safe_load((root / "overlays/deployment/kustomization.yaml").read_text())
    patch = yaml.safe_load((root / "components/sidecar/patch-deployment.yaml").read_text())
    assert deployment["metadata"]["name"] == "chat"
    assert kustomization["namespace"] == "serving"
    (sidecar,) = patch["spec"]["template"]["spec"]["initContainers"]
    assert "--label=tier=gold" in sidecar["args"]
    keda = yaml.safe_load((root / "components/keda/scaledobject.yaml").read_text())
    assert 'namespace="serving"' in keda["spec"]["triggers"][0]["metadata"]["query"]
