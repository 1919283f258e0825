"""Calls to one device, with a memory of what it refused, so that a steady cycle asks only what can be answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import structlog

from llmobs.gpu.nvml import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    DeviceGoneError,
    Meaning,
    NvmlDownError,
    error_word,
    meaning,
)

_log = structlog.get_logger("llmobs.gpu")

#: Seconds after which a refused call is tried again.
RETRY_REFUSED = 3600.0
#: "Unknown Error" may be an unsupported field (WSL2) or a passing fault: the wait starts here and doubles up to the
#: hour.
RETRY_UNKNOWN = 60.0
_SIZE_RETRIES = 2


class ErrorCounts:
    """Failed NVML calls by kind, counted from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, code: int) -> None:
        """Count one failure."""
        with self._lock:
            self._counts[error_word(code)] += 1

    def snapshot(self) -> dict[str, float]:
        """Return the counts so far."""
        with self._lock:
            return {word: float(n) for word, n in self._counts.items()}


@dataclass(slots=True)
class _Refusal:
    reason: str
    until: float
    times: int


class Calls:
    """Makes the calls of one device.

    `absent` names the fields of which something was refused in the current cycle, and why; `begin` starts a cycle. An
    error that says that the device is gone raises DeviceGoneError; one that says that NVML is down raises
    NvmlDownError.
    """

    def __init__(self, nvml: Any, device: str, errors: ErrorCounts, clock: Callable[[], float]) -> None:
        self.nvml = nvml
        self.absent: dict[str, str] = {}
        self._device = device
        self._errors = errors
        self._clock = clock
        self._refused: dict[tuple[str, object], _Refusal] = {}
        self._logged: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Start a cycle: nothing is known to be absent yet."""
        self.absent = {}

    def forget(self) -> None:
        """Ask everything again, as on a new device."""
        self._refused.clear()

    def refused(self, field: str, variant: object) -> bool:
        """Return whether this call was refused lately; then it is not worth making, and its field is absent."""
        refusal = self._refused.get((field, variant))
        if refusal is None or refusal.until <= self._clock():
            return False
        self.absent[field] = refusal.reason
        return True

    def get(self, field: str, *attempts: tuple[Any, ...]) -> Any:
        """Return the answer of the first attempt (function name, arguments…) that succeeds, else None.

        Attempts after the first are older or lesser ways to get the same. What is refused is remembered by field,
        function and selector (the arguments that are numbers).
        """
        for function, *arguments in attempts:
            variant = (function, *[argument for argument in arguments if isinstance(argument, int)])
            if self.refused(field, variant):
                continue
            code, value = self.attempt(function, *arguments)
            if code == 0:
                self._refused.pop((field, variant), None)
                return value
            if not self.failed(code, field, variant):
                return None
        return None

    def attempt(self, function: str, *arguments: Any) -> tuple[int, Any]:
        """Make one call and return (0, answer) or (code, None), without taking note of a failure."""
        call = getattr(self.nvml, function, None)
        if call is None:  # this release of nvidia-ml-py is older than the function
            return FUNCTION_NOT_FOUND, None
        for retry in range(_SIZE_RETRIES + 1):
            try:
                return 0, call(*arguments)
            except self.nvml.NVMLError as error:  # noqa: PERF203  the loop is for this
                # Processes that start between asking for the size and for the list make it too small.
                if error.value != INSUFFICIENT_SIZE or retry == _SIZE_RETRIES:
                    return int(error.value), None
            except Exception:  # noqa: BLE001  a string or struct filled with rubbish costs its own field only
                return -1, None
        raise AssertionError("unreachable")

    def failed(self, code: int, field: str, variant: object) -> bool:
        """Take note of a failure; return whether another way to the same value may be tried.

        For calls that carry a return code per value; `get` does it for its own.
        """
        what = meaning(code)
        if what not in (Meaning.UNSUPPORTED, Meaning.EMPTY):
            self._errors.add(code)
        if what is Meaning.GONE:
            raise DeviceGoneError(code)
        if what is Meaning.DOWN:
            raise NvmlDownError(code)
        if what is Meaning.EMPTY:
            return False
        self.absent[field] = what.value
        if what is not Meaning.ERROR:
            self._refuse(what, field, variant)
        if what is not Meaning.UNSUPPORTED and (field, what.value) not in self._logged:
            self._logged.add((field, what.value))
            _log.warning(
                "gpu_field_unavailable", gpu=self._device, field=field, reason=what.value, nvml_code=code, once=True
            )
        return True

    def _refuse(self, what: Meaning, field: str, variant: object) -> None:
        known = self._refused.get((field, variant))
        times = known.times + 1 if known else 0
        wait = min(RETRY_REFUSED, RETRY_UNKNOWN * 2**times) if what is Meaning.UNKNOWN else RETRY_REFUSED
        self._refused[field, variant] = _Refusal(what.value, self._clock() + wait, min(times, 10))
