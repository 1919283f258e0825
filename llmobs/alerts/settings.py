"""What a user can set about the alerts, and the thresholds in effect; dashboards draw the same numbers from here.

It is the ``alerts:`` part of the YAML file given with ``llmobs generate --config``:

    alerts:
      runbook_base_url: https://runbooks.example.com/llmobs
      rules:
        VllmTTFTP95High:
          threshold: 3
          models:
            llama-70b: {threshold: 1.5, severity: critical}
          match:
            - labels: {namespace: staging}
              enabled: false

Every alert has the knobs `enabled`, `threshold`, `for`, `keep_firing_for` and `severity`, and those of its own
parameters. The first override that matches wins; label matches come before models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from llmobs.alerts.model import SEVERITIES, Alert, Knob, Severity, seconds
from llmobs.alerts.rules import ALERTS
from llmobs.alerts.slo import Objective, objectives
from llmobs.errors import ConfigError, nearest

_KNOBS = ("enabled", "threshold", "for", "keep_firing_for", "severity")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

#: Label → its value; a tuple is any of several, a value that begins with ~ is a regular expression.
Match = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One alert with its knobs as they are for the series that `match` selects (all series when it is empty)."""

    alert: Alert
    enabled: bool
    threshold: float | None
    for_: str
    keep_firing_for: str
    severity: Severity
    params: Mapping[str, float]
    match: Match = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alert's knobs in general, and its overrides in the order in which they are tried."""

    general: Effective
    overrides: tuple[Effective, ...] = ()

    def for_model(self, model: str | None) -> Effective:
        """Return what holds for a model's series that have no other label an override asks for."""
        for override in self.overrides:
            only_model = model is not None and len(override.match) == 1 and override.match[0][0] == "model_name"
            if only_model and any(_matches(value, str(model)) for value in override.match[0][1]):
                return override
        return self.general


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How a canary is told from the rest: a label, its value on the canary, and what the others have (any else)."""

    label: str = "canary"
    canary: str = "true"
    stable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """All settings of the alerts.

    `scope` are labels from outside (of the scrape) that keep incidents apart and that every alert carries. `selector`
    are matchers added to every series. `time_scale` shortens every duration, for demonstrations and tests only.
    """

    runbook_base_url: str = "docs/runbooks"
    grafana_url: str = "http://localhost:3000"
    scope: tuple[str, ...] = ("cluster", "namespace")
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    time_scale: float = 1.0
    interval: str = "15s"
    prometheusrule_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    canary: Canary = field(default_factory=Canary)
    objectives: tuple[Objective, ...] = field(default_factory=lambda: objectives({}))
    rules: Mapping[str, Rule] = field(
        default_factory=lambda: MappingProxyType({n: _rule(a, {}) for n, a in ALERTS.items()})
    )

    def threshold(self, alert: str, model: str | None = None) -> float | None:
        """Return the threshold of an alert for a model, in the unit of its metric; None when it has none."""
        return self.effective(alert, model).threshold

    def effective(self, alert: str, model: str | None = None) -> Effective:
        """Return the knobs of an alert for a model. Raises ConfigError for an unknown alert."""
        if alert not in self.rules:
            raise ConfigError(f"{alert!r} is not an alert{nearest(alert, self.rules)}")
        return self.rules[alert].for_model(model)

    def objective(self, slo: str, model: str | None = None) -> Objective:
        """Return an objective (availability, ttft, inter_token, e2e) for a model. Raises ConfigError when unknown."""
        for objective in self.objectives:
            if objective.slo == slo:
                return objective.models.get(model or "", objective)
        raise ConfigError(f"{slo!r} is not an objective{nearest(slo, [o.slo for o in self.objectives])}")

    def lines(self, metric: str, model: str | None = None) -> tuple[Effective, ...]:
        """Return the enabled alerts whose threshold is a line on the panel of `metric`, the most severe last."""
        found = [
            e
            for e in (rule.for_model(model) for rule in self.rules.values())
            if e.alert.metric == metric and e.enabled and e.threshold is not None
        ]
        return tuple(sorted(found, key=lambda e: (-SEVERITIES.index(e.severity), e.threshold or 0.0)))


def threshold(alert: str, model: str | None = None, config: Path | None = None) -> float:
    """Return the threshold of `alert` for `model` under the settings in `config` (default: the built-in ones).

    Raises ConfigError for an unknown alert, one without a threshold, or a file that cannot be used.
    """
    found = load(config).threshold(alert, model)
    if found is None:
        raise ConfigError(f"{alert} has no threshold: its condition is a state")
    return found


def load(path: Path | None) -> AlertSettings:
    """Return the settings in the ``alerts`` part of the file, or the defaults without a file. Raises ConfigError."""
    part = _section(path)
    simple = {f.name for f in fields(AlertSettings)} - {"rules", "objectives", "canary"}
    known = {*simple, "rules", "slo", "canary"}
    for key in part:
        if key not in known:
            raise ConfigError(f"alerts.{key} is not a setting{nearest(str(key), known)}")
    values: dict[str, Any] = {key: _simple(key, part[key]) for key in simple if key in part}
    canary = _mapping(part.get("canary", {}), "alerts.canary")
    for key in canary:
        if key not in ("label", "canary", "stable"):
            raise ConfigError(f"alerts.canary.{key} is not a setting{nearest(str(key), ('label', 'canary', 'stable'))}")
    rules = _mapping(part.get("rules", {}), "alerts.rules")
    for name in rules:
        if name not in ALERTS:
            raise ConfigError(f"alerts.rules.{name} is not an alert{nearest(str(name), ALERTS)}")
    return AlertSettings(
        **values,
        canary=Canary(**{key: str(value) for key, value in canary.items()}),
        objectives=objectives(_mapping(part.get("slo", {}), "alerts.slo")),
        rules=MappingProxyType(
            {name: _rule(a, _mapping(rules.get(name, {}), f"alerts.rules.{name}")) for name, a in ALERTS.items()}
        ),
    )


def _section(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return _mapping(document.get("alerts", {}) if isinstance(document, Mapping) else None, f"{path}: alerts")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None or not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of settings")
    return value


def _simple(key: str, value: Any) -> Any:
    where = f"alerts.{key}"
    if key in ("labels", "selector", "prometheusrule_labels"):
        pairs = {str(k): str(v) for k, v in _mapping(value, where).items()}
        if key != "prometheusrule_labels":
            _label_names(pairs, where)
        return MappingProxyType(pairs)
    if key == "scope":
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list of label names")
        names = tuple(str(v) for v in value)
        _label_names(names, where)
        return names
    if key == "time_scale":
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
            raise ConfigError(f"{where}: {value!r} is not a number above 0 and at most 1")
        return float(value)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {value!r} is not text")
    if key == "interval":
        seconds(value)
    return value.rstrip("/")


def _label_names(names: Iterable[str], where: str) -> None:
    for name in names:
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise ConfigError(f"{where}: {name!r} is not a label name")


def _rule(alert: Alert, given: Mapping[str, Any]) -> Rule:
    where = f"alerts.rules.{alert.name}"
    default = Effective(
        alert=alert,
        enabled=alert.enabled,
        threshold=None if alert.threshold is None else alert.threshold.value,
        for_=alert.for_,
        keep_firing_for=alert.keep_firing_for,
        severity=alert.severity,
        params={name: knob.value for name, knob in alert.params.items()},
    )
    general = _apply(default, {k: v for k, v in given.items() if k not in ("models", "match")}, where)
    overrides = []
    matches = given.get("match", [])
    if not isinstance(matches, list):
        raise ConfigError(f"{where}.match must be a list of label matches")
    for i, item in enumerate(matches):
        at = f"{where}.match[{i}]"
        knobs = dict(_mapping(item, at))
        labels = _mapping(knobs.pop("labels", None), f"{at}.labels")
        if not labels:
            raise ConfigError(f"{at}.labels must name at least one label")
        _label_names((str(k) for k in labels), f"{at}.labels")
        match = tuple((str(k), _values(v)) for k, v in sorted(labels.items()))
        overrides.append(replace(_apply(general, knobs, at), match=match))
    for model, knobs in _mapping(given.get("models", {}), f"{where}.models").items():
        at = f"{where}.models.{model}"
        effective = _apply(general, _mapping(knobs, at), at)
        overrides.append(replace(effective, match=(("model_name", (str(model),)),)))
    return Rule(general=general, overrides=tuple(overrides))


def _values(value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, list) else (str(value),)


def _matches(value: str, text: str) -> bool:
    return re.fullmatch(value[1:], text) is not None if value.startswith("~") else value == text


def _apply(base: Effective, given: Mapping[str, Any], where: str) -> Effective:
    alert = base.alert
    known = (*_KNOBS, *alert.params)
    params = dict(base.params)
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            more = "; thresholds per model belong under models:" if key in ("model", "labels") else ""
            raise ConfigError(f"{where}.{key} is not a knob of {alert.name}{nearest(str(key), known) or more}")
        if key == "enabled":
            changes["enabled"] = _checked(value, isinstance(value, bool), where, key, "true or false")
        elif key == "severity":
            changes["severity"] = _checked(value, value in SEVERITIES, where, key, "one of " + ", ".join(SEVERITIES))
        elif key in ("for", "keep_firing_for"):
            text = str(_checked(value, isinstance(value, str), where, key, "a duration such as 5m"))
            seconds(text)
            changes["for_" if key == "for" else key] = text
        else:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            knob: Knob | None = alert.threshold if key == "threshold" else alert.params[key]
            if knob is None:
                raise ConfigError(f"{where}.threshold: {alert.name} has no threshold, its condition is a state")
            value = float(_checked(value, number, where, key, f"a number ({knob.unit})"))
            if key == "threshold":
                changes["threshold"] = value
            else:
                params[key] = value
    return replace(base, params=MappingProxyType(params), **changes)


def _checked(value: Any, good: bool, where: str, key: str, wanted: str) -> Any:
    if not good:
        raise ConfigError(f"{where}.{key}: {value!r} is not {wanted}")
    return value
