"""Alerts, objectives and runbooks as data; `files` renders them."""

from __future__ import annotations

from llmobs.alerts.render import rule_files
from llmobs.alerts.settings import load
from llmobs.alerts.unit import test_files
from llmobs.errors import ConfigError, nearest
from llmobs.generate import Files, Options

__all__ = ["files"]

FORMATS = ("rules", "prometheusrule")


def files(options: Options) -> Files:
    """Return everything below ``alerts/`` and ``docs/runbooks/``."""
    if options.format is not None and options.format not in FORMATS:
        raise ConfigError(f"--format {options.format}: alerts know rules, prometheusrule{nearest(options.format, FORMATS)}")
    settings = load(options.config)
    return {**rule_files(settings, options), **test_files(settings)}
