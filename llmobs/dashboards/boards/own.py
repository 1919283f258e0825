"""llmobs itself: whether the other boards can be trusted."""

from __future__ import annotations

from llmobs.dashboards.boards.context import Context
from llmobs.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Board,
    Column,
    Line,
    Panel,
    Section,
    cell,
    graph,
    now,
    q,
    stat,
    table,
)
from llmobs.dashboards.promql import ratio


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-self",
        title="llmobs",
        question="Does llmobs see everything, in time, and what did it have to leave out?",
        filters=("target",),
        annotations=False,
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Collectors", panels=_collectors(c)),
            Section(title="What it reads", panels=_reads(c)),
            Section(title="Inside vLLM: hooks and drops", panels=_hooks(c)),
            Section(title="The process", panels=_process(c)),
        ),
    )


def _now(c: Context) -> tuple[Panel, ...]:
    age = f"time() - {c.q.gauge('min', 'llmobs_collector_last_success_timestamp_seconds')}"
    return (
        stat(
            "Sidecars", "llmobs processes that Prometheus scrapes.", "fewer than deployed: see Prometheus' targets page.",
            now(f"count({c.q.select('llmobs_build_info')})"), unit="none", base=BLUE, width=4,
        ),
        stat(
            "Targets", "Watched servers, by how they were found.", "fewer than expected: the discovery file or DNS name.",
            now(c.q.gauge("sum", "llmobs_targets", by=("discovery",)), "{{discovery}}"), unit="none", base=BLUE, width=4,
        ),
        stat(
            "Targets blind", "Watched servers that could not be read.", "their reason is in “What it reads”.",
            now(f"count({c.q.select('vllm_up')}) - {c.q.gauge('sum', 'vllm_up')}"), unit="none", width=4, lines=(Line(at=1),),
        ),
        stat(
            "Oldest success", "Age of the oldest last success of a collector.", "older than three intervals: it hangs or fails.",
            now(age), unit="s", width=4, lines=c.limits.lines("LlmobsCollectorStale"),
        ),
        stat(
            "Reload", "Whether the last reload of the configuration succeeded everywhere.",
            "failed: the configuration before it stays; the log says what is wrong.",
            now(c.q.gauge("min", "llmobs_config_last_reload_successful")), words={0: ("failed", RED), 1: ("good", GREEN)},
            unit="none", width=4,
        ),
        stat(
            "NVML and Xid listener", "Sidecars whose NVML answers, and that listen for Xid errors.",
            "0 where GPUs are: Xid errors would be missed; see the reason below.",
            now(c.q.gauge("sum", "llmobs_nvml_up"), "NVML"), now(c.q.gauge("sum", "llmobs_xid_listener_up"), "Xid"), unit="none",
            base=BLUE, width=4, needs=frozenset({"gpu"}),
        ),
    )  # fmt: skip


def _collectors(c: Context) -> tuple[Panel, ...]:
    duration = c.q.gauge("max", "llmobs_collector_duration_seconds", by=("collector", "target", "instance"))
    interval = c.q.gauge("max", "llmobs_collector_interval_seconds", by=("collector", "target", "instance"))
    legend = "{{collector}} {{target}} · {{instance}}"
    return (
        graph(
            "Cycle time", "Duration of the last cycle: the 10 slowest collectors.",
            "seconds: the target's page is slow to render, or the network.",
            q(f"topk(10, {duration})", legend), unit="s", width=8,
        ),
        graph(
            "Cycle time, share of the interval", "Duration ÷ interval: the 10 highest.", "above 1 the next cycle starts late.",
            q(f"topk(10, {ratio(duration, interval)})", legend), unit="percentunit", width=8,
            lines=(Line(at=0.5, color=ORANGE), Line(at=1)),
        ),
        graph(
            "Cycle overruns", "Cycles per second that took longer than their interval.", "raise the interval of that target.",
            q(f"topk(10, {c.q.per_second('llmobs_cycle_overruns_total', by=('collector', 'target', 'instance'))})", legend),
            unit="ops", width=8,
        ),
        table(
            "Failing collectors", "Collectors whose last cycle failed.", "the reason of a target is beside it.",
            cell(f"max by (instance, target, collector) ({c.q.select('llmobs_collector_success')} == 0)"),
            columns=(
                Column(source="collector", title="Collector", width=110), Column(source="target", title="Target"),
                Column(source="instance", title="Sidecar"),
            ),
            unit="none", width=8, no_value="None fails",
        ),
        graph(
            "Errors by reason", "Targets that could not be read, by reason.", "auth, tls, dns, parse: configuration or version.",
            q(c.q.gauge("sum", "vllm_target_error", by=("reason",)), "{{reason}}"), unit="none", stacked=True, width=8,
        ),
        graph(
            "GPU errors by reason", "Sidecars without GPU metrics, by reason.",
            "no_driver and no_library are right on a node without GPUs.",
            q(c.q.gauge("sum", "llmobs_nvml_error", by=("reason",)), "{{reason}}"), unit="none", stacked=True, width=8,
            needs=frozenset({"gpu"}),
        ),
    )  # fmt: skip


def _reads(c: Context) -> tuple[Panel, ...]:
    by = ("instance", "target")
    return (
        table(
            "Targets: version and dialect", "What each target is and how it is read: stats is the plugin's page, metrics is "
            "vLLM's own.",
            "metrics where the plugin should be: install it in that image. Many unmapped series: a newer vLLM than llmobs knows.",
            cell(f"max by (instance, target, version, source, dialect, simulated) ({c.q.select('vllm_info')})"),
            cell(c.q.gauge("max", "llmobs_target_unmapped_series", by=by)), cell(c.q.gauge("max", "llmobs_target_partial", by=by)),
            cell(c.q.gauge("max", "vllm_health_status", by=by)),
            columns=(
                Column(source="target", title="Target"), Column(source="instance", title="Sidecar"),
                Column(source="version", title="vLLM", width=100), Column(source="source", title="Source", width=90),
                Column(source="dialect", title="Dialect", width=140), Column(source="simulated", title="Simulated", width=95),
                Column(source="Value #B", title="Unmapped series", unit="none", width=130),
                Column(source="Value #C", title="Partial", width=90, words={0: ("no", GREEN), 1: ("yes", ORANGE)}),
                Column(source="Value #D", title="/health", width=90, words={0: ("bad", RED), 1: ("200", GREEN)}),
            ),
            unit="none", width=16,
        ),
        graph(
            "Dropped label sets", "Label sets left out per second because the cap on outside label values was reached.",
            "raise the cap, or stop the source of the labels.",
            q(c.q.per_second("llmobs_dropped_label_sets_total"), "dropped"), unit="ops", width=8,
        ),
    )  # fmt: skip


def _hooks(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "Hooks switched off", "Hooks inside vLLM that removed themselves after repeated errors.",
            "a newer vLLM changed an internal: update llmobs; vLLM itself is not harmed.",
            q(f"sum by (hook) (1 - {c.q.select('llmobs_hook_active')})", "{{hook}}"), unit="none", width=8,
            no_value="No plugin", lines=(Line(at=1),),
        ),
        graph(
            "Hook errors", "Errors per second that hooks caught; vLLM never saw them.", "the log of vLLM names the first one.",
            q(c.q.per_second("llmobs_hook_errors_total", by=("hook",)), "{{hook}}"), unit="ops", width=8, no_value="No plugin",
        ),
        graph(
            "Dropped spans and lines", "Spans, log lines and journal lines dropped per second.",
            "spans: the Collector is slow or gone. log_lines: the disk. journal_lines: the state directory.",
            q(c.q.per_second("llmobs_instrument_dropped_total", by=("kind",)), "{{kind}}"), unit="ops", width=8,
            no_value="No plugin", colors={"spans": ORANGE, "log_lines": YELLOW, "journal_lines": RED},
        ),
    )  # fmt: skip


def _process(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "CPU", "CPU seconds per second of the 10 busiest sidecars.", "above 0.25: raise the intervals.",
            q(f"topk(10, {c.q.per_second('process_cpu_seconds_total', by=('instance',))})", "{{instance}}"), unit="percentunit",
            width=6,
        ),
        graph(
            "Memory", "Resident memory of the 10 largest sidecars.", "grows for hours: report it.",
            q(f"topk(10, {c.q.gauge('max', 'process_resident_memory_bytes', by=('instance',))})", "{{instance}}"), unit="bytes",
            width=6,
        ),
        graph(
            "Requests to llmobs", "Requests answered per second by handler and code.", "401 or 429: the scraper's set-up.",
            q(c.q.per_second("llmobs_http_requests_total", by=("handler", "code")), "{{handler}} {{code}}"), unit="reqps",
            width=6,
        ),
        graph(
            "Log messages suppressed", "Messages per second left out by the rate limit.", "something repeats: read the log.",
            q(c.q.per_second("llmobs_log_messages_suppressed_total"), "suppressed"), unit="ops", width=6,
        ),
        table(
            "Versions", "Version of llmobs and of its Python.", "more than one outside a deployment: a roll-out stopped.",
            cell(f"max by (instance, version, python_version) ({c.q.select('llmobs_build_info')})"),
            cell(f"time() - {c.q.gauge('max', 'process_start_time_seconds', by=('instance',))}"),
            cell(c.q.gauge("max", "llmobs_window_seconds", by=("instance",))),
            cell(c.q.gauge("max", "llmobs_peak_interval_seconds", by=("instance",))),
            cell(
                f"max by (instance) ({c.q.select('process_open_fds')} / ({c.q.select('process_max_fds')} > 0))"
            ),
            columns=(
                Column(source="instance", title="Sidecar"), Column(source="version", title="llmobs"),
                Column(source="python_version", title="Python"),
                Column(source="Value #B", title="Up for", unit="dtdurations"), Column(source="Value #C", title="Window", unit="s"),
                Column(source="Value #D", title="Peak interval", unit="s"),
                Column(source="Value #E", title="Descriptors used", unit="percentunit", decimals=1),
            ),
            unit="none", height=7,
        ),
    )  # fmt: skip
