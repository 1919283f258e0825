"""What happens once in an API server process, when its engine is ready: the runtime is made and says what is active."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import importlib.metadata
import multiprocessing.util
import time
from collections.abc import Mapping
from typing import Any

from llmobs import __version__
from llmobs.instrument import death, frontend, journaling, share
from llmobs.instrument import runtime as runtimes
from llmobs.instrument.config import effective_config, static_facts
from llmobs.instrument.events import RequestLog, engine_stats
from llmobs.instrument.guard import guard, guards, logger
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.settings import load

#: Hooks without an option, in the order of the start-up line; `check.HOOKS` has all.
HOOKS = ("stat_logger", "http", "sequences", "steps", "engine_death")


def start(vllm_config: Any, engines: list[int]) -> Runtime | None:
    """Make this process's runtime; None when llmobs is switched off."""
    settings, problems = load()
    if settings.disabled:
        return None
    for problem in problems:
        logger.warning("llmobs: %s", problem)
    existing = runtimes.get()
    if existing is not None and engines[0] not in existing.ledgers:
        existing.add_engines(engines)  # a version with one logger per engine
        return existing
    parallel = vllm_config.parallel_config
    runtime = Runtime(
        settings,
        model_name=_served_name(vllm_config.model_config),
        engines=engines,
        static=static_facts(vllm_config, len(engines)),
        max_model_len=int(vllm_config.model_config.max_model_len),
        version=_version(),
        client_count=int(getattr(parallel, "_api_process_count", 1) or 1),
        client_index=max(0, int(getattr(parallel, "_api_process_rank", 0) or 0)),
    )
    runtime.config = effective_config(vllm_config)
    runtime.oom_kills_at_start = death.oom_kills()
    frontend.install()
    runtime.observers.add(RequestLog(runtime))
    _add_traces(runtime, vllm_config)
    # Before log and spans are closed, which were registered earlier; children leave without atexit.
    atexit.register(runtime.settle)
    multiprocessing.util.Finalize(None, runtime.settle, exitpriority=200)
    runtimes.install(runtime)
    # So that several processes publish from the start, before their first request; without a loop, from that one on.
    with contextlib.suppress(RuntimeError):
        runtime.loop = asyncio.get_running_loop()
    runtime.log.tick = lambda: share.tick(runtime)
    return runtime


def _add_traces(runtime: Runtime, vllm_config: Any) -> None:
    """Let spans observe requests, where that part is installed and wanted."""
    try:
        traces: Any = importlib.import_module("llmobs.instrument.traces")
    except ImportError:
        return
    made = guard("traces").run(traces.observer, runtime, vllm_config)
    if made is not None:
        runtime.observers.add(made)


def announce(runtime: Runtime) -> None:
    """Write the start-up line, and the events engine_started and engine_config."""
    active = [name for name in guards() if guard(name).active]
    settings = runtime.settings
    missing = [name for name in HOOKS if name not in active]
    notes = []
    if settings.state_dir is None:
        notes.append("no failure journal (LLMOBS_STATE_DIR is not set)")
    elif (problem := journaling.probe(settings.state_dir)) is not None:
        notes.append(f"no failure journal ({problem})")
    if settings.capture_content:
        notes.append("PROMPT AND COMPLETION TEXT IS LOGGED (LLMOBS_CAPTURE_CONTENT=1)")
    if not runtime.log.enabled:
        notes.append("no request log (LLMOBS_LOG)")
    logger.info(
        "llmobs %s in vLLM %s: active %s%s%s",
        __version__,
        runtime.version,
        ", ".join(active) or "nothing",
        f"; not in this version: {', '.join(missing)}" if missing else "",
        "; " + "; ".join(notes) if notes else "",
    )
    now = time.time()
    fields: Mapping[str, Any] = {
        "version": runtime.version,
        "llmobs_version": __version__,
        "model": runtime.first.model_name,
        "engines": len(runtime.ledgers),
        "instance": runtime.instance,
        "hooks": active,
        "hooks_missing": missing,
        "content_captured": settings.capture_content,
    }
    runtime.log.put("info", "engine_started", fields, now)
    if runtime.client_index == 0:
        runtime.log.put("info", "engine_config", {"config": runtime.config}, now)
    engine_stats(runtime)


def _served_name(model_config: Any) -> str:
    name = getattr(model_config, "served_model_name", None) or model_config.model
    return str(name[0] if isinstance(name, (list, tuple)) else name)


def _version() -> str | None:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
