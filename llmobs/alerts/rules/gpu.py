"""GPU faults. Do not enable these where sidecars watch engines without GPUs and nobody owns the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llmobs.alerts.model import GPU, SIDECAR, Alert, Knob
from llmobs.alerts.rules.common import of_gpu
from llmobs.catalog.gpu import XID_CODES
from llmobs.errors import GenerateError

#: Xid codes by what they ask for (NVIDIA's catalogue of immediate actions). `never` are counted and not alerted: the
#: look-elsewhere codes 43 and 45, informational 63, 92 and 121, recoverable 61, 109 (reset in the catalogue, but
#: ignored as an application fault by NVIDIA's own device plugin), and 154, which GpuRecoveryActionNeeded reads better.
XID_TIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "node": ("79",),
        "reset": ("48", "62", "64", "74", "95", "119", "120", "140", "143", "144", "145", "149", "150"),
        "application": ("13", "31", "32", "69", "94"),
        "never": ("43", "45", "61", "63", "92", "109", "121", "154"),
    }
)


def check_tiers(tiers: Mapping[str, tuple[str, ...]]) -> None:
    """Raise GenerateError when a code is in two tiers, in none, or not published at 0 from the start."""
    seen: dict[str, str] = {}
    for tier, codes in tiers.items():
        for code in codes:
            if code in seen:
                raise GenerateError(f"Xid {code} is in the tiers {seen[code]} and {tier}; keep it in one")
            if code not in XID_CODES:
                raise GenerateError(
                    f"Xid {code} of tier {tier} is not in XID_CODES, so it would be missed at its birth"
                )
            seen[code] = tier
    for code in XID_CODES:
        if code not in seen:
            raise GenerateError(f"Xid {code} of XID_CODES is in no tier; put it into one, or into never")


check_tiers(XID_TIERS)

_LATENCY = "instance:vllm_inter_token_latency:mean5m"
_SLOWER = f"and on ($host) {_LATENCY} > $slower * ({_LATENCY} offset 1d or {_LATENCY} offset 1h)"
_SLOWER_KNOB = Knob(value=1.2, unit="times the usual latency", why="a flag that costs nobody anything is no alert")
_UP = "max by ($host, uuid)"


def _xid(tier: str) -> str:
    codes = XID_TIERS[tier]
    matcher = f'xid=~"{"|".join(codes)}"' if len(codes) > 1 else f'xid="{codes[0]}"'
    seen = f"max by ($host, uuid, xid) (nvidia_gpu_xid_last_seen_timestamp_seconds{{{matcher}}})"
    return of_gpu(f"time() - {seen}") + " < $threshold"


_RECENT = Knob(value=600, unit="seconds since the Xid", scales=True,
               why="the time of the last one, not increase(): it survives a restart of the sidecar and resolves by itself")  # fmt: skip

GPUS = (
    Alert(
        name="GpuXidNode", group="gpu", scope=(*GPU, "xid"), severity="critical", for_="0s",
        question="Has a GPU fault occurred that needs a restart of the node?",
        expr=_xid("node"), threshold=_RECENT,
        summary="Xid {{ $labels.xid }} on GPU {{ $labels.uuid }}: the node must be restarted",
        impact="Everything on this GPU has failed or will; replicas that share it are lost.",
        causes=("the GPU has fallen off the bus (79): power, riser, overheating", "a dying board"),
        first="dmesg -T | grep -i xid | tail",
        stop="gpu_node", prevent=("gpu",), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_xid_errors_total", "nvidia_gpu_up"), tune="Do not.",
    ),
    Alert(
        name="GpuXidReset", group="gpu", scope=(*GPU, "xid"), severity="critical", for_="0s",
        question="Has a GPU fault occurred that needs a reset of the GPU?",
        expr=_xid("reset"), threshold=_RECENT,
        summary="Xid {{ $labels.xid }} on GPU {{ $labels.uuid }}: the GPU must be reset",
        impact="Work on this GPU fails or computes wrongly until it is reset.",
        causes=("uncorrectable memory error (48, 64, 95, 140)", "GSP firmware fault (119, 120)", "NVLink (74, 144 to 150)"),
        first="dmesg -T | grep -i xid | tail; nvidia-smi -q -d ECC,ROW_REMAPPER",
        stop="gpu_reset", prevent=("gpu",), inhibited_by=("GpuXidNode", "GpuLost"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_xid_errors_total", "nvidia_gpu_recovery_action"), tune="Do not.",
    ),
    Alert(
        name="GpuXidApplication", group="gpu", scope=(*GPU, "xid"), severity="warning", for_="0s",
        question="Has a GPU fault occurred that ends the application only?",
        expr=_xid("application"), threshold=_RECENT,
        summary="Xid {{ $labels.xid }} on GPU {{ $labels.uuid }}: the application must be restarted",
        impact="The process that caused it has died, or will; the GPU is fine.",
        causes=("a faulty kernel or memory access of the application (13, 31, 69): not out of memory",
                "a contained memory error (94)"),
        first="dmesg -T | grep -i xid | tail",
        stop="replica", prevent=("gpu", "canary"), inhibited_by=("GpuXidNode", "GpuXidReset", "GpuLost", "VllmOutOfMemory"),
        dashboard="llmobs-gpu", confirm=("nvidia_gpu_xid_errors_total", "vllm_engine_restarts_total"),
        tune="Switch it off where other tenants develop on the same GPUs.",
    ),
    Alert(
        name="GpuLost", group="gpu", scope=(*GPU, "reason"), severity="critical", for_="30s", keep_firing_for="2m",
        question="Does a GPU no longer answer?",
        expr=of_gpu("max by ($host, uuid, reason) (nvidia_gpu_error)") + " == 1",
        summary="GPU {{ $labels.uuid }} does not answer: {{ $labels.reason }}",
        impact="The engine on it hangs or is dead.",
        causes=("lost: off the bus", "reset_required: an uncorrectable fault", "hung: a driver call does not return",
                "unreadable: a device without one readable field"),
        first="nvidia-smi; dmesg -T | grep -iE 'xid|nvrm' | tail",
        stop="gpu_node", prevent=("gpu",), inhibited_by=("GpuXidNode",), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_up", "nvidia_gpu_error"), tune="Do not.",
    ),
    Alert(
        name="GpuMissing", group="gpu", scope=SIDECAR, severity="warning", for_="10m",
        question="Are there fewer GPUs than there were?",
        enabled=False, off_because="fires for six hours after a deliberate removal; GpuLost keeps a lost GPU's series, so "
                                   "this is only for GPUs that vanish between two starts of the sidecar",
        expr="(count by ($host) (max by ($host, uuid) (nvidia_gpu_up) == 1) or on ($host) 0 * max by ($host) (llmobs_nvml_up))\n"
             "< max_over_time(instance:nvidia_gpu_up:count[6h])\n"
             "and on ($host) max by ($host) (llmobs_nvml_up) == 1",
        summary="Only {{ $value }} GPUs are left on {{ $labels.instance }}",
        impact="Less capacity; the replica that had it cannot start.",
        causes=("a GPU that did not come back after a reboot", "changed device assignment"),
        first="nvidia-smi -L; lspci | grep -i nvidia",
        stop="gpu_node", prevent=("gpu",), inhibited_by=("GpuLost", "GpuXidNode"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_up", "llmobs_nvml_up"), tune="Enable it on fixed hardware.",
    ),
    Alert(
        name="GpuRecoveryActionNeeded", group="gpu", scope=GPU, severity="critical", for_="30s",
        question="Does the driver ask for something to be done?",
        expr=of_gpu(f"{_UP} (nvidia_gpu_recovery_action)") + " > $threshold",
        threshold=Knob(value=0, unit="code", why="0 is nothing, everything above asks for a reset, a drain or a reboot"),
        summary="The driver asks for recovery action {{ $value }} on GPU {{ $labels.uuid }} (1 reset, 2 reboot, 3 drain P2P, 4 drain and reset)",
        impact="Work on this GPU fails or will.",
        causes=("an uncorrectable memory error", "an NVLink or fabric fault"),
        first="nvidia-smi -q | grep -iA2 'recovery action'",
        stop="gpu_reset", prevent=("gpu",), inhibited_by=("GpuXidNode", "GpuXidReset", "GpuLost"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_recovery_action", "nvidia_gpu_xid_errors_total"), tune="Do not.",
    ),
    Alert(
        name="GpuEccUncorrectable", group="gpu", scope=GPU, severity="critical", for_="0s",
        question="Did memory errors occur that could not be corrected?",
        expr=of_gpu(f'{_UP} (increase(nvidia_gpu_ecc_errors_total{{severity="uncorrected"}}[1h]))') + " > $threshold",
        threshold=Knob(value=0, unit="errors in an hour", why="any: the data was wrong"),
        metric="nvidia_gpu_ecc_errors_total",
        summary="GPU {{ $labels.uuid }} had {{ $value | humanize }} uncorrectable memory errors in the last hour",
        impact="The process that used the memory was ended, or its answers are wrong.",
        causes=("ageing or defective memory", "rarely radiation: a single one that never returns"),
        first="nvidia-smi -q -d ECC,ROW_REMAPPER",
        stop="gpu_reset", prevent=("gpu",), inhibited_by=("GpuXidNode", "GpuXidReset", "GpuLost"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_ecc_errors_total", "nvidia_gpu_row_remap_pending"),
        tune="Do not. A count from before the sidecar started does not fire.",
    ),
    Alert(
        name="GpuRowRemapFailed", group="gpu", scope=GPU, severity="critical", for_="0s",
        question="Has the GPU run out of spare memory rows?",
        expr=of_gpu(f"{_UP} (nvidia_gpu_row_remap_failed)") + " == 1",
        summary="GPU {{ $labels.uuid }} could not remap a memory row: replace it",
        impact="Memory errors will come back.",
        causes=("no spare rows left: NVIDIA's criterion for a replacement",),
        first="nvidia-smi -q -d ROW_REMAPPER",
        stop="gpu_node", prevent=("gpu",), inhibited_by=("GpuLost",), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_row_remap_failed", "nvidia_gpu_remapped_rows"), tune="Do not; order the replacement and silence it.",
    ),
    Alert(
        name="GpuRowRemapPending", group="gpu", scope=GPU, severity="warning", for_="0s",
        question="Does a row or page wait for a reset to be replaced?",
        expr=of_gpu(f"{_UP} (nvidia_gpu_row_remap_pending) or {_UP} (nvidia_gpu_retired_pages_pending)") + " == 1",
        summary="GPU {{ $labels.uuid }} needs a reset to replace defective memory",
        impact="None until the memory is used again; then errors.",
        causes=("an uncorrectable or repeated correctable memory error",),
        first="nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
        stop="gpu_reset", prevent=("gpu",), inhibited_by=("GpuRowRemapFailed", "GpuXidReset", "GpuEccUncorrectable"),
        dashboard="llmobs-gpu", confirm=("nvidia_gpu_row_remap_pending", "nvidia_gpu_retired_pages_pending"),
        tune="Lower it to info where resets are a weekly routine.",
    ),
    Alert(
        name="GpuThermalThrottling", group="gpu", scope=GPU, severity="warning", for_="2m", keep_firing_for="5m",
        question="Does heat slow a GPU down so that users notice?",
        expr=of_gpu(f'{_UP} (avg_over_time(nvidia_gpu_clock_event_active{{reason=~"hw_thermal|hw_slowdown"}}[5m]))')
             + f" > $threshold\n{_SLOWER}",
        threshold=Knob(value=0.2, unit="ratio", why="a fifth of the samples; the flag is sampled and short events are missed"),
        params={"slower": _SLOWER_KNOB},
        summary="GPU {{ $labels.uuid }} ({{ $labels.model_name }}) throttles for heat {{ $value | humanizePercentage }} of the time and tokens come slower",
        impact="Decode is slower; in a tensor-parallel group one hot GPU slows all.",
        causes=("airflow, fans, a neighbour's exhaust", "inlet temperature", "dried-out thermal paste"),
        first="nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
        stop="gpu_hot", prevent=("gpu",), inhibited_by=("GpuLost", "GpuXidNode"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_clock_event_active", "nvidia_gpu_temperature_celsius", "instance:vllm_inter_token_latency:mean5m"),
        tune="Set slower to 1 to hear of every throttling.",
    ),
    Alert(
        name="GpuPowerBrake", group="gpu", scope=GPU, severity="warning", for_="2m", keep_firing_for="5m",
        question="Does the power supply slow a GPU down so that users notice?",
        expr=of_gpu(f'{_UP} (avg_over_time(nvidia_gpu_clock_event_active{{reason="hw_power_brake"}}[5m]))')
             + f" > $threshold\n{_SLOWER}",
        threshold=Knob(value=0.2, unit="ratio", why="a fifth of the samples; the flag is sampled and short events are missed"),
        params={"slower": _SLOWER_KNOB},
        summary="GPU {{ $labels.uuid }} ({{ $labels.model_name }}) is held by the power brake {{ $value | humanizePercentage }} of the time",
        impact="Decode is slower.",
        causes=("a power supply failed or is overloaded", "the rack's power cap", "a power cable"),
        first="nvidia-smi -q -d POWER,PERFORMANCE; ipmitool sdr type 'Power Supply'",
        stop="gpu_hot", prevent=("gpu",), inhibited_by=("GpuLost", "GpuXidNode"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_clock_event_active", "nvidia_gpu_power_watts"), tune="Set slower to 1 to hear of every brake.",
    ),
    Alert(
        name="GpuSwThermalSlowdown", group="gpu", scope=GPU, severity="info", for_="30m",
        question="Does the driver lower clocks for temperature?",
        enabled=False, off_because="normal on thermally limited systems",
        expr=of_gpu(f'{_UP} (nvidia_gpu_clock_event_active{{reason="sw_thermal"}})') + " == 1",
        summary="The driver lowers the clocks of GPU {{ $labels.uuid }} for its temperature",
        impact="A little slower.", causes=("warm air", "a high sustained load"),
        first="nvidia-smi -q -d TEMPERATURE", stop="gpu_hot", prevent=("gpu",), inhibited_by=("GpuThermalThrottling",),
        dashboard="llmobs-gpu", confirm=("nvidia_gpu_clock_event_active",), tune="Enable it for water-cooled machines.",
    ),
    Alert(
        name="GpuTemperatureHigh", group="gpu", scope=GPU, severity="info", for_="10m",
        question="Is a GPU hot?",
        enabled=False, off_because="the safe value differs by generation; the thermal flags know it",
        expr=of_gpu(f"{_UP} (nvidia_gpu_temperature_celsius)") + " > $threshold",
        threshold=Knob(value=85, unit="celsius", why="the usual figure; set it from nvidia_gpu_temperature_threshold_celsius"),
        metric="nvidia_gpu_temperature_celsius",
        summary="GPU {{ $labels.uuid }} is at {{ $value | humanize }} °C", impact="None until it throttles.",
        causes=("airflow", "inlet temperature"), first="nvidia-smi -q -d TEMPERATURE",
        stop="gpu_hot", prevent=("gpu",), inhibited_by=("GpuThermalThrottling",), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_temperature_celsius", "nvidia_gpu_temperature_threshold_celsius"), tune="Enable it with your model's figure.",
    ),
    Alert(
        name="GpuPcieLinkDegraded", group="gpu", scope=GPU, severity="warning", for_="10m",
        question="Does a GPU work behind a slow PCIe link?",
        expr=of_gpu(f"({_UP} (nvidia_gpu_pcie_link_generation * nvidia_gpu_pcie_link_width)\n"
                    f"/ {_UP} (nvidia_gpu_pcie_link_generation_max * nvidia_gpu_pcie_link_width_max))") + " < $threshold\n"
             f"and on ($host, uuid) {_UP} (avg_over_time(nvidia_gpu_utilization_ratio[5m])) > $min_utilization",
        threshold=Knob(value=0.99, unit="ratio", why="any step down; a link falls to generation 1 when idle, so only under load"),
        params={"min_utilization": Knob(value=0.5, unit="ratio", why="at idle the link sleeps")},
        summary="PCIe link of GPU {{ $labels.uuid }} runs at {{ $value | humanizePercentage }} of its width and speed under load",
        impact="Tensor parallelism and KV offload are slower.",
        causes=("a badly seated card or riser", "a slot with fewer lanes", "link errors: look at the replays"),
        first="nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
        stop="gpu_node", prevent=("gpu",), inhibited_by=("GpuLost", "GpuXidNode"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_pcie_link_generation", "nvidia_gpu_pcie_link_width", "nvidia_gpu_pcie_replays_total"),
        tune="Lower it for slots that are narrower on purpose.",
    ),
    Alert(
        name="GpuSlowerThanPeers", group="gpu", scope=GPU, severity="warning", for_="5m",
        question="Is one GPU slower than the others of its host?",
        expr=of_gpu(f'{_UP} (avg_over_time(nvidia_gpu_clock_hertz{{clock="sm"}}[5m]))\n'
                    '/ on ($host) group_left () quantile by ($host) (0.5, max by ($host, uuid) (avg_over_time(nvidia_gpu_clock_hertz{clock="sm"}[5m])))')
             + " < $threshold\n"
             f"and on ($host, uuid) {_UP} (avg_over_time(nvidia_gpu_utilization_ratio[5m])) > $min_utilization",
        threshold=Knob(value=0.85, unit="ratio", why="boards of one model differ by a few per cent"),
        params={"min_utilization": Knob(value=0.5, unit="ratio", why="an idle GPU lowers its clock by nature")},
        summary="GPU {{ $labels.uuid }} ({{ $labels.model_name }}) clocks at {{ $value | humanizePercentage }} of its peers",
        impact="A tensor-parallel group is as slow as its slowest GPU.",
        causes=("throttling", "application clocks or a power limit set on this one", "another process on it"),
        first="nvidia-smi --query-gpu=index,clocks.sm,power.limit --format=csv",
        stop="gpu_hot", prevent=("gpu",), inhibited_by=("GpuThermalThrottling", "GpuPowerBrake", "GpuLost"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_clock_hertz", "nvidia_gpu_power_limit_watts"), tune="Lower it for hosts with mixed GPUs, or switch it off there.",
    ),
    Alert(
        name="GpuXidListenerDown", group="gpu", scope=SIDECAR, severity="warning", for_="10m",
        question="Would we miss a GPU fault?",
        expr="max by ($host) (llmobs_xid_listener_up) == 0 and on ($host) max by ($host) (llmobs_nvml_up) == 1",
        summary="{{ $labels.instance }} cannot listen for Xid errors", impact="GPU faults go unseen.",
        causes=("missing rights", "a driver without event support (WSL, some MIG set-ups)"),
        first="kubectl logs POD -c llmobs --tail=50", stop="sidecar", prevent=("sidecar",),
        dashboard="llmobs-self", confirm=("llmobs_xid_listener_up", "nvidia_gpu_xid_listener_up"),
        tune="Switch it off on systems that cannot.",
    ),
)  # fmt: skip
