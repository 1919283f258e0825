"""A real OTLP trace service, over gRPC or HTTP, that keeps the spans it is sent."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Seen:
    """A received span; times in Unix nanoseconds, ids as hex, `parent` empty for a span without one."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    span: trace_pb2.Span

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end - self.start) / 1e9


@dataclass(frozen=True)
class Tls:
    """Files of a server's certificate and its key, and of the authority whose clients it lets in, None for anybody."""

    certificate: str
    key: str
    clients: str | None = None


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """The service; with `hang` it never answers.

    `refuse` are the statuses (of HTTP, or of gRPC) of its first answers, `rejected` the spans of each export that it
    claims not to have taken.
    """

    def __init__(
        self,
        *,
        http: bool = False,
        hang: bool = False,
        tls: Tls | None = None,
        refuse: Sequence[Any] = (),
        rejected: int = 0,
    ) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refuse = list(refuse)
        self.calls = 0
        self._rejected = rejected
        self._tls = tls
        self.release = threading.Event()
        if not hang:
            self.release.set()
        self.url, self.stop = self._serve_http() if http else self._serve_grpc()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 (the name in the protocol)
        self.calls += 1
        if context is not None:
            self.headers.append(dict(context.invocation_metadata()))
            if self.refuse:
                context.abort(self.refuse.pop(0), "not now")
        self.release.wait(60)
        for group in request.resource_spans:
            resource = {a.key: _value(a.value) for a in group.resource.attributes}
            self.spans += [_seen(span, resource) for scope in group.scope_spans for span in scope.spans]
        answer = trace_service_pb2.ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self._rejected
        return answer

    def named(self, name: str) -> list[Seen]:
        """Return the spans of that name."""
        return [s for s in self.spans if s.name == name]

    def trace(self, trace_id: str) -> list[Seen]:
        """Return the spans of one trace, by start."""
        return sorted((s for s in self.spans if s.trace_id == trace_id), key=lambda s: s.start)

    def wait(self, what: Callable[[], Any], seconds: float = 10) -> Any:
        """Return the first true value of `what`, or its last."""
        deadline = time.monotonic() + seconds
        while not (found := what()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    @property
    def _scheme(self) -> str:
        return "http" if self._tls is None else "https"

    def _serve_grpc(self) -> tuple[str, Callable[[], Any]]:
        server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        if self._tls is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = Path(self._tls.key).read_bytes(), Path(self._tls.certificate).read_bytes()
            clients = Path(self._tls.clients).read_bytes() if self._tls.clients else None
            credentials = grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        return f"{self._scheme}://127.0.0.1:{port}", lambda: (self.release.set(), server.stop(0))

    def _serve_http(self) -> tuple[str, Callable[[], Any]]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.paths.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.headers.append({k.lower(): v for k, v in self.headers.items()})
                if receiver.refuse:
                    receiver.calls += 1
                    self.send_error(receiver.refuse.pop(0))
                    return
                answer = receiver.Export(trace_service_pb2.ExportTraceServiceRequest.FromString(body), None)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(answer.SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
            if self._tls.clients:
                context.load_verify_locations(self._tls.clients)
                context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"{self._scheme}://127.0.0.1:{server.server_port}", lambda: (self.release.set(), server.shutdown())


def _seen(span: trace_pb2.Span, resource: dict[str, Any]) -> Seen:
    return Seen(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes={a.key: _value(a.value) for a in span.attributes},
        resource=resource,
        span=span,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, kind) if kind else None
