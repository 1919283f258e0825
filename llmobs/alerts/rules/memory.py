"""Memory: what grows, what nobody owns, what is about to be full."""

from __future__ import annotations

from llmobs.alerts.model import GPU, TARGET, Alert, Knob
from llmobs.alerts.rules.common import CRASH, GPU_FAULT, of_gpu, of_target

_FAULT = (*CRASH, *GPU_FAULT)

MEMORY = (
    Alert(
        name="GpuMemoryCreep", group="memory", scope=GPU, severity="warning", for_="30m",
        question="Does GPU memory grow although the load does not?",
        expr=of_gpu("max by ($host, uuid) (nvidia_gpu_memory_free_bytes)\n"
                    "/ (max by ($host, uuid) (deriv(nvidia_gpu_memory_used_bytes[6h])) > 0)") + " < $threshold\n"
             "and on ($host, uuid) max by ($host, uuid) (delta(nvidia_gpu_memory_used_bytes[6h])) > $min_growth * max by ($host, uuid) (nvidia_gpu_memory_total_bytes)\n"
             "and on ($host) sum by ($host) (avg_over_time(vllm_num_running_requests[1h])) <= 1.2 * sum by ($host) (avg_over_time(vllm_num_running_requests[1h] offset 5h)) + 1\n"
             "and on ($host) time() - max by ($host) (vllm_start_time_seconds) > $settled",
        threshold=Knob(value=259200, unit="seconds until full", scales=True,
                       why="72 hours: the published case grew 2 % a day and died after three days"),
        params={"min_growth": Knob(value=0.003, unit="share of the memory in 6 hours", why="smaller steps are the allocator's everyday"),
                "settled": Knob(value=21600, unit="seconds since start", scales=True, why="loading the model is growth too")},
        summary="Memory of GPU {{ $labels.uuid }} ({{ $labels.model_name }}) grows at flat load and is full in {{ $value | humanizeDuration }}",
        impact="None yet; then out of memory, also when idle.",
        causes=("reserved memory grows, allocated does not: contexts of compiled graphs, fragmentation",
                "another process on the GPU", "contexts of dead processes (unaccounted memory)"),
        first="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
        stop="memory", prevent=("memory",), inhibited_by=_FAULT, dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_memory_used_bytes", "nvidia_gpu_process_memory_bytes", "vllm_worker_memory_reserved_bytes"),
        tune="Shorten the time until full if your replicas restart more often than that anyway.",
    ),
    Alert(
        name="VllmAllocatorCreep", group="memory", scope=TARGET, severity="warning", for_="30m",
        question="Does PyTorch reserve more and more without handing it out?",
        expr="sum by ($target) (delta(vllm_worker_memory_reserved_bytes[6h])) - sum by ($target) (delta(vllm_worker_memory_allocated_bytes[6h])) > $threshold\n"
             "and on ($joined) time() - max by ($joined) (vllm_start_time_seconds) > $settled",
        threshold=Knob(value=536870912, unit="bytes in 6 hours", why="half a GiB in six hours is what fills a 2 % reserve in three days"),
        params={"settled": Knob(value=21600, unit="seconds since start", scales=True, why="the first hours reserve by nature")},
        summary="The allocator of {{ $labels.target }} ({{ $labels.model_name }}) reserved {{ $value | humanize1024 }}B in 6 hours without using it",
        impact="None yet; fragmentation ends in out of memory.",
        causes=("fragmentation by changing shapes", "graphs compiled for ever new shapes", "a leak in a plugin or LoRA loading"),
        first="nvidia-smi --query-gpu=memory.used,memory.free --format=csv",
        stop="memory", prevent=("memory",), inhibited_by=(*_FAULT, "GpuMemoryCreep"), dashboard="llmobs-gpu",
        confirm=("vllm_worker_memory_reserved_bytes", "vllm_worker_memory_allocated_bytes"),
        tune="Raise it for GPUs with much spare memory.",
    ),
    Alert(
        name="GpuMemoryUnaccounted", group="memory", scope=GPU, severity="warning", for_="10m",
        question="Is GPU memory in use that no process owns?",
        expr=of_gpu("max by ($host, uuid) (nvidia_gpu_memory_unaccounted_bytes)\n"
                    "/ (max by ($host, uuid) (nvidia_gpu_memory_total_bytes) > 0)") + " > $threshold",
        threshold=Knob(value=0.05, unit="ratio", why="the driver itself needs less than a GiB of an 80 GB card"),
        summary="{{ $value | humanizePercentage }} of the memory of GPU {{ $labels.uuid }} belongs to no process",
        impact="The next start of vLLM finds less memory and fails, or gets a smaller KV cache.",
        causes=("a process died and its context was not released", "a driver leak", "processes of another container that cannot be seen"),
        first="fuser -v /dev/nvidia*",
        stop="gpu_reset", prevent=("memory",), inhibited_by=_FAULT, dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_memory_unaccounted_bytes", "nvidia_gpu_process_memory_bytes"),
        tune="Raise it on small cards, where the driver's share is larger.",
    ),
    Alert(
        name="GpuMemoryAlmostFull", group="memory", scope=GPU, severity="warning", for_="5m",
        question="Is the GPU about to run out of memory?",
        expr=of_gpu("1 - max by ($host, uuid) (nvidia_gpu_memory_free_bytes)\n"
                    "/ (max by ($host, uuid) (nvidia_gpu_memory_total_bytes) > 0)") + " > $threshold",
        threshold=Knob(value=0.97, unit="ratio", why="published guides call 95 % about to die; vLLM's own default of 0.9 to 0.92 "
                                                     "plus its context comes to 94 to 96, so 97"),
        summary="Memory of GPU {{ $labels.uuid }} ({{ $labels.model_name }}) is {{ $value | humanizePercentage }} full",
        impact="The next large batch ends in out of memory.",
        causes=("--gpu-memory-utilization set too high", "another process on the GPU", "growth: see GpuMemoryCreep"),
        first="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
        stop="memory", prevent=("memory",), inhibited_by=_FAULT, dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_memory_free_bytes", 'nvidia_gpu_process_memory_bytes{role="foreign"}'),
        tune="In line with --gpu-memory-utilization: its value plus about 5 %.",
    ),
    Alert(
        name="GpuMemoryHeadroomLow", group="memory", scope=GPU, severity="info", for_="15m",
        question="Is the fragmentation reserve eaten into?",
        enabled=False, off_because="vLLM takes its share at start, 0.9 and more by default, so on a dedicated GPU the "
                                   "20 % reserve of the planning guides is always eaten into",
        expr=of_gpu("max by ($host, uuid) (nvidia_gpu_memory_headroom_bytes)") + " < $threshold",
        threshold=Knob(value=0, unit="bytes", why="free memory minus the configured reserve"),
        metric="nvidia_gpu_memory_headroom_bytes",
        summary="GPU {{ $labels.uuid }} is {{ $value | humanize1024 }}B into its memory reserve",
        impact="None yet: less room against fragmentation.",
        causes=("--gpu-memory-utilization above what the plan allows", "another process"),
        first="nvidia-smi --query-gpu=memory.free --format=csv",
        stop="memory", prevent=("memory",), inhibited_by=(*_FAULT, "GpuMemoryAlmostFull"), dashboard="llmobs-gpu",
        confirm=("nvidia_gpu_memory_headroom_bytes", "nvidia_gpu_memory_reserve_bytes"),
        tune="Enable it where --gpu-memory-utilization is at most 0.8, or lower gpu.reserve_ratio.",
    ),
    Alert(
        name="VllmHostMemoryHigh", group="memory", scope=TARGET, severity="warning", for_="5m",
        question="Is the host or container memory of vLLM close to its limit?",
        expr=of_target("max by ($joined) (vllm_host_memory_used_bytes) / (max by ($joined) (vllm_host_memory_limit_bytes) > 0)") + " > $threshold",
        threshold=Knob(value=0.9, unit="ratio", why="the kernel kills at 100 %; loading a LoRA or a grammar takes gigabytes at once"),
        summary="vLLM {{ $labels.target }} ({{ $labels.model_name }}) uses {{ $value | humanizePercentage }} of its host memory limit",
        impact="The kernel kills the process at the limit: every request in flight is lost.",
        causes=("a memory limit below weights + CPU offload + page-locked buffers", "a leak in a tokenizer, grammar or multi-modal cache",
                "--swap-space or KV offload larger than the limit allows"),
        first="kubectl top pod POD --containers",
        stop="memory", prevent=("host",), inhibited_by=_FAULT,
        confirm=("vllm_host_memory_used_bytes", "vllm_host_memory_limit_bytes", 'vllm_oom_total{kind="host"}'),
        tune="Without a limit the metric is absent and so is the alert.",
    ),
)  # fmt: skip
