"""What a user can say about a deployment: names, targets, labels, images.

From flags of ``llmobs generate deploy`` and from the ``deploy:`` part of the YAML file given with ``--config``; flags
win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from llmobs import __version__
from llmobs.collector.settings import build, section
from llmobs.errors import ConfigError

#: The state directory inside both containers; the failure journal and the log file are in it.
STATE_DIR = "/var/lib/llmobs"
PORT = 9401


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and values of one deployment. Defaults are what is committed below ``deploy/``."""

    #: Name of the Deployment or StatefulSet that runs vLLM.
    name: str = "vllm"
    #: Name of its container that runs vLLM.
    container: str = "vllm"
    #: Namespace it runs in.
    namespace: str = "vllm"
    #: The llmobs image; build it from deploy/container, and pin it by digest (name@sha256:…) in production.
    image: str = f"llmobs:{__version__}"
    #: Where the watched servers are. Empty: the server in the same pod or compose project.
    targets: tuple[str, ...] = ()
    #: Constant labels of every series of the targets.
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Model that vLLM serves in the examples.
    model: str = "Qwen/Qwen3-0.6B"
    #: Its served name, which is the value of the label ``model_name``.
    model_name: str = "Qwen/Qwen3-0.6B"
    #: Waiting requests per replica at which another replica is started.
    waiting_per_replica: int = 5
    #: Most replicas that scaling may start.
    max_replicas: int = 8
    #: Pod labels whose values become labels of the sidecar's series, through the downward API.
    pod_labels: tuple[str, ...] = ("version", "canary")

    def target(self, default: str) -> tuple[str, ...]:
        """Return the configured targets, or `default`."""
        return self.targets or (default,)


def load(config: Path | None, extra: Sequence[tuple[str, str]] = ()) -> Settings:
    """Return the settings from file and flags. Raises ConfigError for unknown or unusable values."""
    values: dict[str, Any] = dict(section(config, "deploy"))
    for key in ("targets", "pod_labels"):
        if key in values:
            if not isinstance(values[key], list):
                raise ConfigError(f"deploy.{key} must be a list")
            values[key] = tuple(str(v) for v in values[key])
    if not isinstance(values.get("labels", {}), Mapping):
        raise ConfigError("deploy.labels must map names to values")
    settings: Settings = build(Settings, values, "deploy")
    flags = dict(extra)
    changes: dict[str, Any] = {key: flags[key] for key in ("name", "namespace", "container", "image") if key in flags}
    if targets := tuple(value for key, value in extra if key == "target"):
        changes["targets"] = targets
    labels = dict(value.split("=", 1) for key, value in extra if key == "label")
    settings = replace(settings, **changes, labels=MappingProxyType({**settings.labels, **labels}))
    _check(settings)
    return settings


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _check(settings: Settings) -> None:
    for key in ("name", "namespace", "container"):
        if not _NAME.fullmatch(getattr(settings, key)):
            raise ConfigError(
                f"deploy.{key}: {getattr(settings, key)!r} is not a Kubernetes name (small letters, digits, hyphens)"
            )
    for url in settings.targets:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"--target {parts.hostname or url!r}: write http://host:port, without credentials")
    for label in (*settings.labels, *settings.pod_labels):
        if not _LABEL.fullmatch(label):
            raise ConfigError(f"--label {label}: not a label name (letters, digits, _)")
