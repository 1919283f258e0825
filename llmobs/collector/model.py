"""A Collector configuration as values, from which the YAML is made once `llmobs.collector.checks` found it sound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from llmobs.collector.components import KINDS, Role, Signal, type_name
from llmobs.collector.text import Noted, Value

#: IPv6-only clusters set it to "[::]".
_METRICS_HOST = "${env:LLMOBS_METRICS_HOST:-0.0.0.0}"

_SECTIONS: tuple[tuple[str, Role], ...] = (
    ("extensions", "extension"),
    ("receivers", "receiver"),
    ("processors", "processor"),
    ("connectors", "connector"),
    ("exporters", "exporter"),
)


@dataclass(frozen=True, slots=True)
class Component:
    """One configured component. `id` is ``type`` or ``type/name``, with today's type name."""

    role: Role
    id: str
    settings: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    #: Why it is there and why it is set as it is; becomes a comment.
    note: str = ""

    @property
    def type(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline: what comes in, what is done to it in this order, and where it goes. The parts are ids."""

    signal: Signal
    receivers: tuple[str, ...]
    processors: tuple[str, ...]
    exporters: tuple[str, ...]
    name: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """``signal`` or ``signal/name``, as in the configuration."""
        return f"{self.signal}/{self.name}" if self.name else self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """A whole configuration. `longest_request_seconds` is what tail sampling has to outlast."""

    title: str
    components: tuple[Component, ...]
    pipelines: tuple[Pipeline, ...]
    longest_request_seconds: int
    #: The operator switched content on by name; without that every way in must pass the redaction.
    content_allowed: bool = False

    def find(self, role: Role, component_id: str) -> Component | None:
        """Return the component of this role and id, or None."""
        return next((c for c in self.components if c.role == role and c.id == component_id), None)

    def document(self, release: tuple[int, int]) -> dict[str, Value]:
        """Return the configuration for a Collector of this release (major, minor), ready to be written."""
        out: dict[str, Value] = {}
        for section, role in _SECTIONS:
            members = [c for c in self.components if c.role == role]
            if members:
                out[section] = {_name(c.id, release): _settings(c, release) for c in members}
        out["service"] = {
            "extensions": [_name(c.id, release) for c in self.components if c.role == "extension"],
            "telemetry": {
                "metrics": {
                    "level": "normal",
                    "readers": Noted(
                        "The Collector's own metrics; watch otelcol_exporter_enqueue_failed_* and\n"
                        "otelcol_processor_refused_*: what they count was lost.",
                        [{"pull": {"exporter": {"prometheus": {"host": _METRICS_HOST, "port": 8888}}}}],
                    ),
                }
            },
            "pipelines": {p.id: _pipeline(p, release) for p in self.pipelines},
        }
        return out


def _name(component_id: str, release: tuple[int, int]) -> str:
    kind, slash, name = component_id.partition("/")
    return type_name(kind, release) + slash + name if kind in KINDS else component_id


def _settings(component: Component, release: tuple[int, int]) -> Value:
    settings: Value = {key: _storage(value, release) for key, value in component.settings.items()}
    return Noted(component.note, settings) if component.note else settings


def _storage(value: Value, release: tuple[int, int]) -> Value:
    """Return the value with references to other components (a queue's storage) under the release's names."""
    if isinstance(value, Noted):
        return dataclasses.replace(value, value=_storage(value.value, release))
    if isinstance(value, Mapping) and isinstance(value.get("storage"), str):
        return {**value, "storage": _name(str(value["storage"]), release)}
    return value


def _pipeline(pipeline: Pipeline, release: tuple[int, int]) -> Value:
    value: Value = {
        "receivers": [_name(i, release) for i in pipeline.receivers],
        "processors": [_name(i, release) for i in pipeline.processors],
        "exporters": [_name(i, release) for i in pipeline.exporters],
    }
    return Noted(pipeline.note, value) if pipeline.note else value
