"""llmobs itself: whether what is seen can be trusted."""

from __future__ import annotations

from typing import Any

from llmobs.alerts.model import SIDECAR, Alert, Knob

_COLLECTOR = (*SIDECAR, "collector", "target")
#: A target that is down has no successful cycles: that is its own alert.
_NOT_DOWN = 'unless on ($joined) max by ($joined) (vllm_engine_state{state=~"starting|unreachable|dead"}) == 1'
_COMMON: dict[str, Any] = {"group": "llmobs", "stop": "sidecar", "prevent": ("sidecar",), "dashboard": "llmobs-self"}

OWN = (
    Alert(
        name="LlmobsWatchdog", group="llmobs", scope=(), severity="info", for_="0s",
        question="Does the alerting chain work?",
        expr="max(llmobs_watchdog) == 1",
        summary="Always firing: when it stops, the alerting chain is broken",
        impact="None while it fires. When the receiver no longer gets it, no alert reaches anybody.",
        causes=("this alert is meant to fire",), first="amtool alert query alertname=LlmobsWatchdog",
        stop="nothing", prevent=("sidecar",), dashboard="llmobs-self", confirm=("llmobs_watchdog",),
        tune="Route it to a dead-man's switch; never silence it.",
    ),
    Alert(
        name="LlmobsDown", scope=SIDECAR, severity="warning", for_="5m",
        question="Has a sidecar stopped answering Prometheus?",
        expr="max by ($host) (up) == 0 and on ($host) max by ($host) (present_over_time(llmobs_watchdog[1d])) == 1",
        summary="llmobs on {{ $labels.instance }} does not answer Prometheus",
        impact="The replica beside it is not watched.",
        causes=("the sidecar crashed or was evicted with its pod", "a network policy", "the port is taken or IPv6-only"),
        first="kubectl logs POD -c llmobs --previous --tail=50", inhibited_by=("VllmMetricsAbsent", "VllmModelVanished"),
        confirm=("up", "llmobs_watchdog"), tune="Raise `for` where pods come and go.", **_COMMON,
    ),
    Alert(
        name="LlmobsCollectorFailing", scope=_COLLECTOR, severity="warning", for_="10m",
        question="Does a collector fail although its target is up?",
        expr=f'max by ($host, collector, target) (llmobs_collector_success{{collector!="gpu"}}) == 0\n{_NOT_DOWN}',
        summary="Collector {{ $labels.collector }} of {{ $labels.instance }} fails for {{ $labels.target }}",
        impact="The figures of this target are missing.", causes=("a page that cannot be read", "a defect of llmobs: see its log"),
        first="kubectl logs POD -c llmobs --tail=50", inhibited_by=("LlmobsDown",),
        confirm=("llmobs_collector_success", "vllm_target_error"), tune="Raise `for` for targets behind a slow network.", **_COMMON,
    ),
    Alert(
        name="LlmobsCollectorStale", scope=_COLLECTOR, severity="warning", for_="0s",
        question="Are the figures old?",
        expr="time() - max by ($host, collector, target) (llmobs_collector_last_success_timestamp_seconds) > $threshold\n" + _NOT_DOWN,
        threshold=Knob(value=300, unit="seconds", scales=True, why="sixty cycles without one success"),
        summary="Collector {{ $labels.collector }} of {{ $labels.instance }} last succeeded {{ $value | humanizeDuration }} ago",
        impact="Nobody sees what happens there.", causes=("a hung driver call (collector gpu)", "an overloaded sidecar", "wrong clock"),
        first="kubectl logs POD -c llmobs --tail=50", inhibited_by=("LlmobsDown", "LlmobsCollectorFailing", "LlmobsGpuUnreadable"),
        confirm=("llmobs_collector_last_success_timestamp_seconds", "llmobs_collector_success"),
        tune="A collector that never succeeded is not stale: LlmobsGpuUnreadable and VllmTargetDown cover it.", **_COMMON,
    ),
    Alert(
        name="LlmobsCollectorOverrun", scope=_COLLECTOR, severity="warning", for_="10m",
        question="Does a collector take longer than its interval?",
        expr="max by ($host, collector, target) (rate(llmobs_cycle_overruns_total[10m]))\n"
             "* on ($host, collector, target) max by ($host, collector, target) (llmobs_collector_interval_seconds) > $threshold",
        threshold=Knob(value=0.2, unit="ratio", why="one cycle in five late: gaps and unsteady rates"),
        summary="Collector {{ $labels.collector }} of {{ $labels.instance }} overruns {{ $value | humanizePercentage }} of its cycles",
        impact="Figures come late and unevenly.", causes=("the sidecar is short of CPU", "a slow page of a very large server", "a slow driver"),
        first="kubectl top pod POD --containers", inhibited_by=("LlmobsDown", "VllmTargetDown", "VllmModelDown"),
        confirm=("llmobs_cycle_overruns_total", "llmobs_collector_duration_seconds"), tune="Raise the target's interval_seconds.", **_COMMON,
    ),
    Alert(
        name="LlmobsGpuUnreadable", scope=(*SIDECAR, "reason"), severity="warning", for_="10m",
        question="Can the GPUs not be read although they should be?",
        expr='max by ($host, reason) (llmobs_nvml_error{reason=~"version_mismatch|no_permission|hung|error"}) == 1',
        summary="llmobs on {{ $labels.instance }} cannot read the GPUs: {{ $labels.reason }}",
        impact="GPU faults go unseen.", causes=("driver and library of different versions after an update", "missing rights", "a hung driver"),
        first="nvidia-smi", inhibited_by=("LlmobsDown", "GpuLost", "GpuXidNode"),
        confirm=("llmobs_nvml_error", "llmobs_nvml_errors_total"),
        tune="Hosts without driver or device raise nothing.", **_COMMON,
    ),
    Alert(
        name="LlmobsHookRemoved", scope=(*SIDECAR, "target", "hook"), severity="warning", for_="1m",
        question="Did a hook inside vLLM switch itself off?",
        expr="max by ($joined, hook) (llmobs_hook_active) == 0",
        summary="Hook {{ $labels.hook }} in {{ $labels.target }} has removed itself",
        impact="vLLM is unharmed; the hook's figures, logs or spans are missing.",
        causes=("a vLLM version whose internals changed", "a defect of llmobs: see the server's log"),
        first="kubectl logs POD -c vllm | grep llmobs", confirm=("llmobs_hook_active", "llmobs_hook_errors_total"),
        tune="Switch it off while you run an unsupported version.", **_COMMON,
    ),
    Alert(
        name="LlmobsConfigReloadFailed", scope=SIDECAR, severity="warning", for_="5m",
        question="Was a changed configuration refused?",
        expr="max by ($host) (llmobs_config_last_reload_successful) == 0",
        summary="llmobs on {{ $labels.instance }} refused its new configuration and runs with the old one",
        impact="Changed targets are not watched.", causes=("a mistake in the file: the log names it",),
        first="kubectl logs POD -c llmobs --tail=20", confirm=("llmobs_config_last_reload_successful",),
        tune="Do not.", **_COMMON,
    ),
)  # fmt: skip
