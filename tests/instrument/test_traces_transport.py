"""Ways to the Collector: what the variables mean, TLS, retries, and what a bad Collector costs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from llmobs.instrument.traces import export, settings, transport
from llmobs.instrument.traces.encode import Head, Span
from llmobs.instrument.traces.options import Options, SettingsError, options
from llmobs.instrument.traces.settings import TraceSettings
from tests.instrument.otlp import Receiver, Tls

_HTTP = "http/protobuf"
_BOTH = pytest.mark.parametrize("protocol", ["grpc", _HTTP])
_SECRET = "hunter2"


def _settings(protocol: str = "grpc", **more: Any) -> TraceSettings:
    return TraceSettings(protocol=protocol, labels={}, **more)


def _read(environ: dict[str, str], protocol: str = "grpc", endpoint: str | None = None) -> Options:
    prefixed = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()}
    return options(_settings(protocol, endpoint=endpoint), prefixed)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a transport from variables; given without their common beginning."""

    def make(protocol: str, **environ: str) -> transport.Transport:
        for name, value in environ.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
        return transport.transport(_settings(protocol))

    return make


def _batch(count: int = 1) -> bytes:
    batch = Head({"service.name": "x"}).batch()
    batch.extend([Span("a", bytes(15) + b"1", bytes(7) + b"1", None, 1, 2, {"n": 1})] * count)
    return batch.payload()


@pytest.mark.parametrize(
    ("environ", "protocol", "endpoint"),
    [
        ({}, "grpc", "http://localhost:4317"),
        ({}, _HTTP, "http://localhost:4318/v1/traces"),
        ({"ENDPOINT": "http://c:1"}, "grpc", "http://c:1"),
        ({"ENDPOINT": "http://c:1/"}, _HTTP, "http://c:1/v1/traces"),
        ({"ENDPOINT": "http://c:1/otlp"}, _HTTP, "http://c:1/otlp/v1/traces"),
        ({"ENDPOINT": "http://c:1", "TRACES_ENDPOINT": "http://t:2/x"}, _HTTP, "http://t:2/x"),
        ({"ENDPOINT": "http://c:1", "TRACES_ENDPOINT": ""}, "grpc", "http://c:1"),
    ],
)
def test_the_endpoint_of_the_variables(environ: dict[str, str], protocol: str, endpoint: str) -> None:
    """Over HTTP the general one gets the path of traces, the one for traces is used as it is."""
    assert _read(environ, protocol).endpoint == endpoint


@pytest.mark.parametrize(
    ("environ", "flag", "plain"),
    [
        ({"ENDPOINT": "http://c:1"}, None, True),
        ({"ENDPOINT": "https://c:1", "INSECURE": "true"}, None, False),
        ({"ENDPOINT": "c:1"}, None, False),
        ({"ENDPOINT": "c:1", "INSECURE": "true"}, None, True),
        ({"ENDPOINT": "c:1", "INSECURE": "true", "TRACES_INSECURE": "false"}, None, False),
        ({}, "c:1", True),
        ({}, "https://c:1", False),
    ],
)
def test_grpc_uses_tls_as_the_sdk_does(environ: dict[str, str], flag: str | None, plain: bool) -> None:
    """The scheme decides, then INSECURE; vLLM's flag without a scheme is plain, as in vLLM."""
    assert _read(environ, endpoint=flag).plain is plain


def test_the_form_for_traces_wins() -> None:
    """Timeout, compression and headers; the headers are percent-decoded and not merged."""
    environ = {"TIMEOUT": "3", "COMPRESSION": "gzip", "HEADERS": "a=1"}
    general = _read(environ)
    assert (general.timeout, general.compression, general.headers) == (3.0, "gzip", {"a": "1"})
    environ |= {"TRACES_TIMEOUT": "4", "TRACES_COMPRESSION": "none", "TRACES_HEADERS": "Authorization=Basic%20x, b=2"}
    own = _read(environ)
    assert (own.timeout, own.compression, own.headers) == (4.0, "none", {"authorization": "Basic x", "b": "2"})


def test_what_cannot_be_used_is_said_without_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """A bad timeout and compression fall back, a bad header is left out; no value of a header is in the log."""
    caplog.set_level(logging.DEBUG)
    read = _read({"TIMEOUT": "soon", "COMPRESSION": "zip", "HEADERS": f'"{_SECRET}",ok=1'})
    assert (read.timeout, read.compression, read.headers) == (10.0, "none", {"ok": "1"})
    assert len(caplog.records) == 3
    assert _SECRET not in caplog.text


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [({"CERTIFICATE": "/nowhere/ca.pem"}, "grpc"), ({"TRACES_CLIENT_KEY": "/nowhere/k"}, _HTTP),
     ({"ENDPOINT": f"ftp://u:{_SECRET}@c"}, _HTTP)],
)  # fmt: skip
def test_a_setting_without_a_default_is_an_error(environ: dict[str, str], protocol: str) -> None:
    """A file that is not there, an endpoint that is none; the text has no secret."""
    with pytest.raises(SettingsError) as error:
        _read(environ, protocol)
    assert _SECRET not in str(error.value)


@_BOTH
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_export_arrives_with_its_headers(protocol: str, compression: str, made: Any) -> None:
    """Compressed or not, over both protocols."""
    receiver = Receiver(http=protocol == _HTTP)
    sender = made(protocol, ENDPOINT=receiver.url, COMPRESSION=compression, HEADERS="tenant=blue%20one")
    assert sender.send(_batch()) is None
    sender.close()
    receiver.stop()
    assert receiver.headers[0]["tenant"] == "blue one"
    if protocol == _HTTP:
        assert receiver.headers[0].get("content-encoding", "none") == compression
        assert receiver.paths == ["/v1/traces"]
    assert [s.attributes for s in receiver.spans] == [{"n": 1}]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, str]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    return Tls(str(folder / "cert.pem"), str(folder / "key.pem")), str(folder / "ca.pem")


@_BOTH
@pytest.mark.parametrize("known", [True, False])
def test_a_collector_with_a_certificate_of_its_own(
    protocol: str, known: bool, tls: tuple[Tls, str], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is trusted when the variable names its authority, which also wins over what requests has of its own."""
    receiver = Receiver(http=protocol == _HTTP, tls=tls[0])
    if known:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", tls[1])
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", tls[0].key)
    sender = made(protocol, ENDPOINT=receiver.url, TIMEOUT="2")
    lost = sender.send(_batch())
    sender.close()
    receiver.stop()
    assert (lost is None) is known
    assert len(receiver.spans) == known


@_BOTH
@pytest.mark.parametrize("shown", [True, False])
def test_a_collector_that_wants_to_know_its_clients(
    protocol: str, shown: bool, tls: tuple[Tls, str], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutual TLS: it takes the export from whoever shows a certificate of its authority, and from nobody else."""
    receiver = Receiver(http=protocol == _HTTP, tls=replace(tls[0], clients=tls[1]))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", tls[1])
    if shown:  # the authority issued only one pair, which serves for both ends
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", tls[0].certificate)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", tls[0].key)
    sender = made(protocol, ENDPOINT=receiver.url, TIMEOUT="2")
    lost = sender.send(_batch())
    sender.close()
    receiver.stop()
    assert (lost is None) is shown
    assert len(receiver.spans) == shown


@pytest.mark.parametrize("protocol", ["grpc", _HTTP])
def test_a_collector_that_is_busy_is_asked_again(protocol: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refusals that pass, then it takes the export."""
    monkeypatch.setattr(transport.random, "uniform", lambda *_: 0.01)
    http = protocol == _HTTP
    receiver = Receiver(http=http, refuse=[503, 429] if http else [grpc.StatusCode.UNAVAILABLE] * 2)
    sender = made(protocol, ENDPOINT=receiver.url)
    assert sender.send(_batch()) is None
    sender.close()
    receiver.stop()
    assert (receiver.calls, len(receiver.spans)) == (3, 1)


@pytest.mark.parametrize(
    ("protocol", "status"),
    [(_HTTP, 400), (_HTTP, 500), (_HTTP, 302), ("grpc", grpc.StatusCode.INVALID_ARGUMENT),
     ("grpc", grpc.StatusCode.RESOURCE_EXHAUSTED)],
)  # fmt: skip
def test_a_refusal_that_will_not_pass_is_final(protocol: str, status: Any, made: Any) -> None:
    """It is not asked a second time; RESOURCE_EXHAUSTED only when it says when."""
    receiver = Receiver(http=protocol == _HTTP, refuse=[status])
    sender = made(protocol, ENDPOINT=receiver.url)
    lost = sender.send(_batch())
    sender.close()
    receiver.stop()
    assert receiver.calls == 1
    assert lost.spans is None
    assert (str(status) if isinstance(status, int) else status.name) in lost.why


def test_a_retry_that_the_collector_asks_for_waits_as_long_as_it_says() -> None:
    """RetryInfo in the status details, or bare."""
    from google.protobuf.any_pb2 import Any as Packed
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    info = RetryInfo()
    info.retry_delay.seconds, info.retry_delay.nanos = 1, 500_000_000
    packed = Packed()
    packed.Pack(info)
    details = Status(details=[packed]).SerializeToString()
    assert transport._retry_delay([("x", "y"), ("grpc-status-details-bin", details)]) == 1.5
    assert transport._retry_delay([("google.rpc.retryinfo-bin", info.SerializeToString())]) == 1.5
    assert transport._retry_delay([("grpc-status-details-bin", b"\xff")]) is None
    assert transport._retry_delay([]) is None


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), (None, None), ("Wed, 21 Oct 2015 07:28:00 GMT", None)])
def test_retry_after_is_followed(text: str | None, seconds: float | None) -> None:
    """In seconds; a date is left to our own back-off."""
    assert transport._retry_after(text) == seconds


@_BOTH
@pytest.mark.parametrize("kind", ["hangs", "is gone"])
def test_a_collector_that_hangs_or_is_gone_costs_the_timeout(protocol: str, kind: str, made: Any) -> None:
    """The export is lost after it, with a reason that shows no endpoint."""
    receiver = Receiver(http=protocol == _HTTP, hang=True)
    url = receiver.url if kind == "hangs" else "http://127.0.0.1:9"
    sender = made(protocol, ENDPOINT=url, TIMEOUT="0.5")
    began = time.monotonic()
    lost = sender.send(_batch())
    assert time.monotonic() - began < 2
    assert lost.spans is None
    assert "127.0.0.1" not in lost.why
    sender.close()
    receiver.stop()


def test_a_connection_that_the_collector_had_closed_is_made_anew(made: Any) -> None:
    """The export goes through, at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    bodies: list[bytes] = []

    def serve() -> None:
        listener.accept()[0].close()
        with listener.accept()[0] as peer:
            bodies.append(peer.recv(65536))
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    sender = made(_HTTP, ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}")
    began = time.monotonic()
    assert sender.send(_batch()) is None
    assert time.monotonic() - began < 0.7
    thread.join()
    sender.close()
    listener.close()


@_BOTH
def test_spans_that_the_collector_rejects_are_told(protocol: str, made: Any) -> None:
    """A partial success says how many; they are not sent again."""
    receiver = Receiver(http=protocol == _HTTP, rejected=2)
    sender = made(protocol, ENDPOINT=receiver.url)
    assert sender.send(_batch(3)) == (2, "the Collector rejected a part")
    sender.close()
    receiver.stop()
    assert receiver.calls == 1


def test_an_answer_without_end_is_not_read(made: Any) -> None:
    """A page that is longer than any answer costs no memory, and the export counts as taken."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent = 0

    def serve() -> None:
        nonlocal sent
        with listener.accept()[0] as peer:
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            try:
                while sent < 1_000_000_000:
                    sent += peer.send(b"x" * 65536)
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    sender = made(_HTTP, ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert sender.send(_batch()) is None
    sender.close()
    thread.join(10)
    listener.close()
    assert sent < 50_000_000


class _Lost:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, count: int) -> None:
        self.count += count


@pytest.fixture
def lost() -> _Lost:
    return _Lost()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.stop()


def _spans(count: int) -> list[Span]:
    return [Span("a", bytes(15) + b"1", n.to_bytes(8, "big"), None, 1, 2, {}) for n in range(1, count + 1)]


def test_exports_are_no_larger_than_the_batch(receiver: Receiver, lost: _Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests share a batch, and one that is larger than a batch is cut; nothing is lost or sent twice."""
    sizes: list[int] = []
    original = transport.Transport.send

    def send(self: transport.Transport, payload: bytes) -> Any:
        group = ExportTraceServiceRequest.FromString(payload).resource_spans[0]
        sizes.append(len(group.scope_spans[0].spans))
        return original(self, payload)

    monkeypatch.setattr(transport.Transport, "send", send)
    pipeline = export.Pipeline(_settings(batch=10, queue=100, delay=60.0), Head({}), lost)
    pipeline._wake.clear()
    for count in (4, 25, 3):
        pipeline._items.append((count, lambda count=count: _spans(count)))
        pipeline._waiting += count
    pipeline.close(10)
    assert sizes == [10, 10, 10, 2]
    assert len(receiver.spans) == 32
    assert (lost.count, pipeline._held, pipeline._waiting) == (0, 0, 0)


@pytest.mark.parametrize("way", ["add", "put"])
def test_spans_that_cannot_be_built_or_written_are_counted(way: str, receiver: Receiver, lost: _Lost) -> None:
    """The others arrive."""
    pipeline = export.Pipeline(_settings(delay=0.05), Head({}), lost)
    queue = getattr(pipeline, way)
    queue(8, lambda: 1 / 0)
    queue(3, lambda: [*_spans(1), _spans(1)[0]._replace(start=-1), *_spans(1)])
    queue(2, lambda: _spans(2))
    pipeline.close(10)
    assert len(receiver.spans) == 3
    assert (lost.count, pipeline._held, pipeline._waiting) == (10, 0, 0)


def test_spans_that_are_added_are_built_at_once_and_sent_by_the_thread(receiver: Receiver, lost: _Lost) -> None:
    """Full batches go at once, the rest later; what the thread builds shares the batches."""
    builders: list[threading.Thread] = []

    def build(count: int) -> list[Span]:
        builders.append(threading.current_thread())
        return _spans(count)

    pipeline = export.Pipeline(_settings(batch=10, queue=100, delay=60.0), Head({}), lost)
    assert pipeline.add(8, lambda: build(8))
    assert builders == [threading.current_thread()]
    assert pipeline.add(8, lambda: build(7))
    assert receiver.wait(lambda: len(receiver.spans) == 10)
    assert pipeline._waiting == 5
    assert pipeline.put(2, lambda: build(3))
    pipeline.close(10)
    assert len(receiver.spans) == 18
    assert builders[-1] is pipeline._thread
    assert (lost.count, pipeline._held, pipeline._waiting) == (0, 0, 0)


def test_what_does_not_fill_a_batch_is_sent_when_the_delay_has_passed(receiver: Receiver, lost: _Lost) -> None:
    """Nothing else has to come."""
    pipeline = export.Pipeline(_settings(delay=0.05), Head({}), lost)
    assert pipeline.add(2, lambda: _spans(2))
    assert receiver.wait(lambda: len(receiver.spans) == 2)
    pipeline.close(10)
    assert lost.count == 0


def test_a_full_queue_builds_nothing(lost: _Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Collector that hangs, spans cost a comparison and are counted."""
    hanging = Receiver(hang=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", hanging.url)
    built = []

    def build() -> list[Span]:
        built.append(8)
        return _spans(8)

    pipeline = export.Pipeline(_settings(batch=16, queue=64, delay=60.0), Head({}), lost)
    taken = sum(pipeline.add(8, build) for _ in range(100))
    assert taken == len(built) <= (64 + 16) / 8
    assert lost.count == 8 * (100 - taken)
    pipeline.close(0.2)
    hanging.stop()
    assert lost.count == 800


def test_an_exporter_that_cannot_be_made_is_said_and_all_is_counted(
    lost: _Lost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing certificate file is named in one sentence."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")
    pipeline = export.Pipeline(_settings(delay=0.05), Head({}), lost)
    for _ in range(3):
        pipeline.put(8, lambda: _spans(8))
    pipeline.close(10)
    assert lost.count == 24
    (record,) = caplog.records
    assert "(the exporter cannot be made: the file of OTEL_EXPORTER_OTLP_CERTIFICATE" in record.getMessage()
    assert "/nowhere/ca.pem" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize("protocol", ["grpc", _HTTP])
def test_a_secret_in_a_header_that_cannot_be_sent_is_not_shown(
    protocol: str, lost: _Lost, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The libraries put such a header's value in their error."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"key={_SECRET}%0Ax")
    pipeline = export.Pipeline(_settings(protocol, delay=0.05), Head({}), lost)
    pipeline.put(2, lambda: _spans(2))
    pipeline.close(10)
    assert lost.count == 2
    assert _SECRET not in caplog.text


def test_the_end_of_the_process_does_not_wait_for_retries(lost: _Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause between two attempts ends at once, and each batch is tried once more."""
    refusing = Receiver(refuse=[grpc.StatusCode.UNAVAILABLE] * 9)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", refusing.url)
    monkeypatch.setattr(transport.random, "uniform", lambda *_: 5.0)
    pipeline = export.Pipeline(_settings(delay=0.05), Head({}), lost)
    pipeline.put(2, lambda: _spans(2))
    assert refusing.wait(lambda: refusing.calls)
    began = time.monotonic()
    pipeline.close(10)
    refusing.stop()
    assert time.monotonic() - began < 2
    assert lost.count == 2


def test_a_missing_library_is_named_with_its_cure(lost: _Lost, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """No traceback."""

    def absent(_settings: TraceSettings) -> Any:
        raise ModuleNotFoundError("No module named 'grpc'")

    monkeypatch.setattr(export, "transport", absent)
    pipeline = export.Pipeline(_settings(delay=0.05), Head({}), lost)
    pipeline.close(10)
    assert "No module named 'grpc'; pip install 'llmobs[otlp]'" in caplog.text


def test_the_variables_are_documented() -> None:
    """Each that is read is in the list."""
    for end in ("HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE", "INSECURE"):
        assert f"TRACES_{end}" in settings.VARIABLES[f"OTEL_EXPORTER_OTLP_{end}"]
