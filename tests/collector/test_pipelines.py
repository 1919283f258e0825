"""A wrong Collector pipeline is an error when it is generated, not when the Collector starts."""

from __future__ import annotations

import dataclasses

import pytest

from llmobs.collector import collectors
from llmobs.collector.checks import check, seconds
from llmobs.collector.components import KINDS
from llmobs.collector.model import Collector, Component, Pipeline
from llmobs.collector.settings import Settings
from llmobs.errors import GenerateError

_MADE = collectors(Settings())


def _gateway() -> Collector:
    return _MADE["gateway"]


def _with_pipeline(collector: Collector, pipeline_id: str, **changes: object) -> Collector:
    pipelines = tuple(
        dataclasses.replace(p, **changes) if p.id == pipeline_id else p  # type: ignore[arg-type]
        for p in collector.pipelines
    )
    return dataclasses.replace(collector, pipelines=pipelines)


def _with_settings(collector: Collector, component_id: str, **settings: object) -> Collector:
    components = tuple(
        dataclasses.replace(c, settings={**c.settings, **settings}) if c.id == component_id else c
        for c in collector.components
    )
    return dataclasses.replace(collector, components=components)


def _refused(collector: Collector, *words: str) -> None:
    with pytest.raises(GenerateError) as caught:
        check(collector)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", list(_MADE))
def test_what_we_ship_is_sound(name: str) -> None:
    """Each shipped configuration passes every rule."""
    check(_MADE[name])


@pytest.mark.parametrize("name", list(_MADE))
def test_every_pipeline_keeps_the_order_of_processors(name: str) -> None:
    """The limiter is first and the rest follow in the order of their places, in every pipeline that is shipped."""
    for pipeline in _MADE[name].pipelines:
        types = [i.partition("/")[0] for i in pipeline.processors]
        assert types[0] == "memory_limiter"
        places = [KINDS[t].place for t in types]
        assert places == sorted(places)


def test_span_metrics_are_made_before_sampling() -> None:
    """The pipeline that feeds the span metrics is the way in, and sampling happens only after it."""
    feeding = [p for p in _gateway().pipelines if "span_metrics" in p.exporters]
    assert [p.id for p in feeding] == ["traces/in"]
    assert "tail_sampling" not in feeding[0].processors


def test_a_processor_that_is_not_defined_is_refused() -> None:
    """Using an undefined processor names it and the nearest defined one."""
    wrong = _with_pipeline(_gateway(), "logs", processors=("memory_limiter", "transform/redct"))
    _refused(wrong, "'transform/redct'", "not defined", "did you mean 'transform/redact'")


def test_a_pipeline_without_exporter_is_refused() -> None:
    """A pipeline that goes nowhere is an error."""
    _refused(_with_pipeline(_gateway(), "logs", exporters=()), "'logs'", "no exporter")


def test_a_pipeline_without_receiver_is_refused() -> None:
    """A pipeline that nothing enters is an error."""
    _refused(_with_pipeline(_gateway(), "logs", receivers=()), "'logs'", "no receiver")


def test_memory_limiter_must_be_first() -> None:
    """Work done before the limiter is work that cannot be refused."""
    wrong = _with_pipeline(_gateway(), "logs", processors=("k8s_attributes", "memory_limiter", "transform/redact"))
    _refused(wrong, "begin with memory_limiter")


def test_context_comes_before_sampling() -> None:
    """Sampling regroups spans, after which the sender's address is gone."""
    wrong = _with_pipeline(
        _gateway(), "traces/sampled", processors=("memory_limiter", "tail_sampling", "k8s_attributes")
    )
    _refused(wrong, "k8s_attributes must come before tail_sampling")


def test_span_metrics_after_sampling_are_refused() -> None:
    """Span metrics fed by a sampled pipeline would count only what was kept."""
    wrong = _with_pipeline(_gateway(), "traces/sampled", exporters=("otlp_grpc/tempo", "span_metrics"))
    _refused(wrong, "span_metrics after tail_sampling")


def test_span_metrics_behind_a_sampled_connector_are_refused() -> None:
    """The rule also holds when a connector lies between the sampling and the span metrics."""
    wrong = _with_pipeline(_gateway(), "traces/in", processors=("memory_limiter", "transform/redact", "tail_sampling"))
    _refused(wrong, "span_metrics after tail_sampling")


def test_an_unused_component_is_refused() -> None:
    """A component that no pipeline uses is a forgotten one."""
    wrong = dataclasses.replace(_gateway(), components=(*_gateway().components, Component("exporter", "debug")))
    _refused(wrong, "'debug'", "no pipeline uses it")


def test_a_misspelt_setting_is_refused() -> None:
    """A setting that the component does not have names the nearest one that it has."""
    wrong = _with_settings(_gateway(), "tail_sampling", decision_wiat="30s")
    _refused(wrong, "'decision_wiat'", "did you mean 'decision_wait'")


def test_an_unknown_component_type_is_refused() -> None:
    """A misspelt type names the nearest known one."""
    wrong = dataclasses.replace(
        _gateway(), components=(*_gateway().components, Component("processor", "memory_limter"))
    )
    _refused(wrong, "'memory_limter'", "did you mean 'memory_limiter'")


def test_a_component_in_the_wrong_role_is_refused() -> None:
    """An exporter cannot be configured as a processor."""
    wrong = dataclasses.replace(_gateway(), components=(*_gateway().components, Component("processor", "debug")))
    _refused(wrong, "'debug'", "is a exporter")


def test_a_queue_without_storage_is_refused() -> None:
    """An exporter whose queue dies with the process loses data at every restart."""
    _refused(_with_settings(_gateway(), "otlp_grpc/tempo", sending_queue={"queue_size": 10}), "sending_queue.storage")


def test_storage_that_is_not_defined_is_refused() -> None:
    """A queue in an undefined extension does not start."""
    wrong = _with_settings(_gateway(), "otlp_grpc/tempo", sending_queue={"storage": "file_storage/other"})
    _refused(wrong, "'file_storage/other'", "not defined")


def test_a_signal_that_a_component_does_not_know_is_refused() -> None:
    """Tail sampling of logs does not exist."""
    wrong = _with_pipeline(_gateway(), "logs", processors=("memory_limiter", "transform/redact", "tail_sampling"))
    _refused(wrong, "cannot process logs")


def test_a_decision_earlier_than_the_longest_request_is_refused() -> None:
    """A decision made while a request still runs is made without its spans."""
    _refused(_with_settings(_gateway(), "tail_sampling", decision_wait="30s"), "30 s", "600 s")


def test_a_numeric_policy_without_maximum_is_refused() -> None:
    """The sampler never matches a minimum without a maximum."""
    policy = {"name": "p", "type": "numeric_attribute", "numeric_attribute": {"key": "k", "min_value": 1}}
    _refused(_with_settings(_gateway(), "tail_sampling", policies=[policy]), "min_value and max_value")


def test_a_decision_cache_smaller_than_the_traces_is_refused() -> None:
    """A cache that forgets before the traces do splits late spans from their trace."""
    cache = {"sampled_cache_size": 10, "non_sampled_cache_size": 10}
    _refused(_with_settings(_gateway(), "tail_sampling", decision_cache=cache), "must exceed num_traces")


def test_a_way_in_without_redaction_is_refused() -> None:
    """Spans from outside pass the redaction unless the operator allowed content by name."""
    wrong = _with_pipeline(_gateway(), "traces/in", processors=("memory_limiter", "k8s_attributes"))
    _refused(wrong, "'traces/in'", "transform/redact")


def test_a_connector_that_is_fed_by_nothing_is_refused() -> None:
    """A connector needs a pipeline on both sides."""
    wrong = _with_pipeline(_gateway(), "traces/in", exporters=("forward/sampling",))
    _refused(wrong, "'span_metrics'", "fed by no pipeline")


def test_pipelines_in_a_circle_are_refused() -> None:
    """Two pipelines that feed each other would never end."""
    wrong = _with_pipeline(_gateway(), "traces/sampled", exporters=("otlp_grpc/tempo", "forward/sampling"))
    _refused(wrong, "feeds itself")


def test_content_passes_only_when_it_was_allowed_by_name() -> None:
    """With `content: keep` the redaction is gone; without it, all traces and logs from outside pass it."""
    kept = collectors(Settings(content="keep"))["gateway"]
    assert kept.find("processor", "transform/redact") is None
    for pipeline in _gateway().pipelines:
        if "otlp" in pipeline.receivers and pipeline.signal != "metrics":
            assert "transform/redact" in pipeline.processors


def test_durations_are_read_as_go_writes_them() -> None:
    """Seconds, minutes and hours are understood; anything else is refused with the right spelling."""
    assert (seconds("90s"), seconds("15m"), seconds("2h")) == (90, 900, 7200)
    with pytest.raises(GenerateError, match="90s"):
        seconds("1.5m")


def test_pipelines_of_one_kind_are_named_like_the_collector_names_them() -> None:
    """A second pipeline of a signal is signal/name."""
    assert Pipeline(signal="traces", name="in", receivers=(), processors=(), exporters=()).id == "traces/in"
