"""Hooks in the engine core and the workers: memory that runs out, other fatal errors, and what only they know.

They are general-plugin patches, because no interface of vLLM reports these. Each wrapper notes the exception and
raises the same one again, so that vLLM sees exactly what it would have seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from llmobs.instrument import journaling, oom, rundir
from llmobs.instrument.beat import BeatWriter
from llmobs.instrument.guard import Guard, guard
from llmobs.instrument.patch import find, when_imported, wrap
from llmobs.instrument.settings import InstrumentSettings
from llmobs.journal import JournalEntry

#: Seconds between two looks at the allocator.
MEMORY_INTERVAL = 5.0

_CORE = "vllm.v1.engine.core:EngineCore."
#: The step of a worker: the first of these that the version has. Before 0.12 the wrapper only passes every name on.
STEPS = (
    "vllm.v1.worker.worker_base:WorkerWrapperBase.execute_model",
    "vllm.v1.worker.gpu_worker:Worker.execute_model",
)
#: The steps of a worker's start that need memory, as vLLM calls them on the worker itself.
_STARTING = (
    "init_device",
    "load_model",
    "determine_available_memory",
    "initialize_from_config",
    "compile_or_warm_up_model",
)
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."


def install(settings: InstrumentSettings) -> None:
    """Put the hooks in place as soon as their modules are imported; a process that never imports them pays nothing."""
    backend = _Backend(settings)
    core, worker, queue = guard("engine_core"), guard("worker"), guard("scheduler")
    for hook in (core, worker, queue):
        hook.on_failure = rundir.report_hook

    def patch_core() -> None:
        for name in ("step", "step_with_batch_queue"):
            wrap(_CORE + name, core, lambda f: _noting(f, core, backend.core_failed))
        wrap(_CORE + "__init__", core, lambda f: _noting(f, core, backend.start_failed))

    def patch_step(path: str) -> None:
        wrap(path, worker, lambda f: _stepping(f, worker, backend))

    def patch_worker() -> None:
        if find(STEPS[0]) is None:
            patch_step(STEPS[1])
        for name in _STARTING:
            path = f"vllm.v1.worker.gpu_worker:Worker.{name}"
            wrap(path, worker, lambda f: _noting(f, worker, backend.worker_start_failed))

    def patch_scheduler() -> None:
        wrap(_SCHEDULER + "make_stats", queue, lambda f: _after(f, queue, backend.queue_seen))

    when_imported("vllm.v1.engine.core", patch_core)
    when_imported("vllm.v1.worker.worker_base", lambda: patch_step(STEPS[0]))
    when_imported("vllm.v1.worker.gpu_worker", patch_worker)
    when_imported("vllm.v1.core.sched.scheduler", patch_scheduler)


def _noting(original: Callable[..., Any], hook: Guard, note: Callable[[Any, Exception], None]) -> Callable[..., Any]:
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            hook.run(note, self, error)
            raise

    return noted


def _stepping(original: Callable[..., Any], hook: Guard, backend: _Backend) -> Callable[..., Any]:
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except Exception as error:
            hook.run(backend.worker_failed, self, args[0] if args else None, error)
            raise
        if time.monotonic() >= backend.memory_due:
            hook.run(backend.memory_seen, self)
        return result

    return execute_model


def _after(original: Callable[..., Any], hook: Guard, see: Callable[[Any], None]) -> Callable[..., Any]:
    def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook.run(see, self)
        return result

    return seen


class _Backend:
    """What these hooks remember in one process. `run_dir` is looked up late: a forked child has its own environment."""

    def __init__(self, settings: InstrumentSettings) -> None:
        self.settings = settings
        self.memory_due = 0.0
        self.watch: _QueueWatch | None = None

    # -- engine core ---------------------------------------------------------------------------------------------

    def core_failed(self, core: Any, error: Exception) -> None:
        """The step raised, in the engine core itself or in a worker: its batch and the KV cache are known here."""
        engine = _engine_index(core.vllm_config)
        scheduler = core.scheduler
        batch = tuple(
            (getattr(r, "external_req_id", None) or r.request_id, r.num_prompt_tokens, r.num_output_tokens)
            for r in scheduler.running
        )
        worker: dict[str, Any] = next(
            (w for n in rundir.names(rundir.make(), f"oom-{engine}-") if (w := rundir.read(rundir.make(), n))), {}
        )
        memory, device = oom.post_mortem()
        self._journal(
            oom.kind(error),
            engine,
            error,
            process=f"EngineCore_DP{engine}" if engine else "EngineCore",
            requests=batch,
            step_tokens=worker.get("step_tokens"),
            kv_cache_usage=float(scheduler.kv_cache_manager.usage),
            memory=memory or worker.get("memory") or {},
            device=device or worker.get("device"),
            model_name=core.vllm_config.model_config.model,
        )

    def start_failed(self, core: Any, error: Exception) -> None:
        """The engine core could not start; only memory that ran out is ours to tell."""
        found = oom.kind(error)
        if found is not None:
            self._journal(found, _engine_index(getattr(core, "vllm_config", None)), error, process="EngineCore")

    def queue_seen(self, scheduler: Any) -> None:
        """The scheduler made its statistics: publish the arrival of the oldest request that waits.

        This runs in every step of the engine, which waits for it: what does not change is found out once.
        """
        watch = self.watch
        if watch is None or watch.scheduler is not scheduler:
            watch = self.watch = _QueueWatch(scheduler)
        watch.look()

    # -- worker --------------------------------------------------------------------------------------------------

    def worker_failed(self, worker: Any, scheduler_output: Any, error: Exception) -> None:
        """The model raised. Written here too, because the engine core may not live to tell."""
        found = oom.kind(error)
        if found is None:
            return
        memory, device = oom.post_mortem()
        rank = _rank(worker)
        engine = _engine_index(worker.vllm_config)
        step_tokens = getattr(scheduler_output, "total_num_scheduled_tokens", None)
        rundir.write(
            rundir.make(),
            f"oom-{engine}-{rank}",
            {"kind": found, "memory": memory, "device": device, "step_tokens": step_tokens},
        )
        self._journal(
            found,
            engine,
            error,
            process=f"Worker_{rank}",
            requests=_batch(scheduler_output),
            step_tokens=step_tokens,
            memory=memory,
            device=device or "cpu",
            model_name=worker.vllm_config.model_config.model,
        )

    def worker_start_failed(self, worker: Any, error: Exception) -> None:
        """A worker could not start: the engine core only hears that it did not, so memory is told from here."""
        found = oom.kind(error)
        if found is not None:
            memory, device = oom.post_mortem()
            self._journal(
                found,
                _engine_index(worker.vllm_config),
                error,
                process=f"Worker_{_rank(worker)}",
                memory=memory,
                device=device,
                model_name=worker.vllm_config.model_config.model,
            )

    def memory_seen(self, worker: Any) -> None:
        """Leave the allocator's figures for the API server, every few seconds."""
        self.memory_due = time.monotonic() + MEMORY_INTERVAL
        memory, _ = oom.allocator()
        if memory:
            engine, rank = _engine_index(worker.vllm_config), _rank(worker)
            rundir.write(rundir.make(), f"memory-{engine}-{rank}", memory)

    # -- both ----------------------------------------------------------------------------------------------------

    def _journal(self, kind: str | None, engine: int, error: Exception, *, process: str, **facts: Any) -> None:
        run_dir = rundir.make()
        instance = rundir.instance(run_dir)
        event = "oom" if kind is not None else "engine_dead"
        # The same name from a worker and from its engine core: however many lines tell of it, it happened once.
        entry = JournalEntry(
            id=f"{event}:{instance}:{engine}",
            event=event,
            time=time.time(),
            process=process,
            pid=os.getpid(),
            instance=instance,
            kind=kind,
            reason="oom" if kind is not None else "engine_dead",
            engine=str(engine),
            message=f"{type(error).__name__}: {error}",
            **facts,
        )
        written = journaling.append(self.settings.state_dir, entry)
        rundir.write(run_dir, f"died-{engine}", {"cause": entry.reason, "kind": kind, "message": entry.message})
        if not written:
            rundir.write(run_dir, f"journal-dropped-{os.getpid()}", 1)


def _engine_index(vllm_config: Any) -> int:
    parallel = getattr(vllm_config, "parallel_config", None)
    index = getattr(parallel, "data_parallel_index", None)
    if index is None:
        index = getattr(parallel, "data_parallel_rank", 0)
    return int(index or 0)


def _rank(worker: Any) -> int:
    """Return the rank of a worker, or of the wrapper around one, which calls it otherwise."""
    rank = getattr(worker, "global_rank", None)
    return int(getattr(worker, "rank", 0) if rank is None else rank)


class _QueueWatch:
    """Publishes the arrival of the oldest request in a scheduler's queues, when it has changed."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self._queues = [n for n in ("waiting", "skipped_waiting", "kv_holding_waiting") if hasattr(scheduler, n)]
        run_dir = rundir.make()
        self._beat = BeatWriter(run_dir, _engine_index(scheduler.vllm_config)) if run_dir is not None else None
        self._written = -1.0

    def look(self) -> None:
        oldest = 0.0
        for name in self._queues:
            queue = getattr(self.scheduler, name)  # by name each time: a version may put a new queue in its place
            if queue:
                # First come, first served in all of them; by priority the first is not always the oldest, and is shown.
                arrival = next(iter(queue)).arrival_time
                oldest = min(oldest, arrival) if oldest else arrival
        if oldest != self._written and self._beat is not None:
            self._beat.write(oldest)
            self._written = oldest


def _batch(scheduler_output: Any) -> tuple[tuple[str, int, int], ...]:
    """Return (request id, prompt tokens, output tokens) of a step; what a worker is not told is 0."""
    if scheduler_output is None:
        return ()
    new = [(r.req_id, len(r.prompt_token_ids or ()), 0) for r in scheduler_output.scheduled_new_reqs]
    cached = scheduler_output.scheduled_cached_reqs
    outputs = getattr(cached, "num_output_tokens", None) or [0] * len(cached.req_ids)
    computed = getattr(cached, "num_computed_tokens", None) or [0] * len(cached.req_ids)
    old = [(i, max(0, c - o + 1) if o else c, o) for i, c, o in zip(cached.req_ids, computed, outputs)]
    return (*new, *old)
