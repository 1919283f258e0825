"""Generated files: which generators there are, writing what they return, and finding drift.

A generator is a function without side effects: options in, files out (a mapping from the path below the output folder
to the file's text). It is named here as ``module:function`` and imported only when it is used, so that the daemon
never needs what generators need.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmobs.errors import GenerateError

Files = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `llmobs generate` was asked for. `config` is the user's YAML with knobs; each generator reads its part."""

    config: Path | None = None
    format: str | None = None
    without: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()


#: Kind of file → its generator. `llmobs generate` without a kind runs all of them, in this order.
GENERATORS: dict[str, str] = {
    "contract": "llmobs.catalog.page:files",
    "dashboards": "llmobs.dashboards:files",
    "collector": "llmobs.collector:files",
    "alerts": "llmobs.alerts:files",
    "deploy": "llmobs.deploy:files",
    "guides": "llmobs.guides:files",
}


def generate(kind: str, options: Options) -> Files:
    """Return the files of one generator. Raises GenerateError when `kind` is unknown or its extra is missing."""
    module, _, function = GENERATORS[kind].partition(":")
    try:
        made: Callable[[Options], Files] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise GenerateError(
            f"generating {kind} needs the Python module {error.name!r}: pip install 'llmobs[generate]'"
        ) from error
    return made(options)


def write(files: Files, out: Path) -> list[Path]:
    """Write the files below `out`; return those whose content changed."""
    changed = []
    for name, text in sorted(files.items()):
        path = out / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        changed.append(path)
    return changed


def check(files: Files, out: Path) -> None:
    """Raise GenerateError, naming file and first differing line, when a file below `out` is not what is generated."""
    for name, text in sorted(files.items()):
        path = out / name
        if not path.exists():
            raise GenerateError(f"{path} is missing; run `llmobs generate` and commit the result")
        found = path.read_text(encoding="utf-8")
        if found != text:
            diff = list(difflib.unified_diff(found.splitlines(), text.splitlines(), lineterm="", n=0))
            first = next((line for line in diff[2:] if not line.startswith("@@")), "line endings")
            raise GenerateError(f"{path} is out of date ({first}); run `llmobs generate` and commit the result")
