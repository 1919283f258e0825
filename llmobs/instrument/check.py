"""`llmobs instrument --check`: which hooks the installed vLLM offers, and which were found. Starts no server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from llmobs.errors import LlmobsError
from llmobs.instrument import journaling, settings
from llmobs.instrument.launch import GROUPS, PLUGIN, allowed_plugins
from llmobs.instrument.patch import find

_PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor."

#: What each hook needs of vLLM, and what is lost without it.
NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("stat_logger", ("vllm.v1.metrics.loggers:StatLoggerBase",), "no /stats and no logs; the sidecar reads /metrics"),
    ("http", ("fastapi.applications:FastAPI.build_middleware_stack",), "use --middleware"),
    (
        "sequences",
        tuple(_PROCESSOR + n for n in ("add_request", "_update_stats_from_finished", "abort_requests")),
        "log lines without tokens and phases",
    ),
    ("steps", (_PROCESSOR + "process_outputs",), "no decode-step latency by token position"),
    ("engine_death", (_PROCESSOR + "propagate_error",), "requests lost with the engine are not told apart"),
    ("shutdown", ("vllm.v1.engine.async_llm:AsyncLLM.shutdown",), "a stop may look like an engine death"),
    ("engine_core", ("vllm.v1.engine.core:EngineCore.step",), "no journal line from the engine core"),
    ("worker", ("vllm.v1.worker.worker_base:WorkerWrapperBase.execute_model",), "no journal line from the worker"),
    ("scheduler", ("vllm.v1.core.sched.scheduler:Scheduler.make_stats",), "no age of the oldest waiting request"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    good: bool
    text: str


def check() -> list[Finding]:
    """Return what was found. Raises LlmobsError when vLLM is not installed beside llmobs."""
    if importlib.util.find_spec("vllm") is None:
        raise LlmobsError("vLLM is not installed in this Python environment; install llmobs beside it")
    findings = [Finding("vllm", True, _version("vllm"))]
    findings += [_group(group) for group in GROUPS if group not in GROUPS[1:3]]
    for name, paths, loss in NEEDS:
        missing = [path for path in paths if find(path) is None]
        findings.append(Finding(name, not missing, "found" if not missing else f"{missing[0]} is missing: {loss}"))
    findings.append(Finding("VLLM_PLUGINS", True, f"`llmobs instrument` sets {allowed_plugins(None) or 'nothing'}"))
    findings.append(_traces())
    chosen, problems = settings.load()
    findings += [Finding("settings", False, problem) for problem in problems]
    if chosen.disabled:
        findings.append(Finding("settings", False, "LLMOBS_DISABLED switches everything off"))
    if chosen.state_dir is None:
        findings.append(Finding("journal", False, "off: LLMOBS_STATE_DIR is not set"))
    else:
        problem = journaling.probe(chosen.state_dir)
        findings.append(Finding("journal", problem is None, problem or str(chosen.state_dir)))
    return findings


def report(findings: Sequence[Finding]) -> str:
    """Return the findings as aligned lines."""
    width = max(len(f.name) for f in findings)
    return "\n".join(f"{'ok  ' if f.good else 'MISS'} {f.name:<{width}}  {f.text}" for f in findings)


def _group(group: str) -> Finding:
    import vllm.plugins

    offered = {v for n, v in vars(vllm.plugins).items() if n.endswith("_GROUP") and isinstance(v, str)}
    ours = any(point.name == PLUGIN for point in importlib.metadata.entry_points(group=group))
    if group not in offered:
        instead = {
            "vllm.stat_logger_plugins": "not in vLLM before 0.11.1; the general plugin adds the logger",
            "vllm.endpoint_plugins": "not in vLLM before 0.26; the middleware answers /stats",
        }
        return Finding(group, group in instead, instead.get(group, "this vLLM has no such group"))
    return Finding(group, ours, "registered" if ours else "llmobs is not registered: reinstall it")


def _traces() -> Finding:
    missing = [m for m in ("opentelemetry.sdk", "opentelemetry.exporter.otlp") if not _has(m)]
    if missing:
        return Finding("traces", False, f"{missing[0]} is not installed: pip install 'llmobs[otlp]'")
    return Finding("traces", True, "the OpenTelemetry SDK is installed")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"
