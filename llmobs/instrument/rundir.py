"""The run folder: where the processes of one run of vLLM leave small facts for each other.

It is private to the user and to one run, lies in the temporary folder, and is named by `LLMOBS_RUN_DIR`, which the
first process of the run sets for its children: the parent, API servers, engine cores, and workers all see the same.
Nothing in it outlives the run; what must is in the failure journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from llmobs.instrument.guard import Guard, guards

VARIABLE = "LLMOBS_RUN_DIR"
_OWNER = "LLMOBS_RUN_OWNER"


def make(environ: Any = os.environ) -> Path | None:
    """Make this run's folder and export its name; return None when no temporary folder can be written.

    A process that finds the variable set by a living ancestor keeps it.
    """
    found = environ.get(VARIABLE)
    if found and Path(found).is_dir():
        return Path(found)
    try:
        path = Path(tempfile.mkdtemp(prefix="llmobs-run-"))
    except OSError:
        environ[VARIABLE] = ""
        return None
    environ[VARIABLE] = str(path)
    environ[_OWNER] = str(os.getpid())
    return path


def remove(environ: Any = os.environ) -> None:
    """Remove the folder, when this process made it."""
    if environ.get(_OWNER) == str(os.getpid()) and environ.get(VARIABLE):
        shutil.rmtree(environ[VARIABLE], ignore_errors=True)


def instance(path: Path | None) -> str:
    """Return the name of this run: the same in all its processes."""
    return path.name.removeprefix("llmobs-run-") if path is not None else uuid.uuid4().hex[:8]


def write(path: Path | None, name: str, value: Any) -> bool:
    """Write `value` as JSON so that a reader sees all of it or nothing; return False when it could not be written."""
    if path is None:
        return False
    temporary = path / f".{name}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(value, default=str))
        temporary.rename(path / name)
    except OSError:
        return False
    return True


def read(path: Path | None, name: str) -> Any:
    """Return what is in the file, or None."""
    if path is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        return json.loads((path / name).read_text())
    return None


def names(path: Path | None, prefix: str) -> list[str]:
    """Return the names of the files that begin with `prefix`, sorted."""
    if path is None:
        return []
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(path) if name.startswith(prefix))  # noqa: PTH208  names only
    return []


def report_hook(hook: Guard) -> None:
    """A hook failed in this process, which serves nothing: leave its state where the API server finds it."""
    states = {g.name: (float(g.active), float(g.errors)) for g in guards().values()}
    write(make(), f"hooks-{os.getpid()}", states | {hook.name: (float(hook.active), float(hook.errors))})
