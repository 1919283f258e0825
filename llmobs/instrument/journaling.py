"""Appending to the failure journal so that the line is on the disk before the process is gone."""

from __future__ import annotations

import os
from pathlib import Path

from llmobs.instrument.guard import logger
from llmobs.journal import FILE_NAME, JournalEntry, to_line

#: The journal is rotated once beyond this size; it grows by a line per failure, so this is years.
MAX_BYTES = 4 * 1024 * 1024

_said = False


def append(state_dir: Path | None, entry: JournalEntry) -> bool:
    """Write and fsync one line; return False, after saying so once, when it could not be done.

    Without a state directory there is no journal, and that is not a failure.
    """
    global _said
    if state_dir is None:
        return True
    path = state_dir / FILE_NAME
    try:
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_name(FILE_NAME + ".1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            line = to_line(entry)
            if os.write(descriptor, line) != len(line):
                raise OSError("the line was cut")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not _said:
            _said = True
            logger.warning("llmobs: the failure journal %s cannot be written, its lines are lost: %s", path, error)
        return False
    return True


def probe(state_dir: Path) -> str | None:
    """Return why the journal cannot be written in `state_dir`, or None when it can."""
    if not state_dir.is_dir():
        return f"{state_dir} is not a folder"
    if not os.access(state_dir, os.W_OK | os.X_OK):
        return f"{state_dir} is not writable"
    return None
