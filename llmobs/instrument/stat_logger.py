"""The stat logger that vLLM loads through `vllm.stat_logger_plugins`; imported only inside vLLM's API server."""

from __future__ import annotations

import asyncio
from typing import Any

from vllm.v1.metrics import loggers

from llmobs.instrument import frontend, startup
from llmobs.instrument import runtime as runtimes
from llmobs.instrument.guard import guard
from llmobs.instrument.runtime import Runtime

# The aggregate base (0.11.1+) is one instance for all engines and hears of sleep and admission; older versions get one
# instance per engine.
_Base: Any = getattr(loggers, "AggregateStatLoggerBase", loggers.StatLoggerBase)


class StatLogger(_Base):  # type: ignore[misc]
    """Feeds the ledger. Nothing here may raise, and nothing here may block: it runs in the output handler's task."""

    def __init__(self, vllm_config: Any, engine_indexes: Any = None, engine_index: int = 0) -> None:
        self._guard = guard("stat_logger")
        self._steps = guard("steps")
        if isinstance(engine_indexes, int):
            engine_index, engine_indexes = engine_indexes, None
        self._engine = engine_index
        engines = list(engine_indexes) if engine_indexes else [engine_index]
        self._runtime: Runtime | None = self._guard.run(startup.start, vllm_config, engines)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *args: Any, **kwargs: Any) -> None:
        """Take over what one message of the engine core brought."""
        self._guard.run(self._record, scheduler_stats, iteration_stats, args, kwargs)

    def _record(self, scheduler: Any, iteration: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        runtime = self._runtime
        positions = None
        if self._steps.active:
            positions, frontend.positions = frontend.positions, []
        if runtime is None:
            return
        engine = kwargs.get("engine_idx")
        if engine is None:
            engine = args[-1] if args and isinstance(args[-1], int) else self._engine
        ledger = runtime.ledgers.get(engine) or runtime.first
        runtime.steps.add(ledger, scheduler, iteration, positions, kwargs.get("mm_cache_stats"))
        if runtime.loop is None:
            runtime.loop = asyncio.get_running_loop()

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Take over the sleep state of all engines."""
        self._guard.run(self._sleep, sleep, level)

    def _sleep(self, sleep: int, level: int) -> None:
        if self._runtime is not None:
            for ledger in self._runtime.ledgers.values():
                ledger.slept(sleep, level)

    def record_admission_rejection(self, reason: str) -> None:
        """Note that admission control refused the request whose code is running."""
        self._guard.run(self._rejected, reason)

    def _rejected(self, reason: str) -> None:
        from llmobs.instrument.record import current

        if self._runtime is not None:
            self._runtime.first.add_to("admission_rejections", str(reason))
        record = current.get()
        if record is not None:
            record.rejection = str(reason)

    def log(self) -> None:
        """Nothing: engine_stats lines come from our own timer, also with `--disable-log-stats`."""

    def log_engine_initialized(self) -> None:
        """Say what is active, once, when the engine is ready."""
        runtime = self._runtime
        if runtime is not None and runtimes.get() is runtime:
            self._guard.run(startup.announce, runtime)
