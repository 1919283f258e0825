"""Ways to the Collector: gRPC or HTTP, with retries while the timeout lasts.

What went wrong is told without endpoint, header and body: each may hold a secret, and so may the text of an exception.
"""

from __future__ import annotations

import gzip
import random
import threading
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from llmobs import __version__
from llmobs.instrument.traces.options import Options, SettingsError, options
from llmobs.instrument.traces.settings import TraceSettings

_AGENT = f"llmobs/{__version__}"
#: Bytes of an answer that are read. One that is longer is not looked at.
ANSWER_BYTES = 65536
_ATTEMPTS = 6
#: `Failure.wait` of what cannot succeed later either.
NEVER = float("inf")


class Lost(NamedTuple):
    """How many spans of an export were lost, None for all, and why."""

    spans: int | None
    why: str


class Failure(NamedTuple):
    """An attempt that failed. `wait` are seconds until the next: None for our own back-off, or NEVER."""

    why: str
    wait: float | None


class Attempt(Protocol):
    """One protocol: tries once, for at most `seconds`."""

    def send(self, payload: bytes, seconds: float) -> bytes | Failure:
        """Return the answer, an ExportTraceServiceResponse or nothing, or what failed."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class Transport:
    """Sends exports, with retries while the timeout lasts."""

    def __init__(self, attempt: Attempt, timeout: float) -> None:
        self._attempt = attempt
        self._timeout = timeout
        self._closing = threading.Event()
        self._last = NEVER

    def send(self, payload: bytes) -> Lost | None:
        """Send one export and return None when the Collector took it all. Waits for at most the timeout."""
        deadline = time.monotonic() + self._timeout
        number = 0
        while True:
            left = min(deadline, self._last) - time.monotonic()
            result = self._attempt.send(payload, left) if left > 0 else Failure("there was no time left", NEVER)
            if not isinstance(result, Failure):
                return _rejected(result)
            wait = 2**number * random.uniform(0.8, 1.2) if result.wait is None else result.wait
            number += 1
            left = min(deadline, self._last) - time.monotonic()
            if number == _ATTEMPTS or wait > left or self._closing.wait(wait):
                return Lost(None, result.why)

    def closing(self, seconds: float) -> None:
        """From now on nothing is tried twice, and nothing takes longer than until `seconds` from now."""
        self._last = time.monotonic() + seconds
        self._closing.set()

    def close(self) -> None:
        """Give the connection back."""
        self._attempt.close()


def _rejected(answer: bytes) -> Lost | None:
    """Return how many spans a Collector that took the export rejected."""
    if not answer:
        return None
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        rejected = ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
    except DecodeError:
        return None  # it said that it took them; a proxy's page of HTML changes nothing about that
    return Lost(rejected, "the Collector rejected a part") if rejected > 0 else None


def transport(settings: TraceSettings) -> Transport:
    """Return the transport that the variables ask for.

    Raises SettingsError, and ModuleNotFoundError without the extra ``llmobs[otlp]``.
    """
    chosen = options(settings)
    return Transport(Grpc(chosen) if settings.protocol == "grpc" else Http(chosen), chosen.timeout)


class Grpc:
    """OTLP over gRPC. The generated stub would serialise the message again at each attempt, so it is not used."""

    _METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    #: Seconds between attempts to connect grow up to this; grpc's own two minutes would lose the spans of two minutes.
    _RECONNECT_MS = 5000

    def __init__(self, chosen: Options) -> None:
        import grpc  # type: ignore[import-untyped]

        self._error = grpc.RpcError
        code = grpc.StatusCode
        # Those of the specification that may be tried again. RESOURCE_EXHAUSTED only where the Collector says when.
        self._transient = {
            code.CANCELLED, code.DEADLINE_EXCEEDED, code.ABORTED, code.OUT_OF_RANGE, code.UNAVAILABLE, code.DATA_LOSS,
        }  # fmt: skip
        self._exhausted = code.RESOURCE_EXHAUSTED
        target = urlsplit(chosen.endpoint).netloc or chosen.endpoint
        settings = {
            "compression": grpc.Compression.Gzip if chosen.compression == "gzip" else grpc.Compression.NoCompression,
            "options": (
                ("grpc.primary_user_agent", _AGENT),
                ("grpc.max_receive_message_length", ANSWER_BYTES),
                ("grpc.max_reconnect_backoff_ms", self._RECONNECT_MS),
            ),
        }
        if chosen.plain:
            self._channel = grpc.insecure_channel(target, **settings)
        else:
            if (chosen.client_key is None) != (chosen.client_certificate is None):
                raise SettingsError(
                    "OTEL_EXPORTER_OTLP_CLIENT_KEY and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE need each other"
                )
            files = (chosen.certificate, chosen.client_key, chosen.client_certificate)
            credentials = grpc.ssl_channel_credentials(*(Path(f).read_bytes() if f else None for f in files))
            self._channel = grpc.secure_channel(target, credentials, **settings)
        self._headers = tuple(chosen.headers.items())
        self._export = self._channel.unary_unary(self._METHOD)

    def send(self, payload: bytes, seconds: float) -> bytes | Failure:
        """Return the answer, or what failed."""
        try:
            answer: bytes = self._export(payload, timeout=seconds, metadata=self._headers)
        except self._error as error:
            code: Any = error.code()
            wait = _retry_delay(error.trailing_metadata() or ())
            if code not in self._transient and not (code is self._exhausted and wait is not None):
                wait = NEVER
            return Failure(f"the Collector's answer is {code.name}", wait)
        return answer

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _retry_delay(metadata: Any) -> float | None:
    """Return the seconds of a RetryInfo: in the status details, or where the SDK looks for it."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    info = RetryInfo()
    try:
        for name, value in metadata:
            if name == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
                break
            if name == "grpc-status-details-bin" and any(d.Unpack(info) for d in Status.FromString(value).details):
                break
        else:
            return None
    except DecodeError:
        return None
    return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))


class Http:
    """OTLP over HTTP: a POST of the message."""

    _TRANSIENT = (429, 502, 503, 504)

    def __init__(self, chosen: Options) -> None:
        import requests
        from urllib3.exceptions import HTTPError

        self._errors = requests.exceptions
        self._final = (requests.Timeout, requests.exceptions.SSLError, requests.exceptions.ProxyError)
        self._unread = HTTPError
        self._session = requests.Session()
        self._url = chosen.endpoint
        # Given with each request: at the session, REQUESTS_CA_BUNDLE would win over it.
        self._verify = chosen.certificate or True
        self._cert: str | tuple[str, str] | None = chosen.client_certificate
        if chosen.client_certificate and chosen.client_key:
            self._cert = (chosen.client_certificate, chosen.client_key)
        self._compression = chosen.compression
        self._headers = {
            "user-agent": _AGENT,
            "accept-encoding": "identity",
            "content-type": "application/x-protobuf",
            **({} if chosen.compression == "none" else {"content-encoding": chosen.compression}),
            **chosen.headers,
        }

    def send(self, payload: bytes, seconds: float) -> bytes | Failure:
        """Return the answer, or what failed. A connection that the Collector had closed is made anew at once."""
        if self._compression == "gzip":
            payload = gzip.compress(payload, 6)
        elif self._compression == "deflate":
            payload = zlib.compress(payload)
        began = time.monotonic()
        try:
            try:
                return self._post(payload, seconds)
            except self._errors.ConnectionError as error:
                if isinstance(error, self._final):
                    raise
                return self._post(payload, max(0.001, began + seconds - time.monotonic()))
        except self._errors.Timeout:
            return Failure("the Collector did not answer in time", None)
        except self._errors.ConnectionError as error:
            return Failure(f"no connection: {type(error).__name__}", None)

    def _post(self, payload: bytes, seconds: float) -> bytes | Failure:
        with self._session.post(
            self._url,
            data=payload,
            headers=self._headers,
            timeout=seconds,
            verify=self._verify,
            cert=self._cert,
            allow_redirects=False,
            stream=True,
        ) as response:
            status = response.status_code
            if 200 <= status < 300:
                try:
                    answer: bytes = response.raw.read(ANSWER_BYTES + 1)
                except self._unread:
                    return b""  # it was taken; what became of the answer changes nothing
                return answer if len(answer) <= ANSWER_BYTES else b""
            wait = _retry_after(response.headers.get("retry-after")) if status in self._TRANSIENT else NEVER
            return Failure(f"the Collector's answer is HTTP {status}", wait)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _retry_after(text: str | None) -> float | None:
    """Return the seconds of a Retry-After; its other form, a date, is left to our own back-off."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
