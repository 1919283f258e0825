"""Replacing one function of vLLM by a wrapper that can be taken off again."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

from llmobs.instrument.guard import Guard, logger

#: Names of the guards whose wrappers a function carries.
_MARK = "__llmobs_guards__"


def find(path: str) -> tuple[Any, str] | None:
    """Return (owner, attribute) of ``package.module:Class.attribute``, or None where this version lacks it."""
    module_name, _, dotted = path.partition(":")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError:
        return None
    *parents, attribute = dotted.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
        if owner is None:
            return None
    return (owner, attribute) if hasattr(owner, attribute) else None


def wrap(path: str, guard: Guard, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Replace the function at `path` by ``make(original)``; return False where this version does not have it.

    Doing it twice for the same guard changes nothing. When the guard gives up, the original comes back, unless somebody
    else has wrapped ours in the meantime; then ours stays and only passes calls on.
    """
    place = find(path)
    if place is None:
        return False
    owner, attribute = place
    original = inspect.getattr_static(owner, attribute)
    static = isinstance(original, staticmethod)
    function = original.__func__ if static else original
    guards: tuple[str, ...] = getattr(function, _MARK, ())
    if guard.name in guards:
        return True
    if not callable(function):
        return False
    wrapper = functools.wraps(function)(make(function))
    setattr(wrapper, _MARK, (*guards, guard.name))
    replacement = staticmethod(wrapper) if static else wrapper
    setattr(owner, attribute, replacement)

    def undo() -> None:
        current = inspect.getattr_static(owner, attribute)
        if current is replacement:
            setattr(owner, attribute, original)

    guard.on_removed.append(undo)
    return True


class _Watcher(importlib.abc.MetaPathFinder):
    """Runs what waits for a module right after that module was executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}
        self._busy = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.waiting or getattr(self._busy, "on", False):
            return None
        self._busy.on = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.on = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _run(self.waiting.pop(name, []))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _Watcher()


def when_imported(module: str, action: Callable[[], object]) -> None:
    """Run `action` now if `module` is imported, else as soon as it is. An action that raises is logged, not raised."""
    if module in sys.modules:
        _run([action])
        return
    _watcher.waiting.setdefault(module, []).append(action)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def _run(actions: list[Callable[[], object]]) -> None:
    for action in actions:
        try:
            action()
        except Exception as error:  # noqa: BLE001, PERF203  an import of vLLM must not fail because of us
            logger.warning("llmobs: a hook could not be placed: %r", error)
