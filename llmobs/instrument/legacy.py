"""vLLM 0.8.5 to 0.11.0, which has no `vllm.stat_logger_plugins`: the stat logger is added to AsyncLLM after it is made.

Where the loggers are kept, by version: 0.8.5–0.9.2 `AsyncLLM.stat_loggers`, one list per engine; 0.10.0–0.11.0
`AsyncLLM.logger_manager.per_engine_logger_dict`, engine → list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmobs.instrument.guard import guard
from llmobs.instrument.patch import find, wrap

#: What loads the plugins of `vllm.stat_logger_plugins`. The name of the group is a constant from 0.12 on only.
PLUGINS = "vllm.v1.metrics.loggers:load_stat_logger_plugin_factories"


def install() -> bool:
    """Hook AsyncLLM where this version needs it; return whether it did."""
    if find(PLUGINS) is not None:
        return False
    hook = guard("stat_logger")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            hook.run(attach, self)

        return initialise

    return wrap("vllm.v1.engine.async_llm:AsyncLLM.__init__", hook, make)


def attach(engine: Any) -> None:
    """Add our stat logger to an AsyncLLM that has its loggers already."""
    from llmobs.instrument.stat_logger import StatLogger

    manager = getattr(engine, "logger_manager", None)
    per_engine = getattr(manager, "per_engine_logger_dict", None)
    if per_engine is None:
        per_engine = dict(enumerate(getattr(engine, "stat_loggers", None) or ()))
    for index, loggers in per_engine.items():
        ours = StatLogger(engine.vllm_config, index)
        loggers.append(ours)
        ours.log_engine_initialized()
