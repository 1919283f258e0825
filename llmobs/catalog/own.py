"""The contract, part 3: llmobs itself (`llmobs_*`)."""

from __future__ import annotations

from llmobs.catalog.gpu import NVML_ERRORS
from llmobs.catalog.model import TARGET, Metric

GPU_REASONS = (
    "no_library", "no_driver", "version_mismatch", "no_permission", "no_devices", "hung", "disabled", "error",
)  # fmt: skip

OWN_METRICS = (
    Metric(
        name="llmobs_build_info", kind="info", unit="info", labels=("version", "python_version"),
        help="Version of llmobs and of the Python it runs on.",
    ),
    Metric(
        name="llmobs_watchdog", kind="gauge", unit="bool", labels=(),
        help="Always 1: an alert on it always fires, and its absence means that the alerting chain is broken.",
    ),
    Metric(
        name="llmobs_window_seconds", kind="gauge", unit="seconds", labels=(),
        help="The sliding window behind rates and ratios.",
    ),
    Metric(
        name="llmobs_peak_interval_seconds", kind="gauge", unit="seconds", labels=(),
        help="The interval behind the _peak metrics; keep the scrape interval below it.",
    ),
    Metric(
        name="llmobs_collector_duration_seconds", kind="gauge", unit="seconds", labels=("collector", "target"),
        help="Duration of the collector's last cycle; target is empty for the gpu collector.",
    ),
    Metric(
        name="llmobs_collector_success", kind="gauge", unit="bool", labels=("collector", "target"),
        help="1 if the collector's last cycle succeeded.",
    ),
    Metric(
        name="llmobs_collector_last_success_timestamp_seconds", kind="gauge", unit="seconds",
        labels=("collector", "target"), help="Unix time of the collector's last successful cycle.",
    ),
    Metric(
        name="llmobs_collector_interval_seconds", kind="gauge", unit="seconds", labels=("collector", "target"),
        help="Interval at which the collector runs.",
    ),
    Metric(
        name="llmobs_cycle_overruns_total", kind="counter", unit="cycles", labels=("collector", "target"),
        help="Cycles that took longer than their interval, so that the next one started late.",
    ),
    Metric(
        name="llmobs_target_unmapped_series", kind="gauge", unit="series", labels=TARGET,
        help="Series on the target's page that no dialect knows.",
        meaning="Not an error: a newer vLLM, or another library's metrics.",
    ),
    Metric(
        name="llmobs_target_partial", kind="gauge", unit="bool", labels=TARGET,
        help="1 if the source speaks for a part of the server only (one of several API server processes).",
    ),
    Metric(
        name="llmobs_dropped_label_sets_total", kind="counter", unit="label sets", labels=TARGET,
        help="Label sets left out because the cap on outside label values was reached.",
    ),
    Metric(
        name="llmobs_targets", kind="gauge", unit="targets", labels=("discovery",),
        values={"discovery": ("static", "file", "dns")}, help="Targets being watched, by how they were found.",
    ),
    Metric(
        name="llmobs_config_last_reload_successful", kind="gauge", unit="bool", labels=(),
        help="1 if the last reload of the configuration succeeded; 0 keeps the one before.",
    ),
    Metric(
        name="llmobs_config_last_reload_success_timestamp_seconds", kind="gauge", unit="seconds", labels=(),
        help="Unix time of the last successful load of the configuration.",
    ),
    Metric(
        name="llmobs_nvml_up", kind="gauge", unit="bool", labels=(),
        help="1 if NVML answers, 0 if there is no driver, no device, or a call hangs.",
    ),
    Metric(
        name="llmobs_nvml_error", kind="gauge", unit="bool", labels=("reason",), values={"reason": GPU_REASONS},
        help="Why there are no GPU metrics; all 0 when there are.",
    ),
    Metric(
        name="llmobs_nvml_errors_total", kind="counter", unit="errors", labels=("error",),
        values={"error": NVML_ERRORS},
        help="NVML calls that failed, by kind of error; fields that a GPU does not have are not errors.",
    ),
    Metric(
        name="llmobs_xid_listener_up", kind="gauge", unit="bool", labels=(),
        help="1 if Xid errors are being listened for; 0 means that they would be missed.",
    ),
    Metric(
        name="llmobs_log_messages_suppressed_total", kind="counter", unit="messages", labels=(),
        help="Log messages left out by the rate limit.",
    ),
    Metric(
        name="llmobs_otlp_pushes_total", kind="counter", unit="pushes", labels=("result",),
        values={"result": ("success", "failure")}, help="Pushes of the metrics by OTLP; only with --otlp.",
    ),
    Metric(
        name="llmobs_http_requests_total", kind="counter", unit="requests", labels=("handler", "code"),
        help="Requests answered by llmobs' own web server.",
    ),
    Metric(
        name="llmobs_hook_active", kind="gauge", unit="bool", labels=(*TARGET, "hook"),
        help="1 while this hook inside vLLM works, 0 after it removed itself.",
        source="/stats",
    ),
    Metric(
        name="llmobs_hook_errors_total", kind="counter", unit="errors", labels=(*TARGET, "hook"),
        help="Errors that a hook inside vLLM caught; vLLM never saw them.",
        source="/stats",
    ),
    Metric(
        name="llmobs_instrument_dropped_total", kind="counter", unit="items", labels=(*TARGET, "kind"),
        values={"kind": ("spans", "log_lines", "journal_lines")},
        help="What the instrumentation inside vLLM had to drop instead of slowing it down.",
        source="/stats",
    ),
    Metric(
        name="llmobs_probe_success", kind="gauge", unit="bool", labels=(),
        help="On /probe only: 1 if the last cycle of the probed target succeeded.",
    ),
    Metric(
        name="llmobs_probe_age_seconds", kind="gauge", unit="seconds", labels=(),
        help="On /probe only: age of the last finished cycle of the probed target.",
    ),
    Metric(
        name="process_cpu_seconds_total", kind="counter", unit="seconds", labels=(), help="CPU time of llmobs.",
    ),
    Metric(
        name="process_resident_memory_bytes", kind="gauge", unit="bytes", labels=(), help="Memory of llmobs.",
    ),
    Metric(
        name="process_start_time_seconds", kind="gauge", unit="seconds", labels=(),
        help="Unix time at which llmobs started.",
    ),
    Metric(
        name="process_open_fds", kind="gauge", unit="descriptors", labels=(), help="Open file descriptors of llmobs.",
    ),
    Metric(
        name="process_max_fds", kind="gauge", unit="descriptors", labels=(),
        help="Limit on open file descriptors of llmobs.",
    ),
)  # fmt: skip
