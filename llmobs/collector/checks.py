"""The rules a Collector configuration has to keep; breaking one is a GenerateError before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from llmobs.collector.components import KINDS, Signal
from llmobs.collector.model import Collector, Component, Pipeline
from llmobs.collector.text import plain
from llmobs.errors import GenerateError, nearest

#: The processor that removes prompts, completions and other content; every way in passes it.
REDACTION = "transform/redact"

#: Exporters that leave the process; each needs a queue that survives a restart.
_OUTWARD = ("otlp_grpc", "otlp_http", "load_balancing")


def check(collector: Collector) -> Collector:
    """Return `collector` unchanged when it is sound, else raise GenerateError naming the pipeline and the rule."""
    for component in collector.components:
        _component(collector, component)
    for pipeline in collector.pipelines:
        _parts(collector, pipeline)
        _order(collector, pipeline)
    _unused(collector)
    _connections(collector)
    _sampling(collector)
    if not collector.content_allowed:
        _redaction(collector)
    return collector


def _fail(collector: Collector, message: str) -> GenerateError:
    return GenerateError(f"collector configuration {collector.title!r}: {message}")


def _component(collector: Collector, component: Component) -> None:
    kind = KINDS.get(component.type)
    if kind is None:
        raise _fail(collector, f"component type {component.type!r} is not known{nearest(component.type, KINDS)}")
    if kind.role != component.role:
        raise _fail(collector, f"{component.id!r} is used as {component.role}, but it is a {kind.role}")
    if sum(c.role == component.role and c.id == component.id for c in collector.components) > 1:
        raise _fail(collector, f"{component.role} {component.id!r} is defined twice")
    for key in component.settings:
        if key not in kind.settings:
            raise _fail(collector, f"{component.id!r} has no setting {key!r}{nearest(key, kind.settings)}")
    if component.type in _OUTWARD:
        queue = plain(component.settings.get("sending_queue"))
        storage = queue.get("storage") if isinstance(queue, Mapping) else None
        if storage is None:
            raise _fail(collector, f"exporter {component.id!r} has no sending_queue.storage: a restart loses its queue")
        if collector.find("extension", str(storage)) is None:
            raise _fail(collector, f"exporter {component.id!r} stores its queue in {storage!r}, which is not defined")


def _parts(collector: Collector, pipeline: Pipeline) -> None:
    sides = (("receiver", pipeline.receivers), ("processor", pipeline.processors), ("exporter", pipeline.exporters))
    for role, ids in sides:
        if not ids and role != "processor":
            raise _fail(collector, f"pipeline {pipeline.id!r} has no {role}")
        for component_id in ids:
            found = collector.find(role, component_id)  # type: ignore[arg-type]
            if found is None and role != "processor":
                found = collector.find("connector", component_id)
            if found is None:
                known = [c.id for c in collector.components]
                raise _fail(
                    collector,
                    f"pipeline {pipeline.id!r} uses {role} {component_id!r}, which is not defined"
                    f"{nearest(component_id, known)}",
                )
            kind = KINDS[found.type]
            signals: frozenset[Signal] = (
                kind.gives if found.role == "connector" and role == "receiver" else kind.signals
            )
            if pipeline.signal not in signals:
                raise _fail(collector, f"{found.id!r} cannot {_verb(role)} {pipeline.signal} ({pipeline.id!r})")


def _verb(role: str) -> str:
    return {"receiver": "give", "processor": "process", "exporter": "take"}[role]


def _order(collector: Collector, pipeline: Pipeline) -> None:
    types = [component_id.partition("/")[0] for component_id in pipeline.processors]
    if not types or types[0] != "memory_limiter":
        raise _fail(collector, f"pipeline {pipeline.id!r} must begin with memory_limiter, to refuse work early")
    for before, after in zip(types, types[1:]):
        if KINDS[before].place > KINDS[after].place:
            raise _fail(collector, f"pipeline {pipeline.id!r}: {after} must come before {before}")
    if types.count("memory_limiter") > 1:
        raise _fail(collector, f"pipeline {pipeline.id!r} has memory_limiter twice")


def _unused(collector: Collector) -> None:
    used = {i for p in collector.pipelines for i in (*p.receivers, *p.processors, *p.exporters)}
    for component in collector.components:
        if component.role != "extension" and component.id not in used:
            raise _fail(collector, f"{component.role} {component.id!r} is defined, but no pipeline uses it")
        if component.role == "connector":
            if not any(component.id in p.exporters for p in collector.pipelines):
                raise _fail(collector, f"connector {component.id!r} is fed by no pipeline")
            if not any(component.id in p.receivers for p in collector.pipelines):
                raise _fail(collector, f"connector {component.id!r} feeds no pipeline")


def _feeders(collector: Collector, pipeline: Pipeline) -> list[Pipeline]:
    """Return the pipelines whose output reaches `pipeline` through connectors; a circle is an error."""
    found: list[Pipeline] = []
    todo = [pipeline]
    while todo:
        receivers = todo.pop().receivers
        for other in collector.pipelines:
            if any(e in receivers for e in other.exporters if collector.find("connector", e)):
                if other == pipeline:
                    raise _fail(collector, f"pipeline {pipeline.id!r} feeds itself through connectors")
                if other not in found:
                    found.append(other)
                    todo.append(other)
    return found


def _connections(collector: Collector) -> None:
    for pipeline in collector.pipelines:
        path = [pipeline, *_feeders(collector, pipeline)]
        sampled = any(i.startswith("tail_sampling") for p in path for i in p.processors)
        if sampled and any(e.startswith("span_metrics") for e in pipeline.exporters):
            raise _fail(
                collector,
                f"pipeline {pipeline.id!r}: span_metrics after tail_sampling counts only what was kept; feed it before",
            )


def _sampling(collector: Collector) -> None:
    for component in collector.components:
        if component.type != "tail_sampling":
            continue
        settings = plain(component.settings)
        assert isinstance(settings, Mapping)
        wait = seconds(str(settings.get("decision_wait", "30s")))
        if wait <= collector.longest_request_seconds:
            raise _fail(
                collector,
                f"tail sampling decides after {wait} s, but a request may take {collector.longest_request_seconds} s: "
                "raise decision_wait above the longest request",
            )
        cache, traces = settings.get("decision_cache"), settings.get("num_traces", 50_000)
        for size in cache.values() if isinstance(cache, Mapping) else ():
            if int(str(size)) <= int(str(traces)):
                raise _fail(collector, f"decision_cache {size} must exceed num_traces {traces}")
        for policy in _policies(settings.get("policies")):
            numeric = policy.get("numeric_attribute")
            if isinstance(numeric, Mapping) and not {"min_value", "max_value"} <= numeric.keys():
                raise _fail(
                    collector,
                    f"sampling policy {policy.get('name')!r}: numeric_attribute needs min_value and max_value: "
                    "a minimum alone never matches",
                )


def _policies(value: object) -> list[Mapping[str, object]]:
    return [p for p in value if isinstance(p, Mapping)] if isinstance(value, list) else []


def seconds(duration: str) -> int:
    """Return a Go duration of whole seconds, minutes or hours as seconds. Raises GenerateError for another form."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(duration[-1:])
    if factor is None or not duration[:-1].isdigit():
        raise GenerateError(f"duration {duration!r} is not a whole number with s, m or h; write it as 90s or 15m")
    return int(duration[:-1]) * factor


def _redaction(collector: Collector) -> None:
    for pipeline in collector.pipelines:
        outside = [r for r in pipeline.receivers if collector.find("receiver", r)]
        if pipeline.signal != "metrics" and outside and REDACTION not in pipeline.processors:
            raise _fail(
                collector,
                f"pipeline {pipeline.id!r} takes {pipeline.signal} from outside without {REDACTION!r}; prompts and "
                "completions could leave (allow that by name with collector.content: keep)",
            )
