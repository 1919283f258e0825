"""Hooks on vLLM's OutputProcessor, in the API server: they link sequences to requests and see every step.

The interfaces vLLM offers carry neither the request behind a first token nor an aborted one. All hooks only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llmobs.instrument import record as records
from llmobs.instrument import runtime as runtimes
from llmobs.instrument.guard import Guard, guard
from llmobs.instrument.patch import wrap
from llmobs.instrument.record import RequestRecord, SequenceRecord

_PROCESSOR = "vllm.v1.engine.output_processor:OutputProcessor."

#: Token positions in the message being processed, one for each inter-token time that vLLM is about to note, in the
#: same order; `record()` takes them.
positions: list[int] = []


def install() -> dict[str, bool]:
    """Put the hooks in place; return which of them this version of vLLM has."""
    sequences, steps, death = guard("sequences"), guard("steps"), guard("engine_death")
    found = {
        "sequences": wrap(_PROCESSOR + "add_request", sequences, lambda f: _after_add(f, sequences))
        and wrap(_PROCESSOR + "_update_stats_from_finished", sequences, lambda f: _after_finish(f, sequences))
        and wrap(_PROCESSOR + "abort_requests", sequences, lambda f: _around_abort(f, sequences)),
        "steps": wrap(_PROCESSOR + "process_outputs", steps, lambda f: _before_process(f, steps)),
        "engine_death": wrap(_PROCESSOR + "propagate_error", death, lambda f: _before_propagate(f, death)),
    }
    shutdown = guard("shutdown")
    found["shutdown"] = wrap(
        "vllm.v1.engine.async_llm:AsyncLLM.shutdown", shutdown, lambda f: _before_shutdown(f, shutdown)
    )
    for name, present in found.items():
        if not present:
            guard(name).active = False
    return found


def _before_shutdown(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook.run(_stopping)
        return original(self, *args, **kwargs)

    return shutdown


def _stopping() -> None:
    runtime = runtimes.get()
    if runtime is not None:
        runtime.settle()
        runtime.stopping = True


def _after_add(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, request, *args, **kwargs)
        hook.run(_added, self, request)
        return result

    return add_request


def _added(processor: Any, request: Any) -> None:
    runtime = runtimes.get()
    if runtime is None or request.request_id in runtime.sequences:
        return  # no engine yet, or a further piece of a streaming input
    state = processor.request_states.get(request.request_id)
    if state is None:
        return
    record = records.current.get()
    if record is None:
        record = RequestRecord(getattr(state, "external_req_id", None) or request.request_id, None, http=False)
        runtime.begin(record, [])
    sequence = SequenceRecord(record, state, time.monotonic(), getattr(request, "sampling_params", None))
    record.sequences.append(sequence)
    runtime.sequences[request.request_id] = sequence
    if record.wants_detail:
        for hook, submitted in runtime.observers.submitted:
            hook.run(submitted, record, sequence)
        if sequence.detail is not None:
            runtime.detailed[request.request_id] = sequence


def _after_finish(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def _update_stats_from_finished(self: Any, req_state: Any, finish_reason: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, req_state, finish_reason, *args, **kwargs)
        hook.run(_finished, req_state.request_id, finish_reason)
        return result

    return _update_stats_from_finished


def _finished(request_id: str, reason: Any) -> None:
    runtime = runtimes.get()
    sequence = runtime.sequences.pop(request_id, None) if runtime is not None else None
    if runtime is None or sequence is None:
        return
    if sequence.detail is not None:
        runtime.detailed.pop(request_id, None)
    sequence.reason = reason
    record = sequence.request
    if not record.http and not record.unfinished:
        record.ended_at = time.monotonic()
        runtime.end(record, None)


def _around_abort(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def abort_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        aborted = original(self, *args, **kwargs)
        hook.run(_aborted, aborted)
        return aborted

    return abort_requests


def _aborted(request_ids: list[str]) -> None:
    for request_id in request_ids:
        _finished(request_id, "abort")


def _before_process(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def process_outputs(self: Any, outputs: Any, timestamp: Any = None, *args: Any, **kwargs: Any) -> Any:
        hook.run(_step, outputs, timestamp, self.request_states)
        return original(self, outputs, timestamp, *args, **kwargs)

    return process_outputs


def _step(outputs: list[Any], timestamp: float | None, states: dict[str, Any]) -> None:
    """Note each sequence's token position, before vLLM moves it on. The hot path: once per token."""
    runtime = runtimes.get()
    if runtime is None or timestamp is None:
        return
    if runtime.clock_offset is None:
        # On one host the engine core's monotonic clock is ours; on another host it has another origin.
        difference = time.monotonic() - timestamp
        runtime.clock_offset = 0.0 if -0.001 <= difference < 60.0 else difference
    if runtime.detailed:
        _detail(runtime.detailed, outputs, timestamp, states)
    find = states.get
    # The condition is vLLM's for an inter-token time; that of a first token is known when its events are: `_finished`.
    positions.extend(
        [
            state.stats.num_generation_tokens
            for output in outputs
            if (state := find(output.request_id)) is not None and not state.is_prefilling
        ]
    )


def _detail(detailed: dict[str, SequenceRecord], outputs: list[Any], timestamp: float, states: dict[str, Any]) -> None:
    hook = guard("token_detail")
    for output in outputs:
        sequence, state = detailed.get(output.request_id), states.get(output.request_id)
        if sequence is not None and state is not None:
            latency = None if state.is_prefilling else timestamp - state.stats.last_token_ts
            hook.run(sequence.detail, output, timestamp, latency, state.stats.num_generation_tokens)


def _before_propagate(original: Callable[..., Any], hook: Guard) -> Callable[..., Any]:
    def propagate_error(self: Any, error: Exception, *args: Any, **kwargs: Any) -> Any:
        hook.run(_died, error)
        return original(self, error, *args, **kwargs)

    return propagate_error


def _died(error: Exception) -> None:
    runtime = runtimes.get()
    if runtime is not None and not runtime.stopping:  # a server that is stopped takes its engine along on purpose
        from llmobs.instrument.death import engine_died

        engine_died(runtime, error)
