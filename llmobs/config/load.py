"""Reading the settings: defaults < file (YAML) < environment < flags."""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from llmobs.config.check import mask_url, validated
from llmobs.config.tree import Settings
from llmobs.errors import ConfigError, nearest

MAX_CONFIG_BYTES = 4 * 1024 * 1024
_SECRET = re.compile(r"key|token|password|secret", re.IGNORECASE)


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings from file, environment and flags (dotted key → value).

    Raises ConfigError naming the file or variable, the key, and what to do.
    """
    merged: dict[str, Any] = _read_file(file) if file else {}
    _merge_environment(merged, os.environ if environment is None else environment)
    for key, value in (flags or {}).items():
        _put(merged, key.split("."), value, f"--{key}")
    settings: Settings = _build(Settings, merged, "")
    return validated(settings)


def leaves(cls: type = Settings, path: str = "") -> Iterable[tuple[str, dataclasses.Field[Any], Any]]:
    """Yield (dotted key, field, type) of every setting that is not a group, lists of groups included as one."""
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        dotted = f"{path}{f.name}"
        if dataclasses.is_dataclass(hints[f.name]):
            yield from leaves(typing.cast("type", hints[f.name]), f"{dotted}.")
        else:
            yield dotted, f, hints[f.name]


def to_dict(settings: Any, *, mask: bool = True) -> dict[str, Any]:
    """Return the settings as plain values; passwords in URLs are masked (keys are only ever named by file)."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(settings))
    if mask:
        for target in plain.get("targets", ()):
            target["url"] = mask_url(target["url"])
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_CONFIG_BYTES} bytes; this is not a configuration file")
    try:
        document = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        place = f":{where.line + 1}:{where.column + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error).split("\n", maxsplit=1)[0]
        raise ConfigError(f"{file}{place}: not valid YAML ({problem})") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: the top level must be keys such as 'targets:', not a {type(document).__name__}")
    return document


def _merge_environment(merged: dict[str, Any], environment: Mapping[str, str]) -> None:
    for key, _, _ in leaves():
        variable = "LLMOBS_" + key.replace(".", "_").upper()
        if variable not in environment:
            continue
        text = environment[variable]
        if key == "targets":
            # The one list worth having in the environment: URLs, comma separated.
            value: Any = [{"url": url.strip()} for url in text.split(",") if url.strip()]
        else:
            value = text
        _put(merged, key.split("."), value, variable)


def _put(tree: dict[str, Any], path: list[str], value: Any, where: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{where}: {part!r} is not a group of settings in the file")
    tree[path[-1]] = value


def _build(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        keys = ", ".join(f.name for f in dataclasses.fields(cls))
        raise ConfigError(f"{path or 'configuration'}: expected keys ({keys}), not {_show(path, value)}")
    hints = typing.get_type_hints(cls)
    for key in value:
        if key not in hints:
            dotted = f"{path}.{key}" if path else str(key)
            raise ConfigError(f"{dotted}: unknown key{nearest(str(key), hints)}")
    built = {
        key: _convert(hints[key], part, f"{path}.{key}" if path else str(key))
        for key, part in value.items()
        if part is not None
    }
    return cls(**built)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert(next(a for a in arguments if a is not type(None)), value, path)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)
    if origin is tuple:
        if isinstance(value, str) and arguments[0] is str:
            # As environment variables and flags write lists.
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: expected a list, not {_show(path, value)}")
        return tuple(_convert(arguments[0], part, f"{path}[{i}]") for i, part in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected name: value pairs, not {_show(path, value)}")
        return {str(k): _convert(str, v, f"{path}.{k}") for k, v in value.items() if v is not None}
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "1", "yes", "false", "0", "no"):
            return value.lower() in ("true", "1", "yes")
        raise ConfigError(f"{path}: expected true or false, not {_show(path, value)}")
    if hint is str:
        if isinstance(value, (dict, list)):
            raise ConfigError(f"{path}: expected text, not {_show(path, value)}")
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, bool):
        raise ConfigError(f"{path}: expected a number, not {_show(path, value)}")
    try:
        number = hint(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{path}: expected a number, not {_show(path, value)}") from None
    if hint is int and isinstance(value, float) and number != value:
        raise ConfigError(f"{path}: expected a whole number, not {_show(path, value)}")
    if number != number or number in (float("inf"), float("-inf")):
        raise ConfigError(f"{path}: expected a finite number, not {_show(path, value)}")
    return number


def _show(path: str, value: Any) -> str:
    """Show a wrong value in a message, unless its key sounds like a secret."""
    return "a hidden value" if _SECRET.search(path) else repr(value)[:80]
