"""The death of the engine, seen from the API server: why, which requests are lost, and who must be told."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path
from typing import Any

from llmobs.instrument import journaling, rundir
from llmobs.instrument.runtime import Runtime
from llmobs.journal import JournalEntry

_MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")

#: Name of the file in the run folder that tells the launcher.
MARKER = "engine-died"


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel killed for memory, or None when that is not readable."""
    try:
        lines = _MEMORY_EVENTS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, StopIteration, IndexError):
        return None


def engine_died(runtime: Runtime, error: Exception) -> None:
    """Mark the requests in flight, count them once, write the journal, and leave a marker for the launcher."""
    if runtime.death is not None:
        runtime.engine_died(runtime.death)
        return
    told = _told(runtime)
    cause = told.get("cause", "engine_dead")
    kind = told.get("kind")
    before, after = runtime.oom_kills_at_start, oom_kills()
    killed = not told and before is not None and after is not None and after > before
    if killed:
        cause, kind = "oom", "host"
    lost = runtime.engine_died(cause)
    if cause == "oom" and kind in runtime.oom:
        runtime.oom[kind] += 1
    now = time.time()
    message = told.get("message") or (
        "the kernel killed it for memory" if killed else f"{type(error).__name__}: {error}"
    )
    if runtime.log is not None:
        runtime.log.put(
            "error",
            "engine_died",
            {"reason": cause, "kind": kind, "requests_lost": len(lost), "error_msg": message},
            now,
        )
    rundir.write(runtime.run_dir, MARKER, {"cause": cause, "time": now})
    counted = dict(runtime.failed)

    def write() -> None:
        if not told:
            event = "oom" if killed else "engine_dead"
            _journal(runtime, event, f"{event}:{runtime.instance}:api", now, kind=kind, reason=cause, message=message)
        name = f"requests_failed:{runtime.instance}:{runtime.client_index}"
        _journal(runtime, "requests_failed", name, now, kind=kind, reason=cause, count=len(lost), message=message)

    def write_late() -> None:
        # Requests that came after the death, or were not in the engine yet: known only when the server goes.
        runtime.settle()
        late = int(runtime.failed[cause] + runtime.failed["engine_dead"] * (cause != "engine_dead"))
        late -= int(counted[cause] + counted["engine_dead"] * (cause != "engine_dead")) + len(lost)
        if late > 0:
            name = f"requests_failed:{runtime.instance}:{runtime.client_index}:late"
            _journal(runtime, "requests_failed", name, time.time(), reason="engine_dead", count=late)

    runtime.log.call(write)
    atexit.register(write_late)


def _told(runtime: Runtime) -> dict[str, Any]:
    """Return what the engine core or a worker left in the run folder about its end, or nothing."""
    for name in rundir.names(runtime.run_dir, "died-"):
        found = rundir.read(runtime.run_dir, name)
        if isinstance(found, dict):
            return found
    return {}


def _journal(runtime: Runtime, event: str, name: str, at: float, **facts: Any) -> None:
    entry = JournalEntry(
        id=name,
        event=event,
        time=at,
        process="APIServer",
        pid=os.getpid(),
        instance=runtime.instance,
        model_name=runtime.first.model_name,
        **facts,
    )
    if not journaling.append(runtime.settings.state_dir, entry):
        runtime.journal_dropped += 1
