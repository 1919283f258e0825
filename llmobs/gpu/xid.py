"""Listening for Xid errors, on a thread of its own because the driver call waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from llmobs.catalog.gpu import XID_CODES
from llmobs.gpu.calls import ErrorCounts
from llmobs.gpu.nvml import address

_log = structlog.get_logger("llmobs.gpu")

_XID = 0x8
_MIG_CHANGE = 0x100
_TIMED_OUT = 10
#: Milliseconds of one wait; closing takes at most that long.
WAIT_MS = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: A wait that is overdue by so many seconds hangs.
_OVERDUE = 5.0


class XidListener:
    """Counts Xid errors by GPU and code. The counts outlive restarts of the listening."""

    def __init__(self, errors: ErrorCounts, wall: Callable[[], float]) -> None:
        self._errors = errors
        self._wall = wall
        self._wait_ms = WAIT_MS
        self._lock = threading.Lock()
        self._counts: dict[str | None, Counter[str]] = {None: Counter()}
        self._last_seen: dict[str | None, dict[str, float]] = {None: {}}
        self._mig_changed: set[str] = set()
        self._logged: set[str] = set()
        self._listening: frozenset[str] = frozenset()
        self._beat = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def up(self) -> bool:
        """Whether at least one GPU is being listened to, and the driver call has not got stuck."""
        overdue = time.monotonic() - self._beat > self._wait_ms / 1000 + _OVERDUE
        return bool(self._listening) and not overdue and self._thread is not None and self._thread.is_alive()

    def listens(self, uuid: str) -> bool:
        """Return whether Xid errors of this GPU would be seen."""
        return self.up and uuid in self._listening

    def errors(self, uuid: str | None) -> tuple[dict[str, float], dict[str, float]]:
        """Return counts and times (Unix) by code; of events without a known GPU when `uuid` is None.

        Codes worth an alert are there at 0 as soon as the GPU is listened to; a GPU never listened to has none.
        """
        with self._lock:
            counts = {code: float(n) for code, n in self._counts.get(uuid, {}).items()}
            return counts, dict(self._last_seen.get(uuid, {}))

    def take_mig_change(self, uuid: str) -> bool:
        """Return whether the GPU announced a MIG reconfiguration since the last call."""
        with self._lock:
            changed = uuid in self._mig_changed
            self._mig_changed.discard(uuid)
            return changed

    def start(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        """Listen to these GPUs, by UUID, from now on."""
        self.stop()
        self._stop = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(nvml, dict(handles), self._stop), name="llmobs-xid", daemon=True
        )
        self._thread.start()

    def stop(self) -> bool:
        """Stop listening; return whether the thread has ended, so that NVML may be shut down."""
        thread, self._thread = self._thread, None
        self._stop.set()
        self._listening = frozenset()
        if thread is None:
            return True
        thread.join(self._wait_ms / 1000 + 1.0)
        return not thread.is_alive()

    def _run(self, nvml: Any, handles: Mapping[str, Any], stop: threading.Event) -> None:
        pause = _FIRST_PAUSE
        while not stop.is_set():
            try:
                began = time.monotonic()
                self._listen(nvml, handles, stop)
            except nvml.NVMLError as error:
                self._errors.add(int(error.value))
                _log.warning("xid_listener_failed", nvml_code=int(error.value), retry_seconds=pause)
            if not stop.is_set():
                self._listening = frozenset()
                # A listener that worked for a while starts over quickly.
                pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else pause
                self._beat = time.monotonic() + pause
                stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _listen(self, nvml: Any, handles: Mapping[str, Any], stop: threading.Event) -> None:
        """Register, then wait for events until told to stop; ends early when no GPU can be listened to."""
        events = nvml.nvmlEventSetCreate()
        try:
            known: dict[int | None, str] = {}
            for uuid, handle in handles.items():
                try:
                    wanted = (_XID | _MIG_CHANGE) & nvml.nvmlDeviceGetSupportedEventTypes(handle)
                    if not wanted & _XID:
                        continue
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                except nvml.NVMLError as error:
                    # This GPU is left out, the others are not.
                    self._refused(uuid, int(error.value))
                    continue
                known[address(handle)] = uuid
            if not known or stop.is_set():
                return
            with self._lock:
                for uuid in known.values():
                    self._counts.setdefault(uuid, Counter(dict.fromkeys(XID_CODES, 0)))
                    self._last_seen.setdefault(uuid, {})
            self._listening = frozenset(known.values())
            while not stop.is_set():
                self._beat = time.monotonic()
                self._wait(nvml, events, known)
        finally:
            nvml.nvmlEventSetFree(events)

    def _refused(self, uuid: str, code: int) -> None:
        if uuid not in self._logged:
            self._logged.add(uuid)
            _log.warning("xid_not_listening", gpu=uuid, nvml_code=code, once=True)

    def _wait(self, nvml: Any, events: Any, known: Mapping[int | None, str]) -> None:
        try:
            event = nvml.nvmlEventSetWait(events, self._wait_ms)
        except nvml.NVMLError as error:
            if error.value == _TIMED_OUT:
                return
            raise
        uuid = known.get(address(event.device))
        if event.eventType & _MIG_CHANGE and uuid is not None:
            with self._lock:
                self._mig_changed.add(uuid)
        if not event.eventType & _XID:
            return
        code = str(int(event.eventData))
        if uuid is None:
            _log.error("xid_of_unknown_gpu", xid=code)
        with self._lock:
            self._counts[uuid][code] += 1
            self._last_seen[uuid][code] = self._wall()
