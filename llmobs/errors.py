"""The errors a user can meet. Every message says what was wrong, where, and what to do next.

The command line prints the message on one line and exits with `exit_code`; a traceback means a bug in llmobs.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class LlmobsError(Exception):
    """Base of all errors llmobs raises on purpose."""

    exit_code = 1


class ConfigError(LlmobsError):
    """A flag, variable, or file holds something that cannot be used."""

    exit_code = 2


class TargetError(LlmobsError):
    """A watched vLLM could not be read. `reason` is one word of a closed set, fit for a label.

    Reasons: dns, refused, timeout, tls, auth, http, too_large, redirect, parse, empty, network.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class GenerateError(LlmobsError):
    """A generated file is missing or out of date, or its model is inconsistent."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest known name, or an empty string when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
