"""The rows of the detection matrix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row: a scenario, the alerts of which one must name its cause, and others that are true as well.

    `lead` is healthy time in front of the scenario's events, in simulated seconds; 0 for a scenario that is at fault
    from its start. `once` leaves out an event's repetitions, and `loading` is how long a restart takes, in seconds,
    where it is not the scenario's. `act` is done by the harness when the fault is due: vanish (targets leave
    discovery), stop (the sidecar is killed), roll (a replica is replaced), cgroup (the kernel counts a kill for
    memory). `others` are further scenarios in the same namespace: (scenario, labels). `heavy`
    rows need more CPU than the others and run at a third of their speed.
    """

    name: str
    scenario: str
    wanted: tuple[str, ...]
    true_too: tuple[str, ...] = ()
    lead: float = 1800.0
    act: str = ""
    once: bool = False
    loading: float = 0.0
    heavy: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    after: float = 1800.0


_SLOW = (
    "VllmTTFTP95High",
    "VllmTTFTBudgetBurn",
    "VllmE2EBudgetBurn",
    "VllmInterTokenP95High",
    "VllmInterTokenBudgetBurn",
    "VllmPrefillSlow",
    "VllmDecodeSlow",
    "VllmTokensDropped",
)
_LOAD = (
    "VllmQueueLong",
    "VllmQueueGrowing",
    "VllmRunningNearLimit",
    "VllmKVCacheHigh",
    "VllmKVCacheExhausted",
    "VllmKVCacheExhaustionPredicted",
    "VllmPreemptionStorm",
    "VllmAbortStorm",
    "VllmTimeouts",
    "VllmAvailabilityBudgetBurn",
    "VllmErrorBudgetExhausted",
)
_AFTER = (
    "VllmRestarted",
    "VllmRestartLoop",
    "VllmErrorRatio",
    "VllmAvailabilityBudgetBurn",
    "VllmErrorBudgetExhausted",
    "VllmTargetDown",
    "VllmModelDown",
    "VllmCacheHitRateLow",
    "VllmCacheHitRateCollapse",
    "VllmTokensDropped",
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="engine killed, ten minutes to load",
        scenario="engine-death",
        wanted=("VllmModelDown",),
        true_too=_AFTER,
        once=True,
        loading=600.0,
    ),
    Fault(
        name="engine killed, back within half a minute",
        scenario="engine-death",
        wanted=("VllmRestarted",),
        true_too=_AFTER,
        once=True,
    ),
    Fault(name="engine hangs, health 200", scenario="hang", wanted=("VllmEngineStalled",), true_too=(*_SLOW, *_LOAD)),
    Fault(name="livelock", scenario="livelock", wanted=("VllmEngineLivelock",), true_too=(*_SLOW, *_LOAD)),
    Fault(
        name="CUDA out of memory",
        scenario="oom-crash",
        wanted=("VllmOutOfMemory",),
        true_too=(*_AFTER, "GpuMemoryAlmostFull"),
    ),
    Fault(
        name="host out of memory",
        scenario="host-oom",
        wanted=("VllmOutOfMemory",),
        true_too=_AFTER,
        act="cgroup",
        once=True,
    ),
    Fault(name="restart loop", scenario="restart-loop", wanted=("VllmRestartLoop",), true_too=_AFTER),
    Fault(name="GPU off the bus (Xid 79)", scenario="gpu-fault", wanted=("GpuXidNode",), true_too=(*_AFTER, "GpuLost")),
    Fault(
        name="KV cache exhausted",
        scenario="kv-exhaustion",
        wanted=("VllmKVCacheExhausted",),
        true_too=(*_SLOW, *_LOAD),
        lead=0,
    ),
    Fault(
        name="bursts above capacity",
        scenario="burst",
        wanted=("VllmQueueLong", "VllmQueueGrowing"),
        true_too=(*_SLOW, *_LOAD),
    ),
    Fault(
        name="queue limit reached",
        scenario="admission-rejections",
        wanted=("VllmAdmissionRejecting",),
        true_too=(*_SLOW, *_LOAD),
    ),
    Fault(
        name="clients time out", scenario="client-timeouts", wanted=("VllmTimeouts",), true_too=(*_SLOW, *_LOAD), lead=0
    ),
    Fault(name="clients disconnect", scenario="abort-storm", wanted=("VllmAbortStorm",)),
    Fault(
        name="one request in five fails",
        scenario="errors",
        wanted=("VllmErrorRatio",),
        true_too=("VllmNaNLogits", "VllmAvailabilityBudgetBurn", "VllmErrorBudgetExhausted", "VllmPromptsTooLong"),
        lead=0,
    ),
    Fault(
        name="prompts share nothing any more",
        scenario="cache-unfriendly",
        wanted=("VllmCacheHitRateCollapse", "VllmPromptLengthShift"),
        true_too=(*_SLOW, *_LOAD, "VllmCacheHitRateLow"),
    ),
    Fault(
        name="documents instead of chats",
        scenario="long-prompts",
        wanted=("VllmPromptLengthShift",),
        true_too=("VllmCacheHitRateLow", "VllmCacheHitRateCollapse", *_SLOW, *_LOAD),
    ),
    Fault(
        name="draft model no longer fits",
        scenario="draft-mismatch",
        wanted=("VllmSpecAcceptanceDrop",),
        true_too=(*_SLOW, *_LOAD),
    ),
    Fault(
        name="GPU throttles for heat",
        scenario="slow-decode",
        lead=4200.0,
        wanted=("GpuThermalThrottling", "VllmDecodeSlow"),
        true_too=(*_SLOW, *_LOAD),
    ),
    Fault(
        name="allocator grows until nothing is left",
        scenario="memory-leak",
        wanted=("GpuMemoryAlmostFull", "GpuMemoryCreep", "VllmAllocatorCreep"),
        true_too=("VllmOutOfMemory", *_AFTER),
    ),
    Fault(
        name="router loves one engine",
        scenario="data-parallel-imbalance",
        wanted=("VllmReplicaImbalance",),
        true_too=(*_SLOW, *_LOAD),
        lead=0,
        heavy=True,
    ),
    Fault(
        name="a busy small model hides a slow big one",
        scenario="two-models",
        wanted=("VllmDecodeSlow", "VllmTTFTP95High", "VllmTTFTBudgetBurn"),
        true_too=(*_SLOW, *_LOAD),
    ),
    Fault(
        name="a bad canary",
        scenario="canary",
        wanted=("CanaryFailuresUp",),
        labels=(("canary", "true"),),
        others=(("canary-pair", (("canary", "false"),)),),
        lead=0,
        true_too=(
            "CanaryTokensSlower",
            "CanaryLatencyWorse",
            "VllmErrorRatio",
            "VllmAvailabilityBudgetBurn",
            "VllmErrorBudgetExhausted",
            "VllmReplicaImbalance",
        ),
    ),
    Fault(
        name="targets vanish from discovery",
        scenario="steady-chat",
        wanted=("VllmModelVanished", "VllmMetricsAbsent"),
        act="vanish",
    ),
    Fault(
        name="one of two sidecars dies",
        scenario="steady-chat",
        wanted=("LlmobsDown",),
        others=(("steady-chat", ()),),
        act="stop",
    ),
    Fault(name="the only sidecar dies", scenario="steady-chat", wanted=("VllmModelVanished",), act="stop"),
    Fault(
        name="rolling deployment (no fault)",
        scenario="steady-chat",
        wanted=(),
        act="roll",
        true_too=("VllmCacheHitRateLow",),
    ),
    Fault(name="steady chat (no fault)", scenario="steady-chat", wanted=()),
    Fault(
        name="more LoRA adapters than fit",
        scenario="lora",
        wanted=("VllmTTFTP95High", "VllmTTFTBudgetBurn", "VllmQueueLong"),
        true_too=(*_SLOW, *_LOAD),
        lead=0,
    ),
)

HEALTHY = Fault(name="a healthy day", scenario="healthy-day", wanted=(), lead=0, after=86400.0)
