"""The contract, part 2: what the GPUs do (`nvidia_gpu_*`). `fact` names a field of `GpuStats`."""

from __future__ import annotations

from llmobs.catalog.model import GPU, Metric

#: Bits of nvmlDeviceGetCurrentClocksEventReasons, in words.
CLOCK_EVENT_REASONS = (
    "idle", "app_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake",
    "display_clocks",
)  # fmt: skip

#: Xid codes that are published at 0 from the start, so that increase() sees the first one. Codes outside this list
#: appear when they occur. The tiers are the alerts': `llmobs.alerts`.
XID_CODES = (
    "13", "31", "32", "43", "45", "48", "61", "62", "63", "64", "69", "74", "79", "92", "94", "95", "109", "119",
    "120", "121", "140", "143", "144", "145", "149", "150", "154",
)  # fmt: skip

#: Why a GPU is not up (`nvidia_gpu_error`), and why one of its fields cannot be read (`nvidia_gpu_field_unavailable`).
GPU_DOWN_REASONS = ("lost", "reset_required", "hung", "unreadable", "error")
FIELD_REASONS = ("unsupported", "no_permission", "unknown", "error", "suspect")

#: Kinds of failed NVML calls.
NVML_ERRORS = (
    "uninitialized", "invalid_argument", "no_permission", "insufficient_size", "insufficient_power",
    "driver_not_loaded", "irq_issue", "corrupted_inforom", "gpu_lost", "reset_required", "operating_system",
    "version_mismatch", "in_use", "memory", "insufficient_resources", "not_ready", "gpu_not_found", "invalid_state",
    "unknown", "other",
)  # fmt: skip

DIRECTIONS = ("tx", "rx")
CLOCKS = ("graphics", "sm", "memory")

GPU_METRICS = (
    Metric(
        name="nvidia_gpu_up", kind="gauge", unit="bool", labels=GPU,
        help="1 if the GPU answered in the last cycle, 0 if it is lost, needs a reset, or a call to it hangs.",
        meaning="A GPU that is down keeps this series, the reason, its info and its Xid counts, and loses all others.",
        fact="up",
    ),
    Metric(
        name="nvidia_gpu_error", kind="gauge", unit="bool", labels=(*GPU, "reason"),
        values={"reason": GPU_DOWN_REASONS},
        help="Why the GPU is not up; all 0 while it is.",
        meaning="lost: off the bus, reboot or replace. reset_required: reset it. hung: a driver call does not return. "
                "unreadable: it refuses every field.",
    ),
    Metric(
        name="nvidia_gpu_field_unavailable", kind="gauge", unit="bool", labels=(*GPU, "field", "reason"),
        values={"reason": FIELD_REASONS},
        help="1 for each field of the GPU that could not be read in the last cycle, with the reason.",
        meaning="unsupported is this GPU's or driver's nature. no_permission: give the sidecar the right, see the GPU "
                "guide. suspect: the driver's figure contradicts another one and is withheld.",
    ),
    Metric(
        name="nvidia_gpu_info", kind="info", unit="info",
        labels=(*GPU, "index", "name", "pci_bus_id", "driver_version", "cuda_version", "watched", "watched_proof"),
        help="Identity of the GPU, to join on; watched says whether the watched vLLM runs on it and how that is known.",
    ),
    Metric(
        name="nvidia_gpu_memory_total_bytes", kind="gauge", unit="bytes", labels=GPU, fact="memory_total_bytes",
        help="Memory of the GPU.",
    ),
    Metric(
        name="nvidia_gpu_memory_used_bytes", kind="gauge", unit="bytes", labels=GPU, fact="memory_used_bytes",
        help="Memory in use by anybody, without the part reserved by the driver; where there is no reserved series, that "
             "part is counted in.",
    ),
    Metric(
        name="nvidia_gpu_memory_free_bytes", kind="gauge", unit="bytes", labels=GPU, fact="memory_free_bytes",
        help="Free memory.",
    ),
    Metric(
        name="nvidia_gpu_memory_reserved_bytes", kind="gauge", unit="bytes", labels=GPU, fact="memory_reserved_bytes",
        help="Memory reserved by the driver and firmware; total = used + free + reserved.",
    ),
    Metric(
        name="nvidia_gpu_memory_reserve_bytes", kind="gauge", unit="bytes", labels=GPU,
        help="Memory that planning leaves free against fragmentation: the configured share of the total.",
        source="gpu.reserve_ratio × total",
    ),
    Metric(
        name="nvidia_gpu_memory_headroom_bytes", kind="gauge", unit="bytes", labels=GPU,
        help="Free memory beyond the fragmentation reserve; negative when the reserve is eaten into.",
        meaning="vLLM takes its share at start, so a negative value can be its setting; a falling one is growth.",
        source="free − reserve",
    ),
    Metric(
        name="nvidia_gpu_memory_unaccounted_bytes", kind="gauge", unit="bytes", labels=GPU,
        fact="memory_unaccounted_bytes",
        help="Memory in use that no visible process owns; absent unless every process of the GPU is known.",
        meaning="The leak signal: contexts of dead processes and driver leaks show here.",
    ),
    Metric(
        name="nvidia_gpu_process_memory_bytes", kind="gauge", unit="bytes", labels=(*GPU, "role", "proof"),
        values={"role": ("engine", "worker", "foreign")},
        help="Memory of processes on the GPU by role; engine and worker only with proof that they are the watched vLLM.",
    ),
    Metric(
        name="nvidia_gpu_utilization_ratio", kind="gauge", unit="ratio", labels=GPU, fact="utilization",
        help="Share of time in which any kernel ran. Says little about how busy the GPU is.",
    ),
    Metric(
        name="nvidia_gpu_memory_utilization_ratio", kind="gauge", unit="ratio", labels=GPU, fact="memory_utilization",
        help="Share of time in which memory was read or written.",
    ),
    Metric(
        name="nvidia_gpu_sm_active_ratio", kind="gauge", unit="ratio", labels=GPU, fact="sm_active",
        help="Share of streaming multiprocessors busy, mean since the last sample (Hopper and newer).",
    ),
    Metric(
        name="nvidia_gpu_sm_occupancy_ratio", kind="gauge", unit="ratio", labels=GPU, fact="sm_occupancy",
        help="Share of warp slots filled, mean since the last sample (Hopper and newer).",
    ),
    Metric(
        name="nvidia_gpu_tensor_active_ratio", kind="gauge", unit="ratio", labels=GPU, fact="tensor_active",
        help="Share of time the tensor cores were busy, mean since the last sample: high in prefill.",
    ),
    Metric(
        name="nvidia_gpu_dram_active_ratio", kind="gauge", unit="ratio", labels=GPU, fact="dram_active",
        help="Share of memory bandwidth used, mean since the last sample: high in decode.",
    ),
    Metric(
        name="nvidia_gpu_power_watts", kind="gauge", unit="watts", labels=GPU, fact="power_watts",
        help="Power drawn.",
    ),
    Metric(
        name="nvidia_gpu_power_limit_watts", kind="gauge", unit="watts", labels=GPU, fact="power_limit_watts",
        help="Enforced power limit.",
    ),
    Metric(
        name="nvidia_gpu_energy_joules_total", kind="counter", unit="joules", labels=GPU, fact="energy_joules",
        help="Energy used since the driver was loaded.",
    ),
    Metric(
        name="nvidia_gpu_temperature_celsius", kind="gauge", unit="celsius", labels=GPU, fact="temperature_celsius",
        help="Temperature of the GPU.",
    ),
    Metric(
        name="nvidia_gpu_memory_temperature_celsius", kind="gauge", unit="celsius", labels=GPU,
        fact="memory_temperature_celsius", help="Temperature of the memory.",
    ),
    Metric(
        name="nvidia_gpu_temperature_threshold_celsius", kind="gauge", unit="celsius", labels=(*GPU, "threshold"),
        fact="temperature_thresholds", values={"threshold": ("shutdown", "slowdown", "memory_max", "gpu_max")},
        help="Temperature at which the GPU acts.",
    ),
    Metric(
        name="nvidia_gpu_clock_hertz", kind="gauge", unit="hertz", labels=(*GPU, "clock"), fact="clocks_hertz",
        values={"clock": CLOCKS}, help="Current clock.",
    ),
    Metric(
        name="nvidia_gpu_clock_max_hertz", kind="gauge", unit="hertz", labels=(*GPU, "clock"),
        fact="clocks_max_hertz", values={"clock": CLOCKS}, help="Highest clock.",
    ),
    Metric(
        name="nvidia_gpu_clock_event_active", kind="gauge", unit="bool", labels=(*GPU, "reason"),
        fact="clock_event_reasons", values={"reason": CLOCK_EVENT_REASONS},
        help="1 while this reason holds the clocks down; sampled, so short events are missed.",
        meaning="hw_thermal, hw_power_brake and hw_slowdown cost latency; idle and sw_power_cap are everyday.",
    ),
    Metric(
        name="nvidia_gpu_fan_ratio", kind="gauge", unit="ratio", labels=GPU, fact="fan_ratio", help="Fan speed.",
    ),
    Metric(
        name="nvidia_gpu_performance_state", kind="gauge", unit="state", labels=GPU, fact="performance_state",
        help="Performance state, 0 (fastest) to 15.",
    ),
    Metric(
        name="nvidia_gpu_ecc_errors_total", kind="counter", unit="errors", labels=(*GPU, "severity"),
        fact="ecc_errors", values={"severity": ("corrected", "uncorrected")},
        help="ECC errors since the driver was loaded.",
    ),
    Metric(
        name="nvidia_gpu_ecc_errors_lifetime_total", kind="counter", unit="errors", labels=(*GPU, "severity"),
        fact="ecc_errors_lifetime", values={"severity": ("corrected", "uncorrected")},
        help="ECC errors over the life of the GPU.",
    ),
    Metric(
        name="nvidia_gpu_remapped_rows", kind="gauge", unit="rows", labels=(*GPU, "severity"), fact="remapped_rows",
        values={"severity": ("corrected", "uncorrected")}, help="Memory rows replaced by spares.",
    ),
    Metric(
        name="nvidia_gpu_row_remap_pending", kind="gauge", unit="bool", labels=GPU, fact="row_remap_pending",
        help="1 if a row waits to be remapped at the next reset.",
    ),
    Metric(
        name="nvidia_gpu_row_remap_failed", kind="gauge", unit="bool", labels=GPU, fact="row_remap_failed",
        help="1 if a row could not be remapped: replace the GPU.",
    ),
    Metric(
        name="nvidia_gpu_retired_pages_pending", kind="gauge", unit="bool", labels=GPU, fact="retired_pages_pending",
        help="1 if a page waits to be retired at the next reset (before Ampere).",
    ),
    Metric(
        name="nvidia_gpu_recovery_action", kind="gauge", unit="code", labels=GPU, fact="recovery_action",
        help="What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX, "
             "6 bus reset, 7 reboot the system.",
    ),
    Metric(
        name="nvidia_gpu_pcie_bytes_total", kind="counter", unit="bytes", labels=(*GPU, "direction"),
        fact="pcie_bytes", values={"direction": DIRECTIONS}, help="Bytes over PCIe.",
    ),
    Metric(
        name="nvidia_gpu_pcie_replays_total", kind="counter", unit="events", labels=GPU, fact="pcie_replays",
        help="PCIe replays: a link with errors.",
    ),
    Metric(
        name="nvidia_gpu_pcie_link_generation", kind="gauge", unit="generation", labels=GPU, fact="pcie_generation",
        help="Current PCIe generation; falls while the GPU idles.",
    ),
    Metric(
        name="nvidia_gpu_pcie_link_generation_max", kind="gauge", unit="generation", labels=GPU,
        fact="pcie_generation_max", help="Highest PCIe generation of GPU and slot together.",
    ),
    Metric(
        name="nvidia_gpu_pcie_link_width", kind="gauge", unit="lanes", labels=GPU, fact="pcie_width",
        help="Current PCIe lanes.",
    ),
    Metric(
        name="nvidia_gpu_pcie_link_width_max", kind="gauge", unit="lanes", labels=GPU, fact="pcie_width_max",
        help="Most PCIe lanes of GPU and slot together.",
    ),
    Metric(
        name="nvidia_gpu_nvlink_bytes_total", kind="counter", unit="bytes", labels=(*GPU, "direction"),
        fact="nvlink_bytes", values={"direction": DIRECTIONS}, help="Data bytes over all NVLinks.",
    ),
    Metric(
        name="nvidia_gpu_xid_errors_total", kind="counter", unit="errors", labels=(*GPU, "xid"), fact="xid_errors",
        help="Xid errors by code since llmobs watches; codes worth an alert are there at 0 from the start.",
        meaning="See the runbook of the code's tier. An Xid before llmobs started is not seen. One that names no known "
                "GPU has the uuid unknown.",
    ),
    Metric(
        name="nvidia_gpu_xid_last_seen_timestamp_seconds", kind="gauge", unit="seconds", labels=(*GPU, "xid"),
        fact="xid_last_seen", help="Unix time of the last Xid error of this code.",
    ),
    Metric(
        name="nvidia_gpu_xid_listener_up", kind="gauge", unit="bool", labels=GPU, fact="xid_listening",
        help="1 if Xid errors of this GPU are being listened for; 0 means that they would be missed.",
    ),
    Metric(
        name="nvidia_gpu_mig_memory_total_bytes", kind="gauge", unit="bytes", labels=(*GPU, "gpu_instance", "profile"),
        help="Memory of a MIG GPU instance.",
    ),
    Metric(
        name="nvidia_gpu_mig_memory_used_bytes", kind="gauge", unit="bytes", labels=(*GPU, "gpu_instance", "profile"),
        help="Memory in use in a MIG GPU instance.",
    ),
    Metric(
        name="nvidia_gpu_mig_sm_active_ratio", kind="gauge", unit="ratio", labels=(*GPU, "gpu_instance", "profile"),
        help="Share of the instance's multiprocessors busy, mean since the last sample.",
    ),
    Metric(
        name="nvidia_gpu_mig_tensor_active_ratio", kind="gauge", unit="ratio",
        labels=(*GPU, "gpu_instance", "profile"),
        help="Share of time the instance's tensor cores were busy, mean since the last sample.",
    ),
    Metric(
        name="nvidia_gpu_mig_dram_active_ratio", kind="gauge", unit="ratio", labels=(*GPU, "gpu_instance", "profile"),
        help="Share of the instance's memory bandwidth used, mean since the last sample.",
    ),
)  # fmt: skip
