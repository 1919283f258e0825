"""The boards over the real vLLM on CPU, with the plugin inside it and a client that keeps it busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmobs.dashboards.promql import metrics_in
from tests.daemon import Daemon, prometheus
from tests.dashboards.boards import Target, prometheus_targets
from tests.dashboards.stage import Stage
from tests.dashboards.test_data import values_of
from tests.instrument.conftest import Instrumented

pytestmark = [pytest.mark.needs("vllm", "prometheus"), pytest.mark.timeout(600)]

#: What one small model on a CPU has not: board, or metric, and why.
BOARDS_WITHOUT_DATA = {
    "llmobs-gpu": "no GPU",
    "llmobs-spec": "no draft model",
    "llmobs-canary": "one version",
    "llmobs-slo": "no rules are loaded here",
}
METRICS_WITHOUT_DATA = {
    "nvidia_gpu_": "no GPU",
    "spec_decode": "no draft model",
    "external_cache": "no KV connector",
    "multimodal": "a text model",
    "kv_block_": "not switched on",
    "kv_transfer": "no KV connector",
    "kv_offload": "no offloading",
    "lora_": "no adapters",
    "estimated_": "not switched on",
    "corrupted": "not switched on",
    "admission_rejections": "no queue limit is set",
    "cached_tokens_by_tier": "one tier only, which vLLM reports with a KV connector",
    "kv_cache_fill_seconds": "shown while a cache grows",
    "queue_drain_seconds": "shown while requests wait and finish",
    "target_error": "every target can be read",
    "collector_success": "no collector fails",
    "preempt": "the cache is large enough",
    "rescheduled": "the cache is large enough",
    "request_oldest_waiting": "shown while a request waits",
    "seconds_since_progress": "shown while there is work",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The real server under a steady load, its sidecar, and Prometheus."""
    folder = tmp_path_factory.mktemp("real")
    server = Instrumented(folder / "vllm", "--max-num-seqs", "4")
    stop = threading.Event()

    def client(number: int) -> None:
        shared = "the quick brown fox jumps over the lazy dog and runs on " * 4
        while not stop.is_set():
            server.server.complete(f"{shared} {number} {time.time()}", 520 if number == 0 else 120)

    try:
        server.server.wait_ready()
        target = {"url": server.url, "name": "cpu", "interval_seconds": 0.5, "state_dir": str(server.state)}
        place = folder / "sidecar"
        place.mkdir()
        with (
            Daemon(place, {"targets": [target], "derive": {"window_seconds": 20}}) as daemon,
            prometheus(folder / "prometheus", [daemon.url.removeprefix("http://")]) as url,
            ThreadPoolExecutor(8) as pool,
        ):
            for number in range(8):
                pool.submit(client, number)
            time.sleep(40)
            yield Stage(url=url, daemons={"cpu": daemon}, simulators={})
            stop.set()
    finally:
        stop.set()
        server.server.stop()


def beyond_a_cpu(target: Target) -> bool:
    """Whether a target asks for something that this server cannot have, and why is written above."""
    expression = target.target["expr"]
    named = [why for word, why in METRICS_WITHOUT_DATA.items() if any(word in m for m in metrics_in(expression))]
    return target.board["uid"] in BOARDS_WITHOUT_DATA or bool(named) or "ALERTS" in expression


def test_every_panel_that_a_cpu_can_fill_has_data(running: Stage) -> None:
    """Each query for what a CPU server has returns a finite value; what it has not is listed with a reason."""
    asked = [t for t in prometheus_targets() if not beyond_a_cpu(t)]
    assert len(asked) > 150
    # A busy machine answers a health check late now and then, and what did not answer is rightly absent.
    deadline = time.monotonic() + 20
    while (empty := [t for t in asked if not values_of(running, t)]) and time.monotonic() < deadline:
        asked = empty
        time.sleep(1)
    assert [t.where for t in empty] == []


def test_the_plugin_is_what_is_read(running: Stage) -> None:
    """The figures come from inside vLLM: source `stats`, with decode steps by token position."""
    assert running.instant('vllm_info{source="stats", simulated="false"}')
    assert running.instant("sum by (token_bucket) (vllm_decode_step_latency_seconds_count)")
