"""The whole daemon on the driver library: what an operator sees when the driver works, hangs, and recovers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon import Daemon, wait_for
from tests.nvml import h100, scenario, t4, uuid

pytestmark = pytest.mark.needs("gcc")

UNUSED = "http://127.0.0.1:9"
CONFIG = {"targets": [{"url": UNUSED, "name": "none"}], "gpu": {"interval_seconds": 0.2, "timeout_seconds": 0.5}}


class Driver:
    """The scenario file that the daemon's driver library reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, *gpus: dict[str, object], **top: object) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(scenario(*gpus, **top))
        fresh.replace(self.path)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shims: Callable[[], Path]) -> Driver:
    made = Driver(tmp_path / "scenario")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(shims().parent))
    monkeypatch.setenv("NVML_SHIM", str(made.path))
    return made


@pytest.fixture
def daemon(driver: Driver, tmp_path: Path) -> Iterator[Daemon]:
    driver.say(h100(0), h100(1))
    with Daemon(tmp_path, CONFIG) as running:
        wait_for("GPU", lambda: running.value("nvidia_gpu_up", uuid=uuid(0)) == 1)
        yield running


def test_a_scrape_while_nvml_hangs_answers_in_less_than_a_second(daemon: Daemon, driver: Driver) -> None:
    """The web server never waits for the driver; the GPUs lose their values and come back by themselves."""
    driver.say(h100(0), h100(1), hang__nvmlDeviceGetCount_v2=1)
    wait_for("hung driver", lambda: daemon.value("llmobs_nvml_error", reason="hung") == 1)
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        assert daemon.get("/metrics")[0] == 200
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1
    assert daemon.value("llmobs_nvml_up") == 0
    assert daemon.value("nvidia_gpu_up", uuid=uuid(0)) == 0
    assert daemon.value("nvidia_gpu_power_watts", uuid=uuid(0)) is None
    driver.say(h100(0), h100(1))
    wait_for("GPU again", lambda: daemon.value("nvidia_gpu_power_watts", uuid=uuid(0)) == 610)


def test_one_lost_gpu_on_the_page_of_prometheus(daemon: Daemon, driver: Driver) -> None:
    """The other GPU's series stay, the lost one says so, in both formats of the page."""
    driver.say(h100(0), {**h100(1), "fail.*": 15})
    wait_for("lost GPU", lambda: daemon.value("nvidia_gpu_error", uuid=uuid(1), reason="lost") == 1)
    assert daemon.value("nvidia_gpu_power_watts", uuid=uuid(0)) == 610
    assert daemon.value("nvidia_gpu_power_watts", uuid=uuid(1)) is None
    assert any(name == "nvidia_gpu_energy_joules_total" for name, _ in daemon.series(openmetrics=True))


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_page_with_gpus(daemon: Daemon, driver: Driver) -> None:
    """Names, types, units and HELP of the GPU metrics are what Prometheus' own linter wants."""
    driver.say(h100(0), h100(1), t4(2))
    wait_for("third GPU", lambda: daemon.value("nvidia_gpu_fan_ratio", uuid=uuid(2)))
    page = daemon.get("/metrics")[1]
    assert page.count(b"\nnvidia_gpu_") > 100
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_ending_while_a_call_hangs(daemon: Daemon, driver: Driver) -> None:
    """SIGTERM ends the daemon within two seconds whatever the driver does."""
    driver.say(h100(0), h100(1), hang__nvmlDeviceGetMigMode=1)
    wait_for("hung driver", lambda: daemon.value("llmobs_nvml_error", reason="hung") == 1)
    code, seconds = daemon.stop()
    assert code == 0
    assert seconds < 2.5
