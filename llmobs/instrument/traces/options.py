"""Where the Collector is and how it is spoken to: the standard ``OTEL_EXPORTER_OTLP_*`` variables.

Of each the form ``OTEL_EXPORTER_OTLP_TRACES_*`` wins. They mean what they mean to the SDK's exporters. Nothing that is
said about a value shows an endpoint or a header: both may hold a secret.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from llmobs.instrument.guard import logger
from llmobs.instrument.traces.settings import TraceSettings

_GENERAL = "OTEL_EXPORTER_OTLP_"


class SettingsError(ValueError):
    """A variable cannot be used; the text names it and has no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the variables say. `timeout` is in seconds, for an export with all its attempts."""

    endpoint: str
    plain: bool
    headers: Mapping[str, str]
    timeout: float
    compression: str
    certificate: str | None
    client_key: str | None
    client_certificate: str | None


def options(settings: TraceSettings, environ: Mapping[str, str] = os.environ) -> Options:
    """Return the options. Raises SettingsError; a value that has a default is said in the log and replaced by it."""
    reader = _Reader(environ)
    grpc = settings.protocol == "grpc"
    endpoint = settings.endpoint or reader.traces("ENDPOINT")
    if endpoint is None:
        endpoint = reader.general("ENDPOINT") or f"http://localhost:{4317 if grpc else 4318}"
        if not grpc:
            endpoint = endpoint.removesuffix("/") + "/v1/traces"
    try:
        scheme = urlsplit(endpoint).scheme
    except ValueError:
        raise SettingsError("the OTLP endpoint is no URL") from None
    if not grpc and scheme not in ("http", "https"):
        raise SettingsError(
            "the OTLP endpoint must begin with http:// or https:// for OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )
    if settings.endpoint is not None:
        plain = scheme != "https"  # vLLM's own exporter never uses TLS: its flag without a scheme means the same here
    else:
        insecure = reader.either("INSECURE")
        plain = scheme != "https" and (scheme == "http" if insecure is None else insecure.lower() == "true")
    return Options(
        endpoint=endpoint,
        plain=plain,
        headers=reader.headers(),
        timeout=reader.timeout(),
        compression=reader.compression(("none", "gzip") if grpc else ("none", "gzip", "deflate")),
        certificate=reader.file("CERTIFICATE"),
        client_key=reader.file("CLIENT_KEY"),
        client_certificate=reader.file("CLIENT_CERTIFICATE"),
    )


class _Reader:
    """Reads variables by the ends of their names; an empty one counts as unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def traces(self, end: str) -> str | None:
        return self._environ.get(f"{_GENERAL}TRACES_{end}", "").strip() or None

    def general(self, end: str) -> str | None:
        return self._environ.get(_GENERAL + end, "").strip() or None

    def either(self, end: str) -> str | None:
        return self.traces(end) or self.general(end)

    def timeout(self) -> float:
        text = self.either("TIMEOUT") or "10"
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < threading.TIMEOUT_MAX:
            logger.warning("llmobs: %sTIMEOUT=%r is no number of seconds; using 10", _GENERAL, text)
            return 10.0
        return value

    def compression(self, known: tuple[str, ...]) -> str:
        text = (self.either("COMPRESSION") or "none").lower()
        if text not in known:
            logger.warning("llmobs: %sCOMPRESSION=%r is not one of %s; using none", _GENERAL, text, ", ".join(known))
            return "none"
        return text

    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        log = logging.getLogger("opentelemetry.util.re")
        log.addFilter(_silent)  # it would print a header that it cannot read, with its value
        try:
            for part in (self.either("HEADERS") or "").split(","):
                header = parse_env_headers(part, liberal=True)
                if part.strip() and not header:
                    logger.warning("llmobs: a part of %sHEADERS is not NAME=VALUE; leaving it out", _GENERAL)
                found.update(header)
        finally:
            log.removeFilter(_silent)
        return found

    def file(self, end: str) -> str | None:
        path = self.either(end)
        if path is not None and not os.access(path, os.R_OK):
            raise SettingsError(f"the file of {_GENERAL}{end} cannot be read: {path}")
        return path


def _silent(_record: logging.LogRecord) -> bool:
    return False
