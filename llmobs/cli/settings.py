"""Flags that become settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmobs.errors import ConfigError

if TYPE_CHECKING:
    from llmobs.config import Settings


def settings_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags of every command that needs the settings."""
    command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings (LLMOBS_CONFIG)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, as in --set derive.window_seconds=30",
    )
    command.add_argument("--target", action="append", metavar="URL", help="a vLLM to watch; can be given several times")
    _add_target_extras(command)
    command.add_argument("--listen", "--web.listen-address", action="append", metavar="ADDRESS", help="default :9401")
    command.add_argument("--web.config.file", dest="web_config", metavar="FILE", help="TLS and basic auth")
    command.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    command.add_argument("--no-collector.gpu", dest="no_gpu", action="store_true", help="do not read NVML")
    command.add_argument("--otlp", action="store_true", help="also push the metrics by OTLP (OTEL_EXPORTER_OTLP_*)")


def _add_target_extras(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="constant label for the targets given with --target; an empty value is left out",
    )
    command.add_argument("--state-dir", metavar="DIR", help="LLMOBS_STATE_DIR of those targets")
    command.add_argument("--api-key-env", metavar="NAME", help="environment variable with those targets' API key")


def _target_extras(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say about every target given with --target: labels, state directory, API key."""
    labels = {name: value for name, value in pairs("--label", arguments.label) if value}
    extras = {"labels": labels, "state_dir": arguments.state_dir, "api_key_env": arguments.api_key_env}
    return {key: value for key, value in extras.items() if value}


def pairs(flag: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Return NAME=VALUE arguments as pairs. Raises ConfigError for anything else."""
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise ConfigError(f"{flag} {value}: expected NAME=VALUE, as in {flag} model_id=chat-8b")
    return [(v.partition("=")[0], v.partition("=")[2]) for v in values]


def load_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings that file, environment and flags give."""
    from llmobs.config import load

    flags: dict[str, Any] = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: expected KEY=VALUE, as in --set derive.window_seconds=30")
        flags[key] = value
    if arguments.target:
        flags["targets"] = [{"url": url, **_target_extras(arguments)} for url in arguments.target]
    if arguments.listen:
        flags["web.listen"] = arguments.listen
    if arguments.web_config:
        flags["web.config_file"] = arguments.web_config
    if arguments.log_level:
        flags["log.level"] = arguments.log_level
    if arguments.no_gpu:
        flags["gpu.enabled"] = False
    if arguments.otlp:
        flags["otlp.enabled"] = True
    file = arguments.config or (Path(os.environ["LLMOBS_CONFIG"]) if os.environ.get("LLMOBS_CONFIG") else None)
    return load(file, flags=flags)
