"""Layer detail: one engine step in N becomes a trace with a span per decoder layer. Runs in the worker process.

Forward hooks are put on the decoder layers for the one step and taken off again, so that the others cost a counter.
On CPU they read the clock; on GPU they record CUDA events, which are read later, in the pipeline's thread, when the
last of them has happened: the step never waits for the device. Compiled or captured models do not run Python per
layer, so this needs ``--enforce-eager``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from llmobs import __version__
from llmobs.instrument import rundir
from llmobs.instrument.guard import Guard, guard, logger
from llmobs.instrument.patch import when_imported, wrap
from llmobs.instrument.traces import names
from llmobs.instrument.traces.settings import TraceSettings, load

if TYPE_CHECKING:
    from llmobs.instrument.traces.encode import Span

_IDS = 64
#: Seconds that the pipeline's thread waits for the device before it gives a step up.
_DEVICE_SECONDS = 5.0


def install() -> None:
    """Put the hook in place where the operator asked for layers; a process without a worker pays nothing."""
    settings, _ = load()
    if settings is None or not settings.layers:
        return
    layers = _Layers(settings)
    hook = guard("layers")
    for each in (hook, guard("traces_build"), guard("traces_encode")):
        each.on_failure = rundir.report_hook

    def patch() -> None:
        wrap("vllm.v1.worker.gpu_worker:Worker.execute_model", hook, lambda f: _around(f, hook, layers))

    when_imported("vllm.v1.worker.gpu_worker", patch)


def _around(original: Callable[..., Any], hook: Guard, layers: _Layers) -> Callable[..., Any]:
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        step = hook.run(layers.begin, self, scheduler_output)
        try:
            return original(self, scheduler_output, *args, **kwargs)
        finally:
            if step is not None:
                hook.run(layers.end, step)

    return execute_model


class _Moments(NamedTuple):
    """Index of a layer, and its start and end: Unix nanoseconds, or CUDA events."""

    layer: int
    start: Any
    end: Any


class _Step:
    """A step that is being followed."""

    def __init__(self, attributes: dict[str, Any], *, cuda: bool) -> None:
        self.attributes = attributes
        self.moments: list[_Moments] = []
        self.handles: list[Any] = []
        self.started: dict[int, Any] = {}
        self.now: Callable[[], Any] = _event if cuda else time.time_ns
        self.cuda = cuda
        self.base: Any = self.now()
        self.start = time.time_ns()
        self.end = self.start


class _Layers:
    """Counts the steps of this worker and follows one in N."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._count = 0
        self._dropped = 0
        self._layers: list[tuple[int, Any]] | None = None
        self._pipeline: Any = None

    def begin(self, worker: Any, scheduled: Any) -> _Step | None:
        """Return the step to be followed, with hooks on the layers, or None for the others."""
        tokens = scheduled.total_num_scheduled_tokens
        if not tokens:
            return None
        self._count += 1
        if self._count % self._settings.layers:
            return None
        if self._layers is None:
            self._layers = self._find(worker)
        if not self._layers:
            return None
        ids = list(scheduled.num_scheduled_tokens)
        parallel = worker.vllm_config.parallel_config
        cuda = next(self._layers[0][1].parameters()).is_cuda
        step = _Step(
            {
                "llmobs.step.index": self._count,
                "llmobs.step.requests": len(ids),
                "llmobs.step.prefill_requests": len(scheduled.scheduled_new_reqs),
                "llmobs.step.tokens": tokens,
                "llmobs.step.request_ids": ids[:_IDS],
                "llmobs.step.request_ids.dropped": max(0, len(ids) - _IDS),
                "llmobs.engine": int(getattr(parallel, "data_parallel_rank", 0) or 0),
                "llmobs.rank": int(getattr(worker, "rank", 0) or 0),
                "llmobs.clock": "cuda_event" if cuda else "wall",
            },
            cuda=cuda,
        )
        for index, layer in self._layers:
            step.handles.append(layer.register_forward_pre_hook(_before(step, index)))
            step.handles.append(layer.register_forward_hook(_after(step, index)))
        return step

    def end(self, step: _Step) -> None:
        """Take the hooks off and hand the step to the pipeline."""
        for handle in step.handles:
            handle.remove()
        step.end = time.time_ns()
        if step.moments:
            self._pipeline.put(len(step.moments) + 1, lambda: _spans(step))

    def _find(self, worker: Any) -> list[tuple[int, Any]]:
        """Return the decoder layers, and make the pipeline; none, and say why, where they cannot be followed."""
        config = worker.vllm_config
        if int(getattr(worker, "rank", 0) or 0) % int(config.parallel_config.tensor_parallel_size):
            return []  # the other ranks of a tensor-parallel group run the same layers at the same time
        if not config.model_config.enforce_eager:
            logger.warning("llmobs: no layer detail: the model is compiled or captured; it needs --enforce-eager")
            return []
        found = decoder_layers(worker.get_model())
        if not found:
            logger.warning("llmobs: no layer detail: no list of decoder layers was found in the model")
            return []
        from llmobs.instrument.traces import export

        instance = rundir.instance(rundir.make())
        head = export.head({"service.instance.id": f"{instance}-worker-{os.getpid()}", "llmobs.version": __version__})
        self._pipeline = export.Pipeline(self._settings, head, self._drop)
        logger.info("llmobs: layer detail: one step in %d, %d layers", self._settings.layers, len(found))
        return found

    def _drop(self, count: int) -> None:
        self._dropped += count
        rundir.write(rundir.make(), f"spans-dropped-{os.getpid()}", self._dropped)


def decoder_layers(model: Any) -> list[tuple[int, Any]]:
    """Return (index, module) of the decoder layers: the longest list called layers, h or blocks.

    Vision and audio towers do not count. Under pipeline parallelism the list has placeholders for the layers of other
    ranks; they are left out.
    """
    best: list[tuple[int, Any]] = []
    for name, module in model.named_modules():
        if type(module).__name__ != "ModuleList" or name.rpartition(".")[2] not in ("layers", "h", "blocks"):
            continue
        if "vision" in name or "visual" in name or "audio" in name:
            continue
        own = [(i, m) for i, m in enumerate(module) if next(m.parameters(), None) is not None]
        if len(own) > len(best):
            best = own
    return best


def _before(step: _Step, index: int) -> Callable[..., None]:
    def before(module: Any, inputs: Any) -> None:
        step.started[index] = step.now()

    return before


def _after(step: _Step, index: int) -> Callable[..., None]:
    def after(module: Any, inputs: Any, output: Any) -> None:
        start = step.started.pop(index, None)
        if start is not None:
            step.moments.append(_Moments(index, start, step.now()))

    return after


def _event() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _spans(step: _Step) -> list[Span]:
    from llmobs.instrument.traces.context import new_span_ids, new_trace_id
    from llmobs.instrument.traces.encode import Span

    trace_id = new_trace_id()
    times = _times(step)
    root, *ids = new_span_ids(1 + len(times))
    end = max(step.end, max(stop for _, _, stop in times))
    spans = [Span(names.ENGINE_STEP, trace_id, root, None, step.start, end, step.attributes)]
    for span_id, (index, start, stop) in zip(ids, times):
        attributes = {"llmobs.layer.index": index}
        spans.append(Span(names.LAYER.format(i=index), trace_id, span_id, root, start, max(start, stop), attributes))
    return spans


def _times(step: _Step) -> list[tuple[int, int, int]]:
    if not step.cuda:
        return [(m.layer, m.start, m.end) for m in step.moments]
    last = step.moments[-1].end
    deadline = time.monotonic() + _DEVICE_SECONDS
    while not last.query():
        if time.monotonic() > deadline:
            raise TimeoutError("the device did not finish the step in time")
        time.sleep(0.001)

    def ns(event: Any) -> int:
        milliseconds: float = step.base.elapsed_time(event)
        return step.start + round(milliseconds * 1e6)

    return [(m.layer, ns(m.start), ns(m.end)) for m in step.moments]
