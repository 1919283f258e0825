"""What /proc says about a process: whether it is the one that NVML means, and whether it belongs to vLLM."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

#: The inode of the first pid namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h).
_INIT_NAMESPACE = "pid:[4026531836]"
_TICKS = os.sysconf("SC_CLK_TCK")
_TITLE = re.compile(r"^[\w.-]+::(EngineCore|Worker|APIServer|DPCoordinator)")
_DEVICE = re.compile(r"^/dev/nvidia(\d+)$")
_GPU_FILE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm|-caps/)")


@dataclass(eq=False)
class Process:
    """One process. `started` is in seconds since boot; with the pid it names the process for good."""

    root: Path
    pid: int
    parent: int
    started: float
    _held_gpu: bool = False

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The command line; empty for a zombie."""
        try:
            raw = (self.root / str(self.pid) / "cmdline").read_bytes()
        except OSError:
            return ()
        return tuple(part.decode(errors="replace") for part in raw.split(b"\0") if part)

    @property
    def title(self) -> str | None:
        """What vLLM calls the process (EngineCore, Worker, …) where setproctitle is installed."""
        found = _TITLE.match(self.arguments[0]) if self.arguments else None
        return found.group(1) if found else None

    @property
    def is_vllm(self) -> bool:
        """Whether the command line is one of vLLM's: a process title, ``vllm serve``, or its server module."""
        arguments = self.arguments
        if self.title is not None:
            return True
        if any(argument.startswith("vllm.entrypoints.") for argument in arguments):
            return True
        return any(Path(a).name == "vllm" and b == "serve" for a, b in zip(arguments, arguments[1:]))

    def files(self) -> Iterator[str]:
        """Yield what the process has open, where we may look (same user, or SYS_PTRACE)."""
        try:
            with os.scandir(self.root / str(self.pid) / "fd") as entries:
                for entry in entries:
                    try:
                        # readlink gives text that is not a path (socket:[123]).
                        yield os.readlink(entry.path)  # noqa: PTH115
                    except OSError:  # noqa: PERF203  closed meanwhile
                        continue
        except OSError:
            return

    def holds_gpu(self) -> bool:
        """Return whether the process has, or had since we know it, an NVIDIA device open or mapped."""
        self._held_gpu = self._held_gpu or any(_GPU_FILE.match(name) for name in self.files()) or self._maps_gpu()
        return self._held_gpu

    def refresh(self) -> None:
        """Read the command line again: a script execs vLLM, and vLLM sets its title, after the process has started."""
        if self.title is None:
            self.__dict__.pop("arguments", None)

    def minors(self) -> set[int]:
        """Return the N of each /dev/nvidiaN the process has open."""
        return {int(found.group(1)) for name in self.files() if (found := _DEVICE.match(name))}

    def environment(self) -> dict[str, str]:
        """Return the variables the process was started with; empty where we may not look."""
        try:
            raw = (self.root / str(self.pid) / "environ").read_bytes()
        except OSError:
            return {}
        pairs = (part.decode(errors="replace").partition("=") for part in raw.split(b"\0"))
        return {name: value for name, found, value in pairs if found}

    def _maps_gpu(self) -> bool:
        try:
            with (self.root / str(self.pid) / "maps").open(encoding="utf-8", errors="replace") as maps:
                return any(" /dev/nvidia" in line for line in maps)
        except OSError:
            return False


class Procfs:
    """A /proc. Processes are remembered by pid and start time, so that a reused pid is another process."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: dict[int, Process] = {}
        self._current: dict[int, Process | None] = {}

    def begin(self) -> None:
        """Start a cycle, in which each process is looked at once."""
        self._known = {pid: process for pid, process in self._current.items() if process is not None}
        self._current = {}

    @cached_property
    def sees_all(self) -> bool:
        """Whether this is the host's pid namespace, where no process is out of sight."""
        try:
            return (self._root / "self" / "ns" / "pid").readlink() == Path(_INIT_NAMESPACE)
        except OSError:
            return False

    def process(self, pid: int) -> Process | None:
        """Return the process with that pid, or None."""
        if pid not in self._current:
            self._current[pid] = self._look(pid)
        return self._current[pid]

    def ancestry(self, pid: int) -> list[Process]:
        """Return the process and its ancestors, nearest first; empty when it is gone."""
        chain: list[Process] = []
        while pid > 0 and len(chain) < 32 and (process := self.process(pid)) is not None:
            chain.append(process)
            pid = process.parent
        return chain

    def vllm(self) -> list[Process]:
        """Return every visible process of vLLM. Reads all of /proc."""
        try:
            pids = [int(entry.name) for entry in self._root.iterdir() if entry.name.isdigit()]
        except OSError:
            return []
        return [process for pid in pids if (process := self.process(pid)) is not None and process.is_vllm]

    def listening(self, ports: frozenset[int]) -> set[str]:
        """Return the sockets (``socket:[inode]``) that listen on one of the TCP ports in this network namespace."""
        found = set()
        for name in ("tcp", "tcp6"):
            try:
                lines = (self._root / "self" / "net" / name).read_text(encoding="ascii").splitlines()[1:]
            except OSError:
                continue
            for line in lines:
                part = line.split()
                if part[3] == "0A" and int(part[1].rpartition(":")[2], 16) in ports:
                    found.add(f"socket:[{part[9]}]")
        return found

    def _look(self, pid: int) -> Process | None:
        try:
            text = (self._root / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            # The name in field 2 may hold anything, also blanks and brackets.
            rest = text[text.rindex(")") + 1 :].split()
            parent, started = int(rest[1]), int(rest[19]) / _TICKS
        except (OSError, ValueError, IndexError):
            return None
        known = self._known.get(pid)
        if known is None or known.started != started:
            return Process(self._root, pid, parent, started)
        known.parent = parent  # an orphan gets another one
        known.refresh()
        return known
