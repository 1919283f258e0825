"""The fail-safe layer: whatever of ours vLLM calls runs inside a guard.

A guard catches the exception, counts it, logs the first one, and after `LIMIT` failures switches itself off for good.
vLLM goes on as if we were not there. An exception that left `record()` would end the whole server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

#: Failures after which a hook is removed.
LIMIT = 3

logger = logging.getLogger("vllm.llmobs")  # below "vllm", so that vLLM's own handler and level apply

_guards: dict[str, Guard] = {}


class Guard:
    """One named hook: whether it is active, and how often it failed. `on_removed` undoes what was patched."""

    __slots__ = ("active", "errors", "name", "on_failure", "on_removed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = True
        self.errors = 0
        self.on_removed: list[Callable[[], None]] = []
        self.on_failure: Callable[[Guard], None] | None = None

    def run(self, body: Callable[..., Any], *args: Any) -> Any:
        """Return what `body` returns, or None when it raised or the hook is removed."""
        if not self.active:
            return None
        try:
            return body(*args)
        except Exception as error:  # noqa: BLE001  the one place that exists to catch everything
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Count one failure; log the first, and remove the hook at the third."""
        self.errors += 1
        try:
            if self.errors == 1:
                logger.warning("llmobs: hook %r failed, vLLM is not affected: %r", self.name, error, exc_info=error)
            if self.errors >= LIMIT and self.active:
                self.active = False
                logger.warning("llmobs: hook %r failed %d times and is removed", self.name, self.errors)
                for undo in self.on_removed:
                    undo()
            if self.on_failure is not None:
                self.on_failure(self)
        except Exception:  # noqa: BLE001  a broken log handler must not reach vLLM either
            self.active = False


def guard(name: str) -> Guard:
    """Return this process's guard of that name; the same one each time."""
    found = _guards.get(name)
    if found is None:
        found = _guards[name] = Guard(name)
    return found


def guards() -> dict[str, Guard]:
    """Return all guards of this process by name."""
    return _guards
