"""GPU: what the devices do, joined with the engine that runs on them."""

from __future__ import annotations

from llmobs.dashboards.boards.context import REPLICA_LEGEND, Context
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
    heatmap,
    now,
    q,
    stat,
    table,
)
from llmobs.dashboards.promql import RANGE, ratio

GPU_LEGEND = "{{uuid}}"


def board(c: Context) -> Board:
    """Return the board."""
    return Board(
        uid="llmobs-gpu",
        title="vLLM GPU",
        question="Are the GPUs healthy, how full and how busy are they, and is it the GPU that holds vLLM back?",
        filters=("model", "target", "engine"),
        needs=frozenset({"gpu"}),
        sections=(
            Section(title="Now", panels=_now(c)),
            Section(title="Joined with the engine", panels=_joined(c)),
            Section(title="Memory", panels=_memory(c)),
            Section(title="How busy", panels=_busy(c)),
            Section(title="Power, temperature, clocks", panels=_power(c)),
            Section(title="Health", panels=_health(c)),
            Section(title="PCIe and NVLink", panels=_links(c)),
            Section(title="Worker memory inside vLLM", panels=_workers(c), collapsed=True),
            Section(title="MIG instances", panels=_mig(c), collapsed=True),
        ),
    )


def _top(expression: str, count: int = 10) -> str:
    return f"topk({count}, {expression})"


def _now(c: Context) -> tuple[Panel, ...]:
    used, total = c.q.gpu("nvidia_gpu_memory_used_bytes"), c.q.gpu("nvidia_gpu_memory_total_bytes")
    throttled = c.q.gpu("nvidia_gpu_clock_event_active", 'reason=~"hw_thermal|hw_power_brake|hw_slowdown"')
    return (
        stat(
            "GPUs lost", "GPUs that do not answer: lost, in need of a reset, or hanging.",
            "drain the node; a lost GPU needs a reset or a reboot.",
            now(f"count({c.q.gpu('nvidia_gpu_up')} == 0) or 0 * count({c.q.gpu('nvidia_gpu_up')})"),
            unit="none", width=4, lines=(Line(at=1),), no_value="No GPU seen",
        ),
        stat(
            "GPUs", "GPUs seen.", "fewer than installed: see the Xid errors.",
            now(f"count({c.q.gpu('nvidia_gpu_up')})"), unit="none", width=4, base=BLUE, no_value="No GPU seen",
        ),
        stat(
            "Memory used", "Used ÷ total memory of all GPUs.", "vLLM takes its share at start; growth is a leak.",
            q(ratio(f"sum({used})", f"sum({total})")), unit="percentunit", decimals=1, width=4, base=BLUE,
        ),
        stat(
            "Power", "Power drawn by all GPUs.", "compare with the limit below.",
            q(f"sum({c.q.gpu('nvidia_gpu_power_watts')})"), unit="watt", width=4, base=BLUE,
        ),
        stat(
            "Hottest GPU", "Temperature of the hottest GPU.", "check airflow before the clocks go down.",
            q(f"max({c.q.select('nvidia_gpu_temperature_celsius')})"), unit="celsius", width=4,
            lines=c.limits.lines("GpuTemperatureHigh"), base=BLUE,
        ),
        stat(
            "GPUs held back", "GPUs whose clocks are held down by heat, power brake or hardware slow-down now.",
            "latency suffers: check cooling and power supply.",
            now(f"sum({throttled})"), unit="none", width=4, lines=(Line(at=1),),
        ),
    )  # fmt: skip


def _joined(c: Context) -> tuple[Panel, ...]:
    return (
        graph(
            "GPU idle while requests wait", "Share of time in which requests waited and every GPU of the target was below "
            "5 % utilisation.",
            "the scheduler, the CPU or a hang holds the work back, not the GPU.",
            q(_top(c.q.rate("vllm_gpu_idle_while_waiting_seconds_total")), REPLICA_LEGEND), unit="percentunit", width=8,
        ),
        graph(
            "Tokens per joule", "Prompt tokens computed plus tokens generated per joule of the target's GPUs.",
            "falls with small batches: fewer, fuller replicas use less energy.",
            q(_top(c.q.gauge("max", "vllm_tokens_per_joule", by=("instance", "target"))), REPLICA_LEGEND), unit="short",
            width=8, no_value="No traffic",
        ),
        graph(
            "Utilisation beside running requests", "Mean utilisation of the GPUs, and running requests.",
            "busy without requests: somebody else's process. Requests without busy GPUs: look at the CPU.",
            q(f"avg({c.q.gpu('nvidia_gpu_utilization_ratio')}) * 100", "GPU utilisation, %"),
            q(c.q.gauge("sum", "vllm_num_running_requests"), "running requests"), unit="short", width=8,
        ),
    )  # fmt: skip


def _memory(c: Context) -> tuple[Panel, ...]:
    g = c.q.gpu
    return (
        graph(
            "Memory of all GPUs", "Used by anybody, reserved by the driver, and free.",
            "used grows while load is flat: a leak.",
            q(f"sum({g('nvidia_gpu_memory_used_bytes')})", "used"),
            q(f"sum({g('nvidia_gpu_memory_reserved_bytes')})", "reserved by the driver"),
            q(f"sum({g('nvidia_gpu_memory_free_bytes')})", "free"), unit="bytes", stacked=True,
            colors={"used": ORANGE, "reserved by the driver": "purple", "free": GREEN}, width=8,
        ),
        graph(
            "KV budget beside used memory", "Memory set aside for the KV caches, and memory used.",
            "the difference is weights, activations and everything else.",
            q(c.q.gauge("sum", "vllm_kv_cache_capacity_bytes"), "KV budget"),
            q(f"sum({g('nvidia_gpu_memory_used_bytes')})", "used"), unit="bytes", colors={"KV budget": BLUE, "used": ORANGE},
            width=8,
        ),
        graph(
            "Head-room beyond the reserve", "Free memory less the fragmentation reserve: the 10 GPUs with the least.",
            "negative can be the setting; a falling line is growth.",
            q(f"bottomk(10, {g('nvidia_gpu_memory_headroom_bytes')})", GPU_LEGEND), unit="bytes", minimum=None, width=8,
            base=GREEN,
        ),
        graph(
            "Unaccounted memory", "Memory in use that no visible process owns: the 10 GPUs with the most.",
            "the leak signal: contexts of dead processes and driver leaks; a reset frees it.",
            q(_top(g("nvidia_gpu_memory_unaccounted_bytes")), GPU_LEGEND), unit="bytes", width=8,
            no_value="Not every process is known",
        ),
        graph(
            "Memory by role of the process", "Memory of processes by role: engine and worker are the watched vLLM.",
            "foreign: somebody else shares the GPU.",
            q(f"sum by (role) ({g('nvidia_gpu_process_memory_bytes', by=('role',))})", "{{role}}"), unit="bytes",
            stacked=True, colors={"engine": BLUE, "worker": GREEN, "foreign": RED}, width=8,
        ),
        graph(
            "KV share of GPU memory", "KV cache bytes ÷ memory of the target's GPUs.",
            "small: weights or other processes take the memory that would serve requests.",
            q(_top(c.q.gauge("max", "vllm_kv_cache_share_of_gpu_memory_ratio", by=("instance", "target"))), REPLICA_LEGEND),
            unit="percentunit", maximum=1, width=8,
        ),
    )  # fmt: skip


def _busy(c: Context) -> tuple[Panel, ...]:
    g = c.q.gpu
    return (
        heatmap(
            "Utilisation by GPU", "Share of time in which any kernel ran, one row per GPU (40 at most).",
            "one pale row among dark ones: that replica gets no work.",
            q(_top(g("nvidia_gpu_utilization_ratio"), 40), GPU_LEGEND), unit="percentunit", rows_named=True, maximum=1,
        ),
        graph(
            "What the GPU is busy with", "Mean over the GPUs: multiprocessors busy, warp slots filled, tensor cores busy, "
            "memory bandwidth used (Hopper and newer).",
            "tensor high: prefill. memory high: decode. Both low with a queue: the CPU.",
            q(f"avg({g('nvidia_gpu_sm_active_ratio')})", "SM active"),
            q(f"avg({g('nvidia_gpu_sm_occupancy_ratio')})", "SM occupancy"),
            q(f"avg({g('nvidia_gpu_tensor_active_ratio')})", "tensor"),
            q(f"avg({g('nvidia_gpu_dram_active_ratio')})", "memory bandwidth"), unit="percentunit", maximum=1,
            no_value="Not supported by these GPUs",
        ),
        graph(
            "Memory controller busy", "Share of time in which memory was read or written: the 10 busiest GPUs.",
            "a coarse signal; prefer the memory bandwidth beside it where it exists.",
            q(_top(g("nvidia_gpu_memory_utilization_ratio")), GPU_LEGEND), unit="percentunit", maximum=1,
        ),
        graph(
            "Performance state", "0 is the fastest; the 10 slowest GPUs.", "not 0 under load: power or thermal limit.",
            q(_top(g("nvidia_gpu_performance_state")), GPU_LEGEND), unit="none",
        ),
    )  # fmt: skip


def _power(c: Context) -> tuple[Panel, ...]:
    g = c.q.gpu
    watts = c.q.gpu_rate("nvidia_gpu_energy_joules_total")
    return (
        graph(
            "Power and its limit", "Power of all GPUs, the same from the energy counter, and the enforced limit.",
            "at the limit: clocks go down; sw_power_cap is everyday.",
            q(f"sum({g('nvidia_gpu_power_watts')})", "power"), q(f"sum({watts})", "from energy"),
            q(f"sum({g('nvidia_gpu_power_limit_watts')})", "limit"), unit="watt", dashed=("limit",),
            colors={"power": ORANGE, "from energy": BLUE, "limit": RED}, width=8,
        ),
        graph(
            "Energy per generated token", "Joules of the GPUs per generated token.", "the price of small batches.",
            q(ratio(f"sum({watts})", c.q.per_second("vllm_decode_tokens_total")), "joules per token"),
            unit="joule", width=8, no_value="No traffic",
        ),
        graph(
            "Temperature", "The 10 hottest GPUs, and their memory.", "near slow-down: check airflow.",
            q(_top(g("nvidia_gpu_temperature_celsius")), "{{uuid}} GPU"),
            q(_top(g("nvidia_gpu_memory_temperature_celsius")), "{{uuid}} memory"), unit="celsius",
            lines=c.limits.lines("GpuTemperatureHigh"), width=8,
        ),
        graph(
            "Distance to slow-down", "Slow-down temperature less the temperature now: the 10 nearest.",
            "below 5 °C the hardware will slow down.",
            q(
                "bottomk(10, "
                f"{g('nvidia_gpu_temperature_threshold_celsius', 'threshold=' + chr(34) + 'slowdown' + chr(34))}"
                f" - {g('nvidia_gpu_temperature_celsius')})",
                GPU_LEGEND,
            ),
            unit="celsius", minimum=None, width=6,
        ),
        graph(
            "SM clock, share of its maximum", "Current ÷ highest SM clock: the 10 slowest.",
            "below 1 under load: see the reasons beside it.",
            q(
                "bottomk(10, "
                f"{g('nvidia_gpu_clock_hertz', 'clock=' + chr(34) + 'sm' + chr(34))}"
                f" / ({g('nvidia_gpu_clock_max_hertz', 'clock=' + chr(34) + 'sm' + chr(34))} > 0))",
                GPU_LEGEND,
            ),
            unit="percentunit", maximum=1, width=6,
        ),
        graph(
            "Clock-event reasons", "GPUs held by each reason.",
            "hw_thermal, hw_power_brake and hw_slowdown cost latency; idle and sw_power_cap are everyday.",
            q(f"sum by (reason) ({g('nvidia_gpu_clock_event_active', by=('reason',))})", "{{reason}}"), unit="none",
            stacked=True, width=6,
            colors={"hw_thermal": RED, "hw_power_brake": "dark-red", "hw_slowdown": ORANGE, "idle": "#8e8e8e"},
        ),
        graph(
            "Fan", "Fan speed: the 10 fastest.", "full speed and hot: a blocked airflow.",
            q(_top(g("nvidia_gpu_fan_ratio")), GPU_LEGEND), unit="percentunit", maximum=1, width=6,
            no_value="No fans (server GPU)",
        ),
    )  # fmt: skip


def _health(c: Context) -> tuple[Panel, ...]:
    increase = f"increase({c.q.select('nvidia_gpu_xid_errors_total')}[{RANGE}])"
    during = f"increase({c.q.select('nvidia_gpu_xid_errors_total')}[$__range])"
    g = c.q.gpu
    return (
        graph(
            "Xid errors", "Xid errors by code.",
            "79, 48, 62, 64, 74, 95, 119, 120: the GPU. 13, 31, 43: the application. See the runbook of the code.",
            q(f"sum by (xid) (max by (uuid, xid) ({increase})) > 0", "Xid {{xid}}"), unit="none", bars=True, width=8,
            no_value="None",
        ),
        table(
            "Xid errors in this time range", "GPU, code and count.", "look the code up before a reset.",
            cell(f"max by (uuid, xid) ({during}) > 0.5"),
            columns=(
                Column(source="uuid", title="GPU"), Column(source="xid", title="Xid", width=70),
                Column(source="Value", title="Count", unit="none", decimals=0, width=80),
            ),
            unit="none", width=8, no_value="None",
        ),
        graph(
            "ECC errors", "ECC errors per second by severity, since the driver was loaded.",
            "uncorrected: the GPU needs a reset, and replacement if it returns.",
            q(f"sum by (severity) ({c.q.gpu_rate('nvidia_gpu_ecc_errors_total', by=('severity',))})", "{{severity}}"),
            unit="ops", colors={"corrected": YELLOW, "uncorrected": RED}, width=8,
        ),
        table(
            "Identity and condition", "Identity and condition of each GPU.",
            "remap failed: replace. remap or page pending, recovery action: drain and reset.",
            cell(f"max by (uuid, index, name, driver_version, watched) ({c.q.select('nvidia_gpu_info')})"),
            cell(g("nvidia_gpu_up")), cell(g("nvidia_gpu_row_remap_failed")), cell(g("nvidia_gpu_row_remap_pending")),
            cell(g("nvidia_gpu_retired_pages_pending")), cell(g("nvidia_gpu_recovery_action")),
            cell(f"sum by (uuid) ({g('nvidia_gpu_remapped_rows', by=('severity',))})"),
            cell(f"sum by (uuid) ({g('nvidia_gpu_ecc_errors_lifetime_total', by=('severity',))})"),
            columns=(
                Column(source="uuid", title="GPU"), Column(source="index", title="Index", width=60),
                Column(source="name", title="Name"), Column(source="driver_version", title="Driver", width=110),
                Column(source="watched", title="Runs vLLM", width=90),
                Column(source="Value #B", title="Up", width=70, words={0: ("lost", RED), 1: ("up", GREEN)}),
                Column(source="Value #C", title="Remap failed", width=110, words={0: ("no", GREEN), 1: ("yes", RED)}),
                Column(source="Value #D", title="Remap pending", width=120, words={0: ("no", GREEN), 1: ("yes", ORANGE)}),
                Column(source="Value #E", title="Page pending", width=110, words={0: ("no", GREEN), 1: ("yes", ORANGE)}),
                Column(
                    source="Value #F", title="Recovery action", width=130,
                    words={
                        0: ("none", GREEN), 1: ("reset", RED), 2: ("reboot", RED), 3: ("drain P2P", ORANGE),
                        4: ("drain, reset", RED), 5: ("recover IMEX", ORANGE), 6: ("bus reset", RED),
                        7: ("reboot", RED),
                    },
                ),
                Column(source="Value #G", title="Remapped rows", unit="none", width=120),
                Column(source="Value #H", title="ECC, lifetime", unit="none", width=120),
            ),
            unit="none",
        ),
    )  # fmt: skip


def _links(c: Context) -> tuple[Panel, ...]:
    def rate(series: str) -> str:
        return f"sum by (direction) ({c.q.gpu_rate(series, by=('direction',))})"

    g = c.q.gpu
    return (
        graph(
            "PCIe throughput", "Bytes per second over PCIe, all GPUs.", "high without offload: weights or KV move over it.",
            q(rate("nvidia_gpu_pcie_bytes_total"), "{{direction}}"), unit="Bps", width=6,
        ),
        graph(
            "NVLink throughput", "Data bytes per second over NVLink, all GPUs.", "zero with tensor parallel: links are down.",
            q(rate("nvidia_gpu_nvlink_bytes_total"), "{{direction}}"), unit="Bps", width=6, no_value="No NVLink",
        ),
        graph(
            "PCIe link, share of its best", "Generation × lanes now ÷ at best: the 10 lowest. It falls while a GPU idles.",
            "below 1 under load: reseat the card.",
            q(
                f"bottomk(10, ({g('nvidia_gpu_pcie_link_generation')} * {g('nvidia_gpu_pcie_link_width')})"
                f" / ({g('nvidia_gpu_pcie_link_generation_max')} * {g('nvidia_gpu_pcie_link_width_max')} > 0))",
                GPU_LEGEND,
            ),
            unit="percentunit", maximum=1, width=6,
        ),
        graph(
            "PCIe replays", "Replays per second: a link with errors.", "growing: reseat the card or replace the riser.",
            q(_top(c.q.gpu_rate("nvidia_gpu_pcie_replays_total")), GPU_LEGEND), unit="ops", width=6,
        ),
    )  # fmt: skip


def _workers(c: Context) -> tuple[Panel, ...]:
    by = ("instance", "target", "rank")
    legend = "{{target}} · {{instance}} · rank {{rank}}"
    return (
        graph(
            "Memory allocated", "GPU memory that PyTorch's allocator has handed out: the 10 largest ranks.",
            "steady in a healthy server.",
            q(_top(c.q.gauge("max", "vllm_worker_memory_allocated_bytes", by=by)), legend), unit="bytes",
        ),
        graph(
            "Memory reserved", "GPU memory that PyTorch's allocator holds: the 10 largest ranks.",
            "growing while allocated does not: fragmentation, the classic slow leak.",
            q(_top(c.q.gauge("max", "vllm_worker_memory_reserved_bytes", by=by)), legend), unit="bytes",
        ),
    )  # fmt: skip


def _mig(c: Context) -> tuple[Panel, ...]:
    g, by = c.q.gpu, ("gpu_instance", "profile")
    legend = "{{uuid}} · {{gpu_instance}} {{profile}}"
    used, total = g("nvidia_gpu_mig_memory_used_bytes", by=by), g("nvidia_gpu_mig_memory_total_bytes", by=by)
    return (
        graph(
            "MIG memory used", "Used ÷ total memory of the fullest MIG instances.", "as for a whole GPU.",
            q(_top(ratio(used, total)), legend), unit="percentunit", maximum=1, width=8,
        ),
        graph(
            "MIG multiprocessors busy", "Share of the instance's multiprocessors busy.", "an idle instance is bought idle.",
            q(_top(g("nvidia_gpu_mig_sm_active_ratio", by=by)), legend), unit="percentunit", maximum=1, width=8,
        ),
        graph(
            "MIG tensor cores and bandwidth", "Share of time the tensor cores, and of the bandwidth, were used.",
            "tensor: prefill; bandwidth: decode.",
            q(_top(g("nvidia_gpu_mig_tensor_active_ratio", by=by)), f"{legend} tensor"),
            q(_top(g("nvidia_gpu_mig_dram_active_ratio", by=by)), f"{legend} bandwidth"), unit="percentunit", maximum=1,
            width=8,
        ),
    )  # fmt: skip
