"""The daemon's log: structured, JSON or for people, and limited so that a dead target does not fill a disk."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any

import structlog

from llmobs.config import LogSettings

#: The same message about the same thing is written at most this often, in seconds.
REPEAT_SECONDS = 60.0


class RateLimit:
    """structlog processor: drops repetitions of (event, target) and says later how many there were."""

    def __init__(self) -> None:
        self.suppressed = 0
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event, or raise DropEvent."""
        if event.pop("once", False):
            return event
        key = (str(event.get("event")), str(event.get("target", "")))
        now = time.monotonic()
        last, count = self._last.get(key, (-REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._last[key] = (last, count + 1)
            self.suppressed += 1
            raise structlog.DropEvent
        if count:
            event["repeated"] = count
        if len(self._last) > 10_000:
            self._last.clear()
        self._last[key] = (now, 0)
        return event


def configure(settings: LogSettings) -> RateLimit:
    """Set structlog up to write to stderr and return the rate limit, which counts what it left out."""
    limit = RateLimit()
    terminal = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(sort_keys=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    return limit


def get() -> Any:
    """Return the logger."""
    return structlog.get_logger()
