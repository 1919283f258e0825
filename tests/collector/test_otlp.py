"""`--otlp`: the contract arrives at a real OTLP service, over gRPC and over HTTP, and a bad Collector harms nothing."""

from __future__ import annotations

import gzip
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2

from llmobs.catalog import METRICS
from llmobs.errors import ConfigError
from llmobs.exporter.otlp import Pusher, exporter
from llmobs.exporter.otlp_data import GENAI, unit
from llmobs.snapshot import Exemplar, Histogram

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_TTFT = Histogram((0.1, 1.0, math.inf), (2.0, 5.0, 6.0), 4.5, (Exemplar(_TRACE, 0.05, 1700000000.5), None, None))
_ENGINE = ("server", "chat", "0")
_SAMPLES = (
    ("vllm_num_running_requests", _ENGINE, 3.0),
    ("vllm_decode_tokens_total", _ENGINE, 17.0),
    ("vllm_gpu_cache_hit_rate", _ENGINE, 0.25),
    ("vllm_kv_cache_usage_ratio", _ENGINE, math.nan),
    ("vllm_time_to_first_token_seconds", _ENGINE, _TTFT),
)


class _Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """An OTLP metrics service that keeps what it gets; with `hang` it never answers."""

    def __init__(self, *, hang: bool = False) -> None:
        self.requests: list[metrics_service_pb2.ExportMetricsServiceRequest] = []
        self.hang = threading.Event()
        self.blocking = hang

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (the name in the protocol)
        del context
        if self.blocking:
            self.hang.wait(20)
        self.requests.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def metrics(self) -> dict[str, metrics_pb2.Metric]:
        (resource,) = self.requests[-1].resource_metrics
        return {m.name: m for scope in resource.scope_metrics for m in scope.metrics}


def _serve_grpc(receiver: _Receiver) -> tuple[str, Callable[[], None]]:
    server = grpc.server(ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"http://127.0.0.1:{port}", lambda: server.stop(0)


def _serve_http(receiver: _Receiver) -> tuple[str, Callable[[], None]]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = receiver.Export(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body), None)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(answer.SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", server.shutdown


@pytest.fixture(params=["grpc", "http/protobuf"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Receiver]:
    """A running service, and the environment that points an exporter at it."""
    service = _Receiver()
    address, stop = (_serve_grpc if request.param == "grpc" else _serve_http)(service)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    yield service
    stop()


def _attributes(point: Any) -> dict[str, str]:
    return {a.key: a.value.string_value for a in point.attributes}


def test_the_contract_arrives_under_its_names(receiver: _Receiver) -> None:
    """Gauges, counters and labels arrive as they are in the contract, with the target's constant labels."""
    pusher = Pusher()
    assert pusher.push([(_SAMPLES, {"version": "v7"})])
    found = receiver.metrics()
    (running,) = found["vllm_num_running_requests"].gauge.data_points
    assert running.as_double == 3.0
    assert _attributes(running) == {"target": "server", "model_name": "chat", "engine": "0", "version": "v7"}
    tokens = found["vllm_decode_tokens_total"].sum
    assert tokens.is_monotonic
    assert tokens.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert tokens.data_points[0].as_double == 17.0
    assert 0 < tokens.data_points[0].start_time_unix_nano <= tokens.data_points[0].time_unix_nano
    pusher.close()


def test_a_histogram_arrives_bucket_by_bucket_with_its_exemplar(receiver: _Receiver) -> None:
    """Cumulative counts become counts per bucket, sum and count stay, and the exemplar keeps its trace id."""
    pusher = Pusher()
    pusher.push([(_SAMPLES, {})])
    (point,) = receiver.metrics()["vllm_time_to_first_token_seconds"].histogram.data_points
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [2, 3, 1]
    assert (point.count, point.sum) == (6, 4.5)
    assert not point.HasField("min")
    assert not point.HasField("max")
    (exemplar,) = point.exemplars
    assert exemplar.trace_id.hex() == _TRACE
    assert exemplar.as_double == 0.05
    assert exemplar.time_unix_nano == 1700000000500000000
    pusher.close()


def test_what_is_unknown_is_not_sent(receiver: _Receiver) -> None:
    """A value that is not a number is left out, not sent as 0."""
    pusher = Pusher()
    pusher.push([(_SAMPLES, {})])
    assert "vllm_kv_cache_usage_ratio" not in receiver.metrics()
    pusher.close()


def test_genai_server_metrics_have_their_conventional_names(receiver: _Receiver) -> None:
    """The three server metrics of the GenAI conventions arrive in seconds with the required attributes."""
    latency = Histogram((1.0, math.inf), (1.0, 2.0), 3.0)
    samples = [(name, _ENGINE, latency) for name in GENAI]
    pusher = Pusher()
    pusher.push([(samples, {})])
    found = receiver.metrics()
    for name in (
        "gen_ai.server.request.duration", "gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token",
    ):  # fmt: skip
        assert found[name].unit == "s"
        (point,) = found[name].histogram.data_points
        assert point.count == 2
        attributes = _attributes(point)
        assert attributes["gen_ai.request.model"] == "chat"
        assert attributes["gen_ai.provider.name"] == "vllm"
        assert attributes["gen_ai.operation.name"]
    pusher.close()


def test_the_resource_says_who_sent_it(receiver: _Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service name and resource attributes follow the standard variables."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=chat-0")
    pusher = Pusher()
    pusher.push([(_SAMPLES, {})])
    resource = {a.key: a.value.string_value for a in receiver.requests[-1].resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "llmobs"
    assert resource["k8s.pod.name"] == "chat-0"
    pusher.close()


def _prometheus_name(name: str, code: str, kind: str) -> str:
    """Return the name that Prometheus' OTLP receiver makes.

    The unit is appended unless a word of the name says it already, ``ratio`` only for gauges of unit 1, and ``total``
    for counters, once.
    """
    words = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "Hz": "hertz"}
    tokens = name.split("_")
    word = words.get(code) or ("ratio" if code == "1" and kind == "gauge" else None)
    if word and word not in tokens:
        tokens.append(word)
    if kind == "counter":
        tokens = [t for t in tokens if t != "total"] + ["total"]
    return "_".join(tokens)


@pytest.mark.parametrize("name", list(METRICS))
def test_a_backend_arrives_at_the_same_prometheus_name(name: str) -> None:
    """With the unit that is sent, the documented translation from OTLP to Prometheus leaves the name as it is."""
    metric = METRICS[name]
    assert _prometheus_name(name, unit(metric), metric.kind) == name


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol that the SDK does not have is one line with the two that it has."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match=r"grpc, http/protobuf"):
        exporter()


def test_a_missing_collector_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody listening a push fails within the exporter's timeout, is counted, and raises nothing."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    pusher = Pusher()
    assert pusher.push([(_SAMPLES, {})]) is False
    assert pusher.pushes == {"success": 0, "failure": 1}
    pusher.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _daemon(port: int, address: str, protocol: str = "grpc") -> subprocess.Popen[str]:
    code = "import sys; from llmobs.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["run", "--target=http://127.0.0.1:1", f"--listen=127.0.0.1:{port}", "--otlp", "--no-collector.gpu",
                 "--set=otlp.interval_seconds=0.5"]  # fmt: skip
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "PATH": ""}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_daemon_pushes_cycle_after_cycle() -> None:
    """``llmobs run --otlp`` sends the state of its target again and again."""
    service = _Receiver()
    address, stop = _serve_grpc(service)
    daemon = _daemon(_free_port(), address)
    try:
        _until(lambda: len(service.requests) >= 3)
        (up,) = service.metrics()["vllm_up"].gauge.data_points
        assert (up.as_double, _attributes(up)) == (0.0, {"target": "127.0.0.1:1"})
    finally:
        daemon.terminate()
        daemon.communicate(timeout=10)
        stop()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_hangs_delays_nothing(protocol: str) -> None:
    """While the Collector does not answer, the daemon serves, and it still ends within two seconds."""
    import urllib.request

    service = _Receiver(hang=True)
    address, stop = (_serve_grpc if protocol == "grpc" else _serve_http)(service)
    port = _free_port()
    daemon = _daemon(port, address, protocol)
    try:

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        _until(ready)
        time.sleep(1.5)
        assert ready()
        begin = time.monotonic()
        daemon.terminate()
        daemon.communicate(timeout=10)
        assert time.monotonic() - begin < 2
        assert daemon.returncode == 0
    finally:
        daemon.kill()
        service.hang.set()
        stop()
