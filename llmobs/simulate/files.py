"""Scenario files: finding them, reading them, and saying what is wrong with one.

Unknown keys and impossible values are a ConfigError that names the place and, where there is one, the nearest key.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from llmobs.errors import ConfigError, nearest
from llmobs.simulate.scenario import INSTANT, LASTING, Scenario, Traffic

#: The scenario of `llmobs simulate` and of `make run` when nothing else is asked for.
DEFAULT = "demo"


def names() -> list[str]:
    """Return the names of the packaged scenarios, sorted."""
    folder = resources.files(__package__) / "scenarios"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load(name: str) -> Scenario:
    """Return the packaged scenario `name`, or the one in the file it names (with a slash or ending in .yaml, .yml).

    Raises ConfigError when there is none, or something in it cannot be used.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        try:
            return parse(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"scenario {name}: cannot be read ({error}); check the path") from None
    if name not in names():
        raise ConfigError(f"scenario {name!r} does not exist{nearest(name, names())}; there are: {', '.join(names())}")
    text = (resources.files(__package__) / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    return dataclasses.replace(parse(text, f"scenario {name}"), name=name)


def parse(text: str, where: str) -> Scenario:
    """Return the scenario written in `text`; `where` names it in messages. Raises ConfigError."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{where}:{line} not valid YAML ({getattr(error, 'problem', None) or error})") from None
    scenario: Scenario = _build(Scenario, document or {}, where)
    _check(scenario, where)
    return scenario if scenario.name else dataclasses.replace(scenario, name=Path(where).stem)


def _build(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        keys = ", ".join(f.name for f in dataclasses.fields(cls))
        raise ConfigError(f"{where}: expected keys ({keys}), not {value!r:.80}")
    hints = typing.get_type_hints(cls)
    for key in value:
        if key not in hints:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(str(key), hints)}")
    try:
        return cls(**{key: _convert(hints[key], part, f"{where}: {key}") for key, part in value.items()})
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(arguments[0], value, where)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected a list, not {value!r:.80}")
        return tuple(_convert(arguments[0], part, f"{where}[{i}]") for i, part in enumerate(value))
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            raise ConfigError(f"{where}: expected {'true or false' if hint is bool else 'text'}, not {value!r:.80}")
        return value
    if isinstance(value, str):
        # YAML 1.1 reads 1e9 as text.
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{where}: expected a number, not {value!r:.80}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}: expected a number, not {value!r:.80}")
    if hint is int and value != int(value):
        raise ConfigError(f"{where}: expected a whole number, not {value!r}")
    if value < 0:
        raise ConfigError(f"{where}: {value!r} is below 0")
    return hint(value)


def _check(scenario: Scenario, where: str) -> None:
    if not scenario.models:
        raise ConfigError(f"{where}: models: at least one model is needed")
    model_names = [model.name for model in scenario.models]
    if len(set(model_names)) < len(model_names):
        raise ConfigError(f"{where}: models: two have the same name; give each its own")
    for i, model in enumerate(scenario.models):
        place = f"{where}: models[{i}]"
        for key, value in {
            "engines": model.engines,
            "engine: max_num_seqs": model.engine.max_num_seqs,
            "engine: max_num_batched_tokens": model.engine.max_num_batched_tokens,
            "engine: max_model_len": model.engine.max_model_len,
            "engine: kv_blocks": model.engine.kv_blocks,
            "engine: block_size": model.engine.block_size,
            "engine: step: base_seconds": model.engine.step.base_seconds,
            "traffic: day_seconds": model.traffic.day_seconds,
            "traffic: prefix: families": model.traffic.prefix.families,
        }.items():
            if value <= 0:
                raise ConfigError(f"{place}: {key}: {value} must be above 0")
        for field in dataclasses.fields(Traffic):
            if field.name.endswith("_ratio") and getattr(model.traffic, field.name) > 1:
                raise ConfigError(f"{place}: traffic: {field.name}: a ratio is at most 1")
    for i, event in enumerate(scenario.events):
        kinds = (*LASTING, *INSTANT)
        if event.kind not in kinds:
            hint = nearest(event.kind, kinds)
            raise ConfigError(f"{where}: events[{i}]: kind: {event.kind!r} is not one of {', '.join(kinds)}{hint}")
        if event.every is not None and event.every <= 0:
            raise ConfigError(f"{where}: events[{i}]: every: must be above 0")
        if event.model is not None and event.model not in model_names:
            hint = nearest(event.model, model_names)
            raise ConfigError(f"{where}: events[{i}]: model: no model is called {event.model!r}{hint}")
