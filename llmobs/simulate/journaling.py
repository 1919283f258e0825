"""What a dying engine leaves behind: lines of the failure journal, and of vLLM's log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

from llmobs.journal import FILE_NAME, JournalEntry, to_line
from llmobs.simulate.server import Death

_CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.65 GiB "
    "of which 1.06 GiB is free."
)


class Diary:
    """Writes what happened to `state_dir` (the journal) and to `log_file`; either may be None."""

    def __init__(self, state_dir: Path | None, log_file: Path | None, wall: Callable[[float], float]) -> None:
        self._journal = state_dir / FILE_NAME if state_dir is not None else None
        self._log = log_file
        self._wall = wall
        for file in (self._journal, self._log):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()

    def died(self, death: Death) -> None:
        """Note an engine death, as the processes of a real server would. The kernel leaves no text for host memory."""
        at = self._wall(death.at)
        if self._journal is not None and death.kind != "host":
            with self._journal.open("ab") as file:
                file.writelines(to_line(entry) for entry in _entries(death, at))
        if self._log is not None:
            stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(at))
            with self._log.open("a", encoding="utf-8") as log:
                if death.kind == "cuda":
                    log.write(f"(EngineCore pid=200) ERROR {stamp} [core.py:1021] {_CUDA}\n")
                if death.kind != "host":
                    log.write(
                        f"(EngineCore pid=200) ERROR {stamp} [core.py:1021] EngineCore encountered a fatal error.\n"
                    )
                log.write(f"(APIServer pid=100) ERROR {stamp} [async_llm.py:708] AsyncLLM output_handler failed.\n")


def _entries(death: Death, at: float) -> list[JournalEntry]:
    reason = "oom" if death.kind else "engine_dead"
    first = JournalEntry(
        id=uuid.uuid4().hex, event=reason, time=at, process="EngineCore", pid=200, instance=death.instance,
        kind=death.kind, reason=reason, message=_CUDA if death.kind else "the engine core process ended",
    )  # fmt: skip
    lost = [
        JournalEntry(
            id=uuid.uuid4().hex, event="requests_failed", time=at, process="APIServer", pid=100,
            instance=death.instance, reason=reason, count=count, total=count, model_name=model, engine=engine,
        )
        for model, engine, count in death.lost
        if count
    ]  # fmt: skip
    return [first, *lost]
