"""NVML's life in this process: starting it once, finding the GPUs, and starting it again after the driver went away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from llmobs.gpu import nvml
from llmobs.gpu.calls import ErrorCounts
from llmobs.gpu.device import Identity
from llmobs.gpu.visibility import UNNAMED

_log = structlog.get_logger("llmobs.gpu")

#: Seconds until the next try: doubling between these after a failure, fixed where only a new container helps.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 30.0
_LIBRARY_RETRY = 300.0
_NO_LIBRARY = 12

_NO_DEVICES = (
    "the driver works, but shows no GPU: none is installed, or none was given to this container "
    "(NVIDIA_VISIBLE_DEVICES=all)"
)


@dataclass(frozen=True, slots=True)
class Down:
    """NVML does not work: a reason out of `GpuSnapshot.reason`, and a sentence for people."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """NVML works. `session` counts initialisations: handles of an earlier one are void.

    `found` has a handle per GPU. A GPU that could not even be identified is in `lost`, with its reason and a name made
    of its index in place of the UUID.
    """

    session: int
    nvml: Any
    found: tuple[tuple[Identity, Any], ...]
    lost: tuple[tuple[Identity, str], ...]
    driver_version: str | None
    cuda_version: str | None


class Session:
    """Keeps NVML initialised. Every method calls the driver, and so belongs on a thread that may hang."""

    def __init__(self, errors: ErrorCounts, clock: Callable[[], float], before_shutdown: Callable[[], bool]) -> None:
        """`before_shutdown` gives back what was taken from NVML, and says whether a shutdown is safe."""
        self._errors = errors
        self._clock = clock
        self._before_shutdown = before_shutdown
        self._module: Any = None
        self._initialised = False
        self._sessions = 0
        self._up: Up | None = None
        self._down: Down | None = None
        self._retry_at = 0.0
        self._pause = _FIRST_RETRY
        self._looked_at = 0.0

    def ensure(self, *, look_again: bool) -> Up | Down:
        """Return the running session, starting it when it is due; `look_again` gets new handles for all GPUs."""
        if self._down is not None and self._clock() < self._retry_at:
            return self._down
        try:
            if not self._initialised:
                self._module = nvml.load()
                self._call("nvmlInit")
                self._initialised = True
                self._sessions += 1
            count = self._call("nvmlDeviceGetCount")
            if self._up is None or look_again or self._outdated(self._up, count):
                self._up = self._enumerate(count)
        except nvml.NvmlDownError as error:
            return self.fail(error)
        if count == 0:
            self._down = Down("no_devices", _NO_DEVICES)
            return self._down
        self._down, self._pause = None, _FIRST_RETRY
        return self._up

    def fail(self, error: nvml.NvmlDownError) -> Down:
        """Take note that NVML is down, shut it down, and return why."""
        if self._initialised:
            self._shutdown()
        self._retry_at = self._clock() + (_LIBRARY_RETRY if error.code == _NO_LIBRARY else self._pause)
        self._pause = min(self._pause * 2, _LONGEST_RETRY)
        self._down = Down(error.reason, str(error))
        return self._down

    def close(self) -> None:
        """Give NVML back to the driver."""
        if self._initialised:
            self._shutdown()

    def _shutdown(self) -> None:
        self._up, self._initialised = None, False
        if not self._before_shutdown():
            return  # a call is stuck in the driver: shutting down under it would be worse than a leaked reference
        try:
            self._module.nvmlShutdown()
        except self._module.NVMLError as error:
            _log.debug("nvml_shutdown_failed", nvml_code=int(error.value))

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, function)(*arguments)
        except self._module.NVMLError as error:
            code = int(error.value)
            self._errors.add(code)
            raise nvml.NvmlDownError(code) from error

    def _outdated(self, up: Up, count: int) -> bool:
        """Return whether GPUs came or went, or one that could not be identified is due for another try."""
        retry = bool(up.lost) and self._clock() - self._looked_at >= _LONGEST_RETRY
        return retry or count != len(up.found) + len(up.lost)

    def _enumerate(self, count: int) -> Up:
        self._looked_at = self._clock()
        found: list[tuple[Identity, Any]] = []
        lost: list[tuple[Identity, str]] = []
        for index in range(count):
            try:
                handle = self._module.nvmlDeviceGetHandleByIndex(index)
                found.append((self._identify(index, handle), handle))
            except self._module.NVMLError as error:  # noqa: PERF203  one GPU must not stop the others
                code = int(error.value)
                self._errors.add(code)
                if nvml.meaning(code) is nvml.Meaning.DOWN:
                    raise nvml.NvmlDownError(code) from error
                lost.append((Identity(uuid=f"{UNNAMED}{index}", index=index), nvml.GONE_REASONS.get(code, "error")))
        return Up(
            session=self._sessions,
            nvml=self._module,
            found=tuple(found),
            lost=tuple(lost),
            driver_version=self._optional("nvmlSystemGetDriverVersion"),
            cuda_version=_cuda(self._optional("nvmlSystemGetCudaDriverVersion_v2")),
        )

    def _identify(self, index: int, handle: Any) -> Identity:
        pci = self._optional("nvmlDeviceGetPciInfo", handle)
        bus_id = getattr(pci, "busId", None)
        return Identity(
            uuid=str(self._module.nvmlDeviceGetUUID(handle)),
            index=index,
            name=self._optional("nvmlDeviceGetName", handle),
            pci_bus_id=bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id,
            minor=self._optional("nvmlDeviceGetMinorNumber", handle),
        )

    def _optional(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, function)(*arguments)
        except (self._module.NVMLError, AttributeError, UnicodeDecodeError):
            return None


def _cuda(version: int | None) -> str | None:
    """Return 12.8 for 12080, as nvidia-smi prints it."""
    return None if not version else f"{version // 1000}.{version % 1000 // 10}"
