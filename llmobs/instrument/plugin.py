"""The general plugin (`vllm.general_plugins`): runs in every process of vLLM, before anything else of it.

An exception here would end that process, so nothing here may raise. It may run several times.
"""

from __future__ import annotations

from typing import Any

from llmobs.instrument.guard import guard, logger
from llmobs.instrument.settings import is_disabled, load

_installed = False


def general() -> None:
    """Place the hooks of this process."""
    global _installed
    if _installed or is_disabled():
        return
    _installed = True
    guard("plugin").run(_install)


def _install() -> None:
    from llmobs.instrument import backend, rundir, vllm_logs
    from llmobs.instrument.patch import when_imported
    from llmobs.instrument.traces import layers

    settings, _ = load()  # problems are said once, by the API server
    if rundir.make() is None:
        logger.warning("llmobs: no temporary folder can be written; engine deaths cannot be told apart by cause")
    backend.install(settings)
    layers.install()
    when_imported("fastapi.applications", _wrap_applications)
    when_imported("vllm.v1.engine.async_llm", _without_plugin_group)
    if settings.log_vllm_json:
        vllm_logs.install()


def _wrap_applications() -> None:
    """Put our middleware around vLLM's application without a flag: FastAPI builds its stack at the first message."""
    from llmobs.instrument.middleware import Outermost
    from llmobs.instrument.patch import wrap

    hook = guard("http")

    def make(original: Any) -> Any:
        def build_middleware_stack(self: Any) -> Any:
            return Outermost(original(self))

        return build_middleware_stack

    wrap("fastapi.applications:FastAPI.build_middleware_stack", hook, make)


def _without_plugin_group() -> None:
    """Before 0.11.1 there is no plugin group for stat loggers: add ours to the engine when it is made."""
    from llmobs.instrument import legacy

    legacy.install()
