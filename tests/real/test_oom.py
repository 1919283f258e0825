"""Out of memory in the real engine, seen by the sidecar through the journal, across the restart."""

from __future__ import annotations

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon import Daemon, wait_for
from tests.instrument.conftest import INJECT, Instrumented
from tests.real.server import free_port

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.timeout(600)]

IN_FLIGHT = 16


def _start(folder: Path, port: int) -> Instrumented:
    launcher = ("--engine-death-exit-code", "17")
    environment = {"INJECT_STEP": str(folder / "switch"), "PYTHONPATH": str(INJECT)}
    return Instrumented(folder, "--port", str(port), launcher=launcher, **environment)


def _lost(url: str, number: int) -> bool:
    body = b'{"model":"tiny","prompt":"%d lost","max_tokens":900,"ignore_eos":true}' % number
    request = urllib.request.Request(url + "/v1/completions", data=body, headers={"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except (urllib.error.URLError, OSError):
        return True
    return False


def test_an_oom_is_counted_once_across_the_restart(tmp_path: Path) -> None:
    """16 requests in flight: one OOM and 16 requests failed by it, before, during and after the restart."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    vllm = _start(tmp_path, port)
    target = {"url": url, "name": "real", "interval_seconds": 1, "state_dir": str(vllm.state)}
    (tmp_path / "daemon").mkdir()
    try:
        with Daemon(tmp_path / "daemon", {"targets": [target]}, "--no-collector.gpu") as daemon:

            def counted(ooms: float, failed: float) -> bool:
                return (
                    daemon.value("vllm_oom_total", kind="cuda") == ooms
                    and daemon.value("vllm_request_failed_total", reason="oom") == failed
                )

            wait_for("the target", lambda: daemon.value("vllm_up") == 1, 240)
            assert counted(0, 0), "both are known to be 0 before anything happens"
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                requests = [pool.submit(_lost, url, i) for i in range(IN_FLIGHT)]
                wait_for("the load", lambda: daemon.value("vllm_num_running_requests") == IN_FLIGHT, 30)
                (tmp_path / "switch").write_text("oom")
                assert all(request.result() for request in requests)
            wait_for("the OOM and what it cost", lambda: counted(1, IN_FLIGHT), 20)
            assert daemon.value("vllm_oom_evidence_total", evidence="in_process") == 1
            assert daemon.value("vllm_request_failed_total", reason="engine_dead") == 0
            vllm.server.stop()
            (tmp_path / "switch").unlink()
            vllm = _start(tmp_path, port)
            wait_for("the restart", lambda: daemon.value("vllm_engine_restarts_total") == 1, 240)
            assert daemon.value("vllm_up") == 1
            assert counted(1, IN_FLIGHT), "neither forgotten nor counted again"
    finally:
        vllm.server.stop()
