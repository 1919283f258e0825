"""One thread for calls that may never return: it can be left behind, and it is known while it is stuck."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """A job handed to a lane; `wait` for it, then look at `result` and `error`."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._done = threading.Event()
        self.result: T | None = None
        self.error: Exception | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether the job is done, after waiting at most so long."""
        return self._done.wait(max(0.0, seconds))

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self._done.is_set()

    def run(self) -> None:
        """Do the job; only the lane calls this."""
        try:
            self.result = self._job()
        except Exception as error:  # noqa: BLE001  handed to whoever waits
            self.error = error
        finally:
            self._done.set()


class Lane:
    """Runs one job at a time on a thread of its own.

    The thread is a daemon, so that a driver call that never returns cannot keep the process from ending. A job is
    never interrupted: when its caller stops waiting, the lane is `stuck` until the call comes back, and then works
    again by itself.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Task[object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: Task[object] | None = None

    @property
    def stuck(self) -> bool:
        """Whether a job that was started earlier has not ended; check it before `start`."""
        return self._current is not None and not self._current.done

    def start(self, job: Callable[[], T]) -> Task[T]:
        """Begin `job`. The lane must not be stuck."""
        task: Task[T] = Task(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._current = task  # type: ignore[assignment]
        self._jobs.put(task)  # type: ignore[arg-type]
        return task

    def close(self) -> None:
        """Let the thread end once its job does."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _run(self) -> None:
        while (task := self._jobs.get()) is not None:
            task.run()
            # An idle lane must not keep the last result alive.
            del task
