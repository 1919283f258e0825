"""Put into the processes of a vLLM by `benchmarks.instrument_switch`: SIGUSR2 gives them the mode in BENCH_SWITCH.

Modes: off (no hook of llmobs does anything), observed (one request in ten traced), traced (all of them), and vllm (no
hook, but vLLM's own tracing). Each process then writes the mode into a file of its own, BENCH_SWITCH with its pid.
"""

import os
import signal
import sys
from pathlib import Path

_found = {}  # guard → whether its hook exists in this version
_mode = "off"


def _switch(*_signal):
    global _mode
    file = Path(os.environ["BENCH_SWITCH"])
    _mode = file.read_text()
    guards, runtimes = (sys.modules.get(f"llmobs.instrument.{name}") for name in ("guard", "runtime"))
    if guards is not None:
        for hook in guards.guards().values():
            hook.active = _found.setdefault(hook, hook.active) and _mode in ("observed", "traced")
    runtime = runtimes.get() if runtimes is not None else None
    if runtime is not None:
        _switch_tracing(runtime)
    Path(f"{file}.{os.getpid()}").write_text(_mode)


def _switch_tracing(runtime):
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

    async def is_tracing_enabled(_self):
        return _mode == "vllm"

    AsyncLLM.is_tracing_enabled = is_tracing_enabled
    OutputProcessor.tracing_enabled = property(lambda _self: _mode == "vllm", lambda _self, _value: None)
    for _, finished in runtime.observers.finished:
        traces = finished.__self__
        if traces.name == "traces":
            traces._vllm_traces = False  # the two are never on together here
            traces._sampler._bound = round((0.1 if _mode == "observed" else 1.0) * 2**64)
            traces._sampler._fresh.clear()


if os.environ.get("BENCH_SWITCH"):
    signal.signal(signal.SIGUSR2, _switch)
