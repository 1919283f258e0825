"""Traces without vLLM: settings, sampling, what a bad Collector costs, the cap of token detail, docs/traces.md."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmobs.instrument.outcome import COMPLETED
from llmobs.instrument.record import RequestRecord, TraceContext
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.settings import InstrumentSettings
from llmobs.instrument.traces import layers, names, observer, settings
from llmobs.instrument.traces.context import Sampler
from llmobs.instrument.traces.tokens import FIRST, OUTLIERS, REGULAR, Detail
from tests.instrument.otlp import Receiver

DOC = (Path(__file__).resolve().parents[2] / "docs" / "traces.md").read_text()


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(
        InstrumentSettings(log_stderr=False), model_name="m", engines=[0], static={}, max_model_len=64, version="0.32.0"
    )


def _config() -> Any:
    return SimpleNamespace(observability_config=None, model_config=None, speculative_config=None)


def _request(runtime: Runtime, traces: Any, **more: Any) -> RequestRecord:
    record = RequestRecord("r", "/v1/completions")
    for name, value in more.items():
        setattr(record, name, value)
    traces.started(record, [])
    record.status, record.response_complete, record.ended_at = 200, True, time.monotonic()
    traces.finished(record, runtime.facts(record, COMPLETED))
    return record


def _rows(heading: str) -> set[str]:
    section = DOC.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_the_page_lists_every_variable_span_and_attribute() -> None:
    """docs/traces.md has a row for each, and none for what does not exist."""
    assert _rows("Environment") == set(settings.VARIABLES)
    assert _rows("Attributes") == set(names.ATTRIBUTES)
    assert _rows("Spans of a request") == {names.REQUEST, *names.PHASES}
    assert all(f"`{name}`" in DOC for name in names.SPANS)


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"},
                {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}]
)  # fmt: skip
def test_no_spans_without_an_endpoint_or_when_switched_off(environ: dict[str, str]) -> None:
    """Spans are off by default, and by the standard switches."""
    assert settings.load(environ) == (None, ())


def test_what_cannot_be_used_is_said_and_replaced_by_its_default() -> None:
    """A mistyped value must not stop the server."""
    made, problems = settings.load(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_SAMPLER_ARG": "7", "OTEL_BSP_MAX_QUEUE_SIZE": "many"}
    )
    assert made is not None
    assert (made.ratio, made.queue, len(problems)) == (1.0, 2048, 2)


@pytest.mark.parametrize(
    ("sampler", "argument", "parent", "recorded"),
    [
        ("", "0", None, False),
        ("", "", None, True),
        ("", "0", True, True),
        ("parentbased_always_on", "", False, False),
        ("always_off", "", True, False),
        ("always_on", "", False, True),
    ],
)
def test_the_sampler_of_the_variables_decides(sampler: str, argument: str, parent: bool | None, recorded: bool) -> None:
    """Parent-based by default: the caller's decision wins, the ratio is for traces that begin here."""
    environ = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    made, _ = settings.load(environ)
    assert made is not None
    caller = None if parent is None else TraceContext("f" * 32, None, parent, "b" * 16)
    assert Sampler(made).root(caller).sampled is recorded


def test_a_ratio_records_about_that_share() -> None:
    """A tenth of 5,000 new traces, give or take six standard deviations."""
    made, _ = settings.load({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER_ARG": "0.1"})
    assert made is not None
    sampler = Sampler(made)
    assert 372 < sum(sampler.root(None).sampled for _ in range(5000)) < 628


@pytest.fixture(params=["grpc", "http/protobuf"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver(http=request.param != "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=blue")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield made
    made.stop()


def test_spans_arrive_over_both_protocols_with_the_headers_of_the_variables(
    collector: Receiver, runtime: Runtime
) -> None:
    """gRPC and http/protobuf, told by the standard variables only."""
    record = _request(runtime, observer(runtime, _config()))
    assert record.trace is not None
    assert collector.wait(lambda: collector.trace(record.trace.trace_id if record.trace else ""))
    assert collector.headers[0]["tenant"] == "blue"
    assert runtime.spans_dropped == 0


def _dead() -> tuple[str, Callable[[], None]]:
    return "http://127.0.0.1:9", lambda: None


def _hanging() -> tuple[str, Callable[[], None]]:
    made = Receiver(hang=True)
    return made.url, made.stop


@pytest.mark.parametrize("kind", [_dead, _hanging])
def test_a_collector_that_is_gone_or_hangs_costs_only_counted_drops(
    kind: Callable[[], tuple[str, Callable[[], None]]], runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request waits, memory is bounded, every lost span is counted."""
    url, stop = kind()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    traces: Any = observer(runtime, _config())
    began = time.monotonic()
    for _ in range(300):
        _request(runtime, traces)
    assert time.monotonic() - began < 1.0
    assert runtime.spans_dropped > 0
    traces._pipeline.close(8)
    assert traces._pipeline._waiting == 0
    assert runtime.spans_dropped >= 300
    assert runtime.snapshot().dropped["spans"] == runtime.spans_dropped
    stop()


def test_a_request_that_is_not_recorded_keeps_nothing(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a trace id for its log line and no span."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    record = _request(runtime, observer(runtime, _config()))
    assert record.trace is not None
    assert record.trace.sampled is False


def test_token_detail_is_capped_for_the_longest_answer() -> None:
    """100,000 steps, many of them slow, keep the first ones, a bounded number of others, and count them all."""
    detail = Detail(16)
    output = SimpleNamespace(new_token_ids=[5], new_logprobs=None, events=None)
    for step in range(100_001):
        detail(output, float(step), None if step == 0 else 50.0 if step % 1000 == 0 else 1.0, step)
    kept = [s.position for s in detail.steps()]
    assert kept[:FIRST] == list(range(1, FIRST + 1))
    assert detail.seen == 100_000
    assert FIRST + OUTLIERS < len(kept) == detail.most <= FIRST + REGULAR + OUTLIERS
    assert 1000 in kept


def test_a_step_after_a_preemption_is_no_cache_hit() -> None:
    """The event that vLLM sends with the step's output marks it."""
    detail = Detail(16)
    event = SimpleNamespace(type=SimpleNamespace(name="PREEMPTED"))
    detail(SimpleNamespace(new_token_ids=[5], new_logprobs=None, events=[event]), 1.0, 0.5, 1)
    assert detail.steps()[0].recomputed


class _List(list[Any]):
    """Named as torch's class, which is what is looked for."""


_List.__name__ = "ModuleList"


def test_decoder_layers_are_told_from_a_vision_tower() -> None:
    """The longest list of layers, without that of a vision tower and without placeholders of other ranks."""
    real, hole = SimpleNamespace(parameters=lambda: iter([1])), SimpleNamespace(parameters=lambda: iter([]))
    modules = [("vision.layers", _List([real] * 9)), ("model.layers", _List([hole, real, real]))]
    model = SimpleNamespace(named_modules=lambda: iter(modules))
    assert [i for i, _ in layers.decoder_layers(model)] == [1, 2]
