"""The tree of settings. It is the documentation of the file's keys: names, types, defaults, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def _setting(default: Any, doc: str) -> Any:
    metadata = {"doc": doc}
    if isinstance(default, (list, dict)) or callable(default):
        return field(default_factory=default if callable(default) else lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS towards a target."""

    ca_file: str | None = _setting(None, "Certificates to trust instead of the system's.")
    cert_file: str | None = _setting(None, "Client certificate.")
    key_file: str | None = _setting(None, "Key of the client certificate.")
    server_name: str | None = _setting(None, "Name to check in the server's certificate instead of the URL's.")
    insecure_skip_verify: bool = _setting(False, "Accept any certificate. For tests only.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """One vLLM server to watch."""

    url: str = _setting("", "Base URL: http://host:port, https://…, or unix:/path/to.sock.")
    name: str = _setting("", "Value of the label `target`; default host:port.")
    labels: Mapping[str, str] = _setting(dict, "Constant labels for every series of the target.")
    source: str = _setting("auto", "auto tries /stats, then /metrics, and remembers; stats or metrics fix it.")
    interval_seconds: float | None = _setting(None, "Seconds between readings; default 1 for /stats, 5 for /metrics.")
    timeout_seconds: float = _setting(3.0, "Deadline of one whole reading.")
    health_timeout_seconds: float = _setting(1.0, "Deadline of GET /health.")
    api_key_file: str | None = _setting(None, "File with the API key, sent as a bearer token; read again on change.")
    api_key_env: str | None = _setting(None, "Environment variable with the API key.")
    tls: TlsSettings = _setting(TlsSettings, "TLS towards the target.")
    state_dir: str | None = _setting(None, "Folder with the failure journal (LLMOBS_STATE_DIR of the vLLM process).")
    log_file: str | None = _setting(None, "vLLM's log file, searched for out-of-memory errors; its text goes nowhere.")
    cgroup: str | None = _setting(None, "cgroup folder of vLLM, for kills by the kernel's out-of-memory killer.")
    gpus: tuple[str, ...] = _setting((), "UUIDs of the GPUs the server runs on, where it cannot be found out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsSettings:
    """Targets found by DNS."""

    name: str = _setting("", "Name to look up.")
    type: str = _setting("A", "SRV, A, or AAAA.")
    port: int = _setting(8000, "Port for A and AAAA records.")
    scheme: str = _setting("http", "http or https.")
    labels: Mapping[str, str] = _setting(dict, "Constant labels for the targets found.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """Where targets come from besides the list."""

    files: tuple[str, ...] = _setting((), "Prometheus file_sd files (JSON or YAML; * allowed), re-read on change.")
    dns: tuple[DnsSettings, ...] = _setting((), "DNS names.")
    refresh_seconds: float = _setting(30.0, "Seconds between look-ups.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveSettings:
    """How figures are derived."""

    window_seconds: float = _setting(60.0, "Sliding window behind rates and ratios.")
    peak_seconds: float = _setting(60.0, "Interval of the _peak metrics; keep it at least one scrape interval.")
    stall_seconds: float = _setting(30.0, "Work without progress for this long is a stalled engine.")
    start_budget_seconds: float = _setting(1800.0, "A server that never answered counts as starting for this long.")
    max_label_values: int = _setting(64, "Most values of one outside label per engine; the rest is counted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Reading the GPUs."""

    enabled: bool = _setting(True, "Read NVML.")
    interval_seconds: float = _setting(5.0, "Seconds between readings.")
    timeout_seconds: float = _setting(4.0, "A reading that takes longer is abandoned and shown as hung.")
    reserve_ratio: float = _setting(0.2, "Share of the memory that planning leaves free against fragmentation.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """The daemon's own web server."""

    listen: tuple[str, ...] = _setting((":9401",), "host:port, [::1]:port, or :port for every address, IPv4 and IPv6.")
    config_file: str | None = _setting(None, "TLS and basic auth, in the format of the Prometheus exporters.")
    max_requests: int = _setting(40, "Most requests answered at once; more get 503.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The daemon's own log."""

    level: str = _setting("info", "debug, info, warning, or error.")
    format: str = _setting("auto", "json, console, or auto: console on a terminal, else json.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings:
    """Pushing the contract as OTLP metrics, for platforms that do not scrape."""

    enabled: bool = _setting(False, "Push; endpoint and headers come from the OTEL_EXPORTER_OTLP_* variables.")
    interval_seconds: float = _setting(15.0, "Seconds between pushes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon."""

    targets: tuple[TargetSettings, ...] = _setting((), "The servers to watch.")
    discovery: DiscoverySettings = _setting(DiscoverySettings, "Targets found elsewhere.")
    derive: DeriveSettings = _setting(DeriveSettings, "How figures are derived.")
    gpu: GpuSettings = _setting(GpuSettings, "Reading the GPUs.")
    web: WebSettings = _setting(WebSettings, "The daemon's own web server.")
    log: LogSettings = _setting(LogSettings, "The daemon's own log.")
    otlp: OtlpSettings = _setting(OtlpSettings, "Pushing OTLP metrics.")
