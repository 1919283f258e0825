"""The whole chain with real parts: vLLM with the plugin, the sidecar, Prometheus, Alertmanager, an OTLP service."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from llmobs.generate import Options, generate
from tests.conftest import find
from tests.daemon import Daemon, wait_for
from tests.instrument.conftest import INJECT, Instrumented
from tests.real.server import free_port

pytestmark = pytest.mark.needs("vllm", "prometheus", "alertmanager")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP trace service that keeps the spans it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (the name in the protocol)
        del context
        self.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@dataclass
class Chain:
    """Everything that runs, and what arrived at its two ends."""

    vllm: Instrumented
    switch: Path
    prometheus: str
    traces: _Traces
    pages: list[dict[str, Any]] = field(default_factory=list)

    def query(self, path: str, **parameters: str) -> Any:
        """Ask Prometheus' API; return its data."""
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@contextlib.contextmanager
def _webhook(pages: list[dict[str, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            pages.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


@contextlib.contextmanager
def _program(name: str, folder: Path, *arguments: str) -> Iterator[None]:
    with (folder / f"{Path(name).name}.log").open("ab") as out:
        process = subprocess.Popen([name, *arguments], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def _alerting(folder: Path, webhook: str, sidecar: str) -> Iterator[str]:
    """Run Alertmanager and Prometheus with our own rules, faster than in life; yield Prometheus' address."""
    alertmanager, prometheus = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    route = {"receiver": "page", "group_wait": "1s", "group_interval": "1s"}
    receiver = {"name": "page", "webhook_configs": [{"url": webhook}]}
    (folder / "alertmanager.json").write_text(json.dumps({"route": route, "receivers": [receiver]}))
    for name, text in generate("alerts", Options()).items():
        if name.endswith(".rules.yaml") and name.count("/") == 1:
            (folder / Path(name).name).write_text(text.replace("interval: 15s", "interval: 1s"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "*.rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "llmobs", "static_configs": [{"targets": [sidecar.removeprefix("http://")]}]}],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    with (
        _program(
            str(find("alertmanager")), folder, f"--config.file={folder}/alertmanager.json",
            f"--storage.path={folder}/alertmanager", f"--web.listen-address={alertmanager}",
            "--cluster.listen-address=",
        ),
        _program(
            "prometheus", folder, f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address={prometheus}", "--enable-feature=exemplar-storage",
        ),
    ):  # fmt: skip
        wait_for("Prometheus", lambda: _answers(f"http://{prometheus}/-/ready"), 30)
        yield f"http://{prometheus}"


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Start all of it once."""
    folder = tmp_path_factory.mktemp("chain")
    traces, switch, pages = _Traces(), folder / "switch", list[dict[str, Any]]()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(traces, server)
    otlp = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    vllm = Instrumented(
        folder, launcher=("--engine-death-exit-code", "17"), INJECT_STEP=str(switch), PYTHONPATH=str(INJECT),
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp, OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_TRACES_SAMPLER="always_on",
        OTEL_BSP_SCHEDULE_DELAY="500",
    )  # fmt: skip
    target = {"url": vllm.url, "name": "chat", "state_dir": str(vllm.state), "interval_seconds": 0.5}
    (folder / "daemon").mkdir()
    try:
        vllm.server.wait_ready()
        with (
            Daemon(folder / "daemon", {"targets": [target]}, "--no-collector.gpu") as daemon,
            _webhook(pages) as webhook,
            _alerting(folder, webhook, daemon.url) as prometheus,
        ):
            yield Chain(vllm, switch, prometheus, traces, pages)
    finally:
        vllm.server.stop()
        server.stop(0)


def _complete(chain: Chain, **headers: str) -> Any:
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 8, "ignore_eos": True}).encode()
    request = urllib.request.Request(
        chain.vllm.url + "/v1/completions", data=body, headers={"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return answer.headers


def test_one_trace_id_everywhere(chain: Chain) -> None:
    """The caller's trace id is in the answer, the log line, the exemplar in Prometheus, and the spans that arrive."""
    wait_for("the target", lambda: chain.query("query", query='vllm_up{target="chat"} == 1')["result"], 30)
    headers = _complete(chain, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    assert headers["x-trace-id"] == TRACE
    (line,) = wait_for("the log line", lambda: [r for r in chain.vllm.requests() if r["trace_id"] == TRACE])
    spans = wait_for("the spans", lambda: [s for s in chain.traces.spans if s.trace_id.hex() == TRACE], 20)
    assert line["span_id"] in {s.span_id.hex() for s in spans if s.name == "http.server.request"}

    def exemplars() -> set[str]:
        expression = 'vllm_time_to_first_token_seconds_bucket{target="chat"}'
        found = chain.query("query_exemplars", query=expression, start=str(time.time() - 300), end=str(time.time()))
        return {e["labels"]["trace_id"] for series in found for e in series["exemplars"]}

    wait_for("the exemplar", lambda: TRACE in exemplars(), 30)


def test_an_out_of_memory_becomes_a_page(chain: Chain) -> None:
    """Memory that runs out in the real engine reaches a human: journal, sidecar, rule, Alertmanager, webhook."""
    wait_for("the target", lambda: chain.query("query", query='vllm_up{target="chat"} == 1')["result"], 30)
    _complete(chain)
    # The rule compares with a value before the event, so that one has to be there.
    failures = 'vllm_request_failed_total{target="chat",reason="oom"}'
    wait_for("a first count", lambda: chain.query("query", query=failures)["result"], 30)
    chain.switch.write_text("oom")
    with contextlib.suppress(OSError):
        _complete(chain)
    page = wait_for("the page", lambda: [a for a in chain.pages if a["labels"]["alertname"] == "VllmOutOfMemory"], 60)
    assert page[0]["status"] == "firing"
    assert page[0]["labels"]["severity"] == "critical"
    assert page[0]["annotations"]["runbook_url"]
    (count,) = chain.query("query", query=f"sum({failures})")["result"]
    assert float(count["value"][1]) >= 1
