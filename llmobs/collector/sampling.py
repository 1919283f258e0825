"""Which traces are worth keeping: the policies of the gateway's tail sampling.

A trace is kept when one policy says so. Thresholds on latency are OTTL conditions, because ``numeric_attribute``
compares integers only and vLLM's latencies are float seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.collector.settings import Settings, Slow
from llmobs.collector.text import Noted, Value

#: Seconds after the longest request at which the decision falls: spans arrive batched and over a network.
MARGIN_SECONDS = 30

_TTFT = 'attributes["gen_ai.latency.time_to_first_token"]'
_DECODE = 'attributes["gen_ai.latency.time_in_model_decode"]'
_TOKENS = 'attributes["gen_ai.usage.output_tokens"]'
_MODEL = 'attributes["gen_ai.request.model"]'


def policies(settings: Settings) -> list[Value]:
    """Return the policies, most important first."""
    return [
        Noted("Every failure, out of memory included: its spans have status ERROR.", _errors()),
        Noted("Out of memory by name, should a span of ours carry the reason without the status.", _oom()),
        *_slow(settings),
        Noted("Preempted requests: they paid for a full KV cache.", _preempted()),
        Noted("Canaries, so that two versions can be compared trace by trace.", _canary(settings)),
        Noted("Whoever asked for detail wants to see it.", _detail()),
        Noted("A small share of the rest, as the picture of a normal request.", _rest(settings)),
    ]


def _errors() -> Value:
    return {"name": "errors", "type": "status_code", "status_code": {"status_codes": ["ERROR"]}}


def _oom() -> Value:
    return _string("oom", "error.type", ("oom",))


def _string(name: str, key: str, values: tuple[str, ...]) -> Value:
    return {"name": name, "type": "string_attribute", "string_attribute": {"key": key, "values": list(values)}}


def _slow(settings: Settings) -> Iterator[Value]:
    models = list(settings.slow_by_model)
    yield Noted(
        "Slow first token, slow tokens after it: the default for every model without limits of its own.",
        _condition("slow", [_exceeds(settings.slow, _others(models))]),
    )
    for model in models:
        limits = settings.slow_by_model[model]
        yield _condition(f"slow {model}", [_exceeds(limits, f'{_MODEL} == "{_escaped(model)}"')])


def _others(models: list[str]) -> str:
    return " and ".join(f'{_MODEL} != "{_escaped(model)}"' for model in models)


def _exceeds(limits: Slow, scope: str) -> str:
    first = f"({_TTFT} != nil and {_TTFT} > {limits.time_to_first_token!r})"
    # Mean time per output token after the first; Double() because OTTL does not mix integers and floats.
    step = (
        f"({_DECODE} != nil and {_TOKENS} != nil and {_TOKENS} > 1 and "
        f"{_DECODE} > {limits.inter_token!r} * (Double({_TOKENS}) - 1.0))"
    )
    either = f"({first} or {step})"
    return f"{scope} and {either}" if scope else either


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _condition(name: str, spans: list[Value]) -> Value:
    return {"name": name, "type": "ottl_condition", "ottl_condition": {"error_mode": "ignore", "span": spans}}


def _preempted() -> Value:
    numeric: Value = {"key": "llmobs.preemptions", "min_value": 1, "max_value": 2**31 - 1}
    return {"name": "preempted", "type": "numeric_attribute", "numeric_attribute": numeric}


def _canary(settings: Settings) -> Value:
    return _string("canary", settings.canary_attribute, settings.canary_values)


def _detail() -> Value:
    return _condition("token detail", ['name == "llm.decode.step"', 'name == "llm.engine.step"'])


def _rest(settings: Settings) -> Value:
    return {
        "name": "a share of the rest",
        "type": "probabilistic",
        "probabilistic": {"sampling_percentage": settings.keep_percent},
    }
