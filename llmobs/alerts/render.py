"""Alerts and recording rules → rule files for Prometheus, and the same as PrometheusRule objects for the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from llmobs.alerts.model import Alert, Recording, seconds
from llmobs.alerts.promql import Matcher, cells, negative, positive, render, selected
from llmobs.alerts.recording import BASE, budget_rules, objective_rules, shortened
from llmobs.alerts.settings import AlertSettings, Effective
from llmobs.alerts.slo import WINDOWS, Objective
from llmobs.generate import Options

#: File → the groups of alerts in it.
FILES: Mapping[str, tuple[str, ...]] = {
    "engine": ("down", "published", "causes", "clients"),
    "gpu": ("memory", "gpu"),
    "slo": ("slo",),
    "canary": ("canary",),
    "llmobs": ("llmobs",),
}
#: Parts that `--without` leaves out → the files they are.
PARTS = ("gpu", "slo", "canary")

Rule = dict[str, Any]
Group = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _text)


def dump(document: Any, header: str) -> str:
    """Return a document as YAML under a header, whose lines become comments."""
    lines = "".join(f"# {line}".rstrip() + "\n" for line in header.strip().splitlines())
    return lines + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def groups(settings: AlertSettings, without: Iterable[str] = ()) -> dict[str, list[Group]]:
    """Return file name (without suffix) → rule groups. Files and groups without a rule are left out."""
    left = set(without)
    found: dict[str, list[Group]] = {"recording": recording_groups(settings, slo="slo" not in left)}
    for name, members in FILES.items():
        if name in left:
            continue
        made = [
            _group(f"llmobs-{member}", list(_alerts(settings, member, traces="tempo" not in left)), settings)
            for member in members
        ]
        found[name] = [group for group in made if group["rules"]]
    return {name: gs for name, gs in found.items() if gs}


def _group(name: str, rules: list[Rule], settings: AlertSettings) -> Group:
    return {"name": name, "interval": shortened(settings.interval, max(settings.time_scale, 0.07)), "rules": rules}


def recording_groups(settings: AlertSettings, *, slo: bool = True) -> list[Group]:
    """Return the groups of recording rules, in the order in which they need one another."""
    made = [_group("llmobs-recording", [_recording(r, settings) for r in BASE], settings)]
    if slo:
        rules = [rule for o in settings.objectives for rule in _objective(o, settings)]
        rules += [_recording(r, settings) for r in budget_rules()]
        made.append(_group("llmobs-recording-slo", rules, settings))
    return made


def _recording(recording: Recording, settings: AlertSettings, values: Mapping[str, str] | None = None) -> Rule:
    expr = render(recording.expr, values or {}, settings.scope, settings.time_scale)
    rule: Rule = {"record": recording.name, "expr": _plain_selector(expr, settings)}
    if recording.also:
        rule["labels"] = dict(recording.also)
    return rule


def _plain_selector(expr: str, settings: AlertSettings) -> str:
    for label, value in settings.selector.items():
        expr = selected(expr, [positive(label, (value,))], (*settings.scope, label))
    return expr


def _objective(objective: Objective, settings: AlertSettings) -> Iterator[Rule]:
    for recording, tiers in objective_rules(objective):
        if not tiers:
            yield _recording(recording, settings, _slo_values(objective))
            continue
        others = _recording(recording, settings, _slo_values(objective))
        others["expr"] = selected(others["expr"], [negative("model_name", tuple(objective.models))], settings.scope)
        yield others
        for model, tier in objective.models.items():
            rule = _recording(recording, settings, _slo_values(tier))
            rule["expr"] = selected(rule["expr"], [positive("model_name", (model,))], settings.scope)
            yield rule


def _slo_values(objective: Objective) -> dict[str, str]:
    boundary = "" if objective.boundary is None else repr(objective.boundary)
    return {"boundary": boundary, "objective": number(objective.target)}


def _alerts(settings: AlertSettings, group: str, *, traces: bool) -> Iterator[Rule]:
    for rule in settings.rules.values():
        if rule.general.alert.group != group:
            continue
        overrides = rule.overrides
        if rule.general.alert.additive:
            parts: list[tuple[Effective, list[tuple[Matcher, ...]]]] = [
                (rule.general, [()]),
                *((o, list(cells(o.match, ()))) for o in overrides),
            ]
        else:
            earlier = [o.match for o in overrides]
            parts = [(o, list(cells(o.match, earlier[:i]))) for i, o in enumerate(overrides)]
            parts.append((rule.general, list(cells((), earlier))))
        for effective, selectors in parts:
            if effective.enabled:
                for matchers in selectors:
                    yield from _alert(effective, matchers, settings, traces=traces)


def _alert(
    effective: Effective, matchers: Iterable[Matcher], settings: AlertSettings, *, traces: bool
) -> Iterator[Rule]:
    alert = effective.alert
    if "<long>" not in alert.expr:
        yield _rule(effective, matchers, settings, {}, traces=traces)
        return
    for long, short, factor, for_, severity in WINDOWS:
        words = {
            "long": long,
            "short": short,
            "factor": f"{factor:g}",
            "long_seconds": number(seconds(long) * settings.time_scale),
        }
        rule = _rule(effective, matchers, settings, words, traces=traces)
        if effective.severity == alert.severity:
            rule["labels"]["severity"] = severity
        if effective.for_ == alert.for_:
            rule["for"] = shortened(for_, settings.time_scale)
        rule["labels"]["window"] = long
        yield rule


def number(value: float) -> str:
    """Return a number as PromQL and people write it."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _rule(
    effective: Effective,
    matchers: Iterable[Matcher],
    settings: AlertSettings,
    words: Mapping[str, str],
    *,
    traces: bool,
) -> Rule:
    alert = effective.alert
    expr = alert.expr
    for word, value in words.items():
        expr = expr.replace(f"<{word}>", value)
    expr = render(expr, _values(effective, settings), settings.scope, settings.time_scale)
    expr = _plain_selector(selected(expr, matchers, settings.scope), settings)
    rule: Rule = {"alert": alert.name, "expr": expr}
    if seconds(effective.for_):
        rule["for"] = shortened(effective.for_, settings.time_scale)
    if effective.keep_firing_for and seconds(effective.keep_firing_for):
        rule["keep_firing_for"] = shortened(effective.keep_firing_for, settings.time_scale)
    rule["labels"] = {"severity": effective.severity, "group": alert.group, **alert.also, **settings.labels}
    rule["annotations"] = texts(effective, settings, words, traces=traces)
    return rule


def _values(effective: Effective, settings: AlertSettings) -> dict[str, str]:
    alert, scale = effective.alert, settings.time_scale
    knobs = {"threshold": (alert.threshold, effective.threshold)}
    knobs.update({name: (knob, effective.params[name]) for name, knob in alert.params.items()})
    values = {
        name: number(value * scale if knob.scales else value)
        for name, (knob, value) in knobs.items()
        if knob is not None and value is not None
    }
    # Counts "in five minutes" are rates over the recorded five-minute windows times their length.
    values["span"] = number(300 * scale)
    label = settings.canary
    values["canary"] = f'{label.label}="{label.canary}"'
    values["stable"] = f'{label.label}="{label.stable}"' if label.stable else f'{label.label}!="{label.canary}"'
    return values


def texts(
    effective: Effective, settings: AlertSettings, words: Mapping[str, str], *, traces: bool = True
) -> dict[str, str]:
    """Return the texts of an alert: what, why in order of likelihood, what to run first, and where to look."""
    alert = effective.alert
    causes = "; ".join(f"{i}. {cause}" for i, cause in enumerate(alert.causes, 1))
    limit = (
        ""
        if effective.threshold is None
        else f" Limit: {number(effective.threshold)} {alert.threshold.unit}."
        if alert.threshold
        else ""
    )
    made = {
        "summary": alert.summary,
        "description": f"{alert.impact} Likely causes: {causes}. First: {alert.first}{'' if alert.first.endswith('.') else '.'}{limit}",
        "runbook_url": f"{settings.runbook_base_url}/{alert.name}.md",
        "dashboard_url": dashboard_url(alert, settings),
    }
    if alert.trace and traces:
        made["trace_query"] = alert.trace.replace("<model>", "{{ $labels.model_name }}").replace(
            "<threshold>", number(effective.threshold or 0)
        )
    for word, value in words.items():
        made = {key: text.replace(f"<{word}>", value) for key, text in made.items()}
    return made


def dashboard_url(alert: Alert, settings: AlertSettings) -> str:
    """Return the link to the board that shows the alert, with its variables and the last hour set."""
    variables = {"model_name": "model", "target": "target", "engine": "engine", "instance": "instance"}
    parts = [
        f"var-{variables[label]}={{{{ $labels.{label} | urlquery }}}}" for label in alert.scope if label in variables
    ]
    return f"{settings.grafana_url}/d/{alert.dashboard}?" + "&".join([*parts, "from=now-1h", "to=now"])


_HEADER = """\
{title}
Generated by `llmobs generate alerts`; change the knobs (docs/alerts.md), not this file.
"""
_TITLES = {
    "recording": "Recording rules; the other files need them.",
    "engine": "Alerts on vLLM.",
    "gpu": "Alerts on GPUs. Leave this file out where sidecars watch engines without GPUs (--without gpu).",
    "slo": "Alerts on error budgets; the windows are made for a budget of 30 days.",
    "canary": "Roll-back conditions for a canary, told apart by a label (alerts.canary).",
    "llmobs": "Alerts on llmobs itself, and the watchdog.",
}


def rule_files(settings: AlertSettings, options: Options) -> dict[str, str]:
    """Return the rule files below ``alerts/`` in the format asked for."""
    made = groups(settings, options.without)
    if options.format == "prometheusrule":
        documents = [_object(name, gs, settings) for name, gs in made.items()]
        header = _HEADER.format(title="All rules for the Prometheus operator.")
        return {
            "alerts/prometheusrule.yaml": header_lines(header) + "---\n" + "---\n".join(dump(d, "") for d in documents)
        }
    return {
        f"alerts/{name}.rules.yaml": dump({"groups": gs}, _HEADER.format(title=_TITLES[name]))
        for name, gs in made.items()
    }


def header_lines(header: str) -> str:
    """Return a header as comment lines."""
    return "".join(f"# {line}".rstrip() + "\n" for line in header.strip().splitlines())


def _object(name: str, made: list[Group], settings: AlertSettings) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "llmobs", **settings.prometheusrule_labels}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": f"llmobs-{name}", "labels": labels},
        "spec": {"groups": made},
    }


def behaviour_only(made: Mapping[str, list[Group]]) -> list[Group]:
    """Return all groups without annotations: what unit tests of behaviour, not of wording, run against."""
    return [
        {**group, "rules": [{k: v for k, v in rule.items() if k != "annotations"} for rule in group["rules"]]}
        for gs in made.values()
        for group in gs
    ]


def plain(text: str) -> str:
    """Return a text without Go template actions, for pages."""
    words = re.sub(r"\{\{\s*\$labels\.(\w+)[^}]*\}\}", r"‹\1›", text)
    return re.sub(r"\{\{[^}]*\}\}", "‹value›", words)
