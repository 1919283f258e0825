"""The knobs of the dashboards: the `dashboards` part of the user's YAML, and `--without`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from llmobs.dashboards.panels import Part
from llmobs.errors import ConfigError, nearest
from llmobs.generate import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user may change without touching code.

    `title_prefix` stands before each title and `uid_prefix` before each uid, so that two sets can live in one Grafana.
    `folder` is the Grafana folder of the ConfigMaps. `variables` are labels that Prometheus adds from outside; each
    becomes a variable and a matcher of every query. `datasource` and `tempo_datasource` are the data sources chosen
    at first. `version_labels` are the labels by which the canary board splits, the first one by default.
    """

    title_prefix: str = ""
    uid_prefix: str = ""
    folder: str = "vLLM"
    tags: tuple[str, ...] = ("llmobs", "vllm")
    variables: tuple[str, ...] = ("cluster",)
    datasource: str = ""
    tempo_datasource: str = ""
    version_labels: tuple[str, ...] = ("version", "canary", "model_id")
    refresh: str = "30s"
    without: frozenset[Part] = frozenset()

    @property
    def link_tag(self) -> str:
        """The tag by which the boards find one another."""
        return self.tags[0]

    def path(self, uid: str) -> str:
        """The address of a board below Grafana's root."""
        return f"/d/{self.uid_prefix}{uid}"


def load(options: Options) -> Settings:
    """Return the settings of a run. Raises ConfigError with file, wrong key, and the nearest right one."""
    without = _without(options.without)
    if options.config is None:
        return Settings(without=without)
    found = _section(options.config)
    known = {f.name: f for f in dataclasses.fields(Settings) if f.name != "without"}
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in known:
            raise ConfigError(f"{options.config}: dashboards.{key} is not a setting{nearest(key, known)}")
        values[key] = _checked(options.config, key, value, listed=isinstance(known[key].default, tuple))
    return Settings(**values, without=without)


def _without(parts: tuple[str, ...]) -> frozenset[Part]:
    known: tuple[Part, ...] = get_args(Part)
    for part in parts:
        if part not in known:
            raise ConfigError(f"--without {part}: there is no such part{nearest(part, known)}; use {', '.join(known)}")
    return frozenset(p for p in known if p in parts)


def _section(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    section = (document or {}).get("dashboards", {}) if isinstance(document or {}, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: dashboards must be a mapping of settings to values")
    return section


def _checked(path: Path, key: str, value: Any, *, listed: bool) -> Any:
    if listed:
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise ConfigError(f"{path}: dashboards.{key} must be a list of words, not {value!r}")
        if key in ("tags", "version_labels") and not value:
            raise ConfigError(f"{path}: dashboards.{key} must name at least one")
        return tuple(value)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: dashboards.{key} must be a text, not {value!r}")
    return value
