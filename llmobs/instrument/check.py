"""`llmobs instrument --check`: which hooks the installed vLLM offers, and which were found. Starts no server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from llmobs.errors import LlmobsError
from llmobs.instrument import backend, journaling, legacy, settings
from llmobs.instrument.launch import GROUPS, PLUGIN, allowed_plugins
from llmobs.instrument.patch import find

_PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor."


@dataclass(frozen=True, slots=True)
class Hook:
    """A guard by its name in `/stats`: what of vLLM it needs, what is lost without it, and what switches it on.

    Where `needs` holds several paths together, one of them is enough.
    """

    name: str
    needs: tuple[str | tuple[str, ...], ...]
    loss: str = ""
    option: str | None = None


_SPANS = "OTEL_EXPORTER_OTLP_ENDPOINT"

#: Every hook there is; the test holds the list to the guards of the source and of a running server.
HOOKS: tuple[Hook, ...] = (
    Hook("plugin", ()),
    Hook(
        "stat_logger", ("vllm.v1.metrics.loggers:StatLoggerBase",), "no /stats and no logs; the sidecar reads /metrics"
    ),
    Hook("http", ("fastapi.applications:FastAPI.build_middleware_stack",), "use --middleware"),
    Hook(
        "sequences",
        tuple(_PROCESSOR + n for n in ("add_request", "_update_stats_from_finished", "abort_requests")),
        "log lines without tokens and phases",
    ),
    Hook("steps", (_PROCESSOR + "process_outputs",), "no decode-step latency by token position"),
    Hook("engine_death", (_PROCESSOR + "propagate_error",), "requests lost with the engine are not told apart"),
    Hook("shutdown", ("vllm.v1.engine.async_llm:AsyncLLM.shutdown",), "a stop may look like an engine death"),
    Hook("engine_core", ("vllm.v1.engine.core:EngineCore.step",), "no journal line from the engine core"),
    Hook("worker", (backend.STEPS,), "no journal line from the worker"),
    Hook("scheduler", ("vllm.v1.core.sched.scheduler:Scheduler.make_stats",), "no age of the oldest waiting request"),
    Hook("request_log", ()),
    Hook("stats_page", ()),
    Hook("share", ()),
    Hook(
        "json_logs",
        ("vllm.logger:_configure_vllm_root_logger",),
        "lines of a logger that vLLM configures anew stay text",
        "LLMOBS_LOG_VLLM",
    ),
    Hook("traces", (), option=_SPANS),
    Hook(
        "parse",
        ("fastapi.routing:run_endpoint_function",),
        "llm.prompt.build begins before the body is validated",
        _SPANS,
    ),
    Hook("traces_build", (), option=_SPANS),
    Hook("traces_encode", (), option=_SPANS),
    Hook("token_detail", (), option="LLMOBS_TRACE_DETAIL"),
    Hook("layers", ("vllm.v1.worker.gpu_worker:Worker.execute_model",), "no layer detail", "LLMOBS_TRACE_LAYERS"),
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
    findings += [_hook(hook) for hook in HOOKS]
    findings.append(Finding("VLLM_PLUGINS", True, f"`llmobs instrument` sets {allowed_plugins(None) or 'nothing'}"))
    findings.append(_opentelemetry())
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


def _hook(hook: Hook) -> Finding:
    alternatives = [(need,) if isinstance(need, str) else need for need in hook.needs]
    missing = [paths for paths in alternatives if all(find(path) is None for path in paths)]
    if missing:
        return Finding(hook.name, False, f"{missing[0][0]} is missing: {hook.loss}")
    text = "found" if hook.needs else "needs nothing of vLLM"
    return Finding(hook.name, True, f"{text}; with {hook.option}" if hook.option else text)


def _group(group: str) -> Finding:
    import vllm.plugins

    offered = {v for n, v in vars(vllm.plugins).items() if n.endswith("_GROUP") and isinstance(v, str)}
    if find(legacy.PLUGINS) is not None:
        offered.add("vllm.stat_logger_plugins")
    ours = any(point.name == PLUGIN for point in importlib.metadata.entry_points(group=group))
    if group not in offered:
        instead = {
            "vllm.stat_logger_plugins": "not in vLLM before 0.11.1; the general plugin adds the logger",
            "vllm.endpoint_plugins": "not in vLLM before 0.26; the middleware answers /stats",
        }
        return Finding(group, group in instead, instead.get(group, "this vLLM has no such group"))
    return Finding(group, ours, "registered" if ours else "llmobs is not registered: reinstall it")


def _opentelemetry() -> Finding:
    missing = [m for m in ("opentelemetry.sdk", "opentelemetry.exporter.otlp") if not _has(m)]
    if missing:
        return Finding("opentelemetry", False, f"{missing[0]} is not installed: pip install 'llmobs[otlp]'")
    return Finding("opentelemetry", True, "the SDK is installed")


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
