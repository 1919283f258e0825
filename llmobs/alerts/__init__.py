"""Alerts, objectives and runbooks as data; `files` renders them."""

from __future__ import annotations

from llmobs.alerts.lint import problems
from llmobs.alerts.render import groups, rule_files
from llmobs.alerts.routing import alertmanager_file
from llmobs.alerts.runbooks import runbook_files
from llmobs.alerts.settings import Rule, load
from llmobs.alerts.unit import test_files
from llmobs.errors import ConfigError, GenerateError, nearest
from llmobs.generate import Files, Options

__all__ = ["files"]

FORMATS = ("rules", "prometheusrule")


def files(options: Options) -> Files:
    """Return everything below ``alerts/`` and ``docs/runbooks/``.

    Raises ConfigError for a knob that cannot be used, GenerateError when the rules it makes are not sound.
    """
    if options.format is not None and options.format not in FORMATS:
        raise ConfigError(
            f"--format {options.format}: alerts know rules, prometheusrule{nearest(options.format, FORMATS)}"
        )
    settings = load(options.config)
    made = groups(settings, options.without)
    labels = (
        *settings.selector,
        settings.canary.label,
        *(label for r in settings.rules.values() for label in _matched(r)),
    )
    wrong = problems([group for gs in made.values() for group in gs], labels, settings.scope)
    if wrong:
        raise GenerateError(f"the rules are not sound: {'; '.join(wrong)}")
    return {
        **rule_files(settings, options),
        **test_files(settings),
        **alertmanager_file(settings),
        **runbook_files(settings),
    }


def _matched(rule: Rule) -> tuple[str, ...]:
    return tuple(label for override in rule.overrides for label, _ in override.match)
