"""Whose memory it is: processes on the GPUs told apart by role, only on proof, and the GPUs that vLLM runs on.

A pid that NVML lists counts as *proven* when it exists here, started before NVML was asked, and either has an NVIDIA
device open or carries vLLM's process title. Without that a pid of another namespace, or a reused one, would be taken
for whatever local process has its number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from llmobs.gpu.processes import Listed, ProcessList
from llmobs.gpu.procfs import Process, Procfs
from llmobs.gpu.visibility import UNNAMED, Gpu, from_environment
from llmobs.snapshot import GpuProcess

#: Seconds between looks through all of /proc for a vLLM that no GPU lists, and through the sockets for its server.
SCAN_INTERVAL = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is known about the watched vLLM: its GPUs, its processes, the TCP ports it serves on here."""

    uuids: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The verdict for one GPU. `owned_bytes` is what its processes hold together; None unless all are known."""

    processes: tuple[GpuProcess, ...] = ()
    owned_bytes: float | None = None
    watched: bool | None = None
    watched_proof: str = "none"


class Attribution:
    """Attributes what NVML lists. Remembers on which GPUs vLLM was last proven, as long as nothing contradicts it."""

    def __init__(self, procfs: Procfs, watch: Watch) -> None:
        self.watch = watch
        self._procfs = procfs
        self._on: tuple[frozenset[str], str] | None = None
        self._seen_here = False
        #: The servers that listen on the watched ports: among which processes, until when that holds, their pids.
        self._listeners: tuple[object, float, frozenset[int]] = (None, 0.0, frozenset())
        self._scan_at = 0.0

    def __call__(self, gpus: Collection[Gpu], lists: Mapping[str, ProcessList], now: float) -> dict[str, Owners]:
        """Return the owners by GPU; `lists` has the GPUs whose processes could be listed, `now` is monotonic."""
        self._procfs.begin()
        proven: dict[str, list[tuple[Listed, list[Process] | None]]] = {
            uuid: [(entry, self._prove(entry.pid, listed.asked_at)) for entry in listed.entries]
            for uuid, listed in lists.items()
        }
        chains = [chain for found in proven.values() for _, chain in found if chain]
        roots = self._roots(chains, now)
        mine = {
            uuid: any(chain and _depth(chain, roots) is not None for _, chain in found)
            for uuid, found in proven.items()
        }
        self._seen_here = self._seen_here or any(mine.values())
        self._locate(gpus, frozenset(uuid for uuid, here in mine.items() if here), now)
        return {gpu.uuid: self._owners(gpu.uuid, proven.get(gpu.uuid), roots, lists) for gpu in gpus}

    def _prove(self, pid: int, asked_at: float) -> list[Process] | None:
        chain = self._procfs.ancestry(pid)
        if not chain or chain[0].started > asked_at:
            return None
        return chain if chain[0].title is not None or chain[0].holds_gpu() else None

    def _roots(self, chains: Collection[list[Process]], now: float) -> frozenset[int] | None:
        """Return the pids at the top of the watched vLLM; None when there are several vLLMs and ours is not known."""
        if self.watch.pids:
            return self.watch.pids
        servers = {process.pid: process for chain in chains for process in chain if process.is_vllm}
        tops = frozenset(top for chain in chains if (top := _top(chain)) is not None)
        if not self.watch.ports or not servers:
            return tops if len(tops) <= 1 else None
        here = (self.watch.ports, frozenset((p.pid, p.started) for p in servers.values()))
        known_here, known_until, known = self._listeners
        if known_here == here and now < known_until:
            return known
        sockets = self._procfs.listening(self.watch.ports)
        if not sockets:
            return None  # the watched server is not up (yet): a vLLM that is here may be another one
        listeners = {pid for pid, process in servers.items() if not sockets.isdisjoint(process.files())}
        roots = frozenset(_top(chain) or p.pid for chain in chains for p in chain if p.pid in listeners)
        if not roots:
            # Whose socket it is cannot be seen from another user: of one vLLM alone it is known all the same.
            return tops if len(tops) <= 1 else None
        self._listeners = (here, now + SCAN_INTERVAL, roots)
        return roots

    def _locate(self, gpus: Collection[Gpu], listed: frozenset[str], now: float) -> None:
        """Find out which GPUs vLLM runs on: from configuration, NVML's lists, its environment, or its open devices."""
        if self.watch.uuids:
            self._on = (self.watch.uuids, "config")
        elif listed:
            self._on = (listed, "procfs")
        elif self._on is None and now >= self._scan_at:
            self._scan_at = now + SCAN_INTERVAL
            if (found := self._from_processes(gpus, now)) is not None:
                self._on = (found, "procfs")

    def _from_processes(self, gpus: Collection[Gpu], now: float) -> frozenset[str] | None:
        chains = [self._procfs.ancestry(process.pid) for process in self._procfs.vllm()]
        roots = self._roots(chains, now)
        if not roots:
            return None
        ours = [chain[0] for chain in chains if chain and _depth(chain, roots) is not None]
        for process in ours:
            if found := from_environment(process.environment(), gpus):
                return found
        minors = {minor for process in ours for minor in process.minors()}
        return frozenset(gpu.uuid for gpu in gpus if gpu.minor in minors) or None

    def _owners(
        self,
        uuid: str,
        found: list[tuple[Listed, list[Process] | None]] | None,
        roots: frozenset[int] | None,
        lists: Mapping[str, ProcessList],
    ) -> Owners:
        on, proof = self._on if self._on is not None else (None, "none")
        # A GPU that was lost before it could be named may be one of vLLM's.
        watched = None if on is None or uuid.startswith(UNNAMED) else uuid in on
        if found is None:
            return Owners(watched=watched, watched_proof=proof)
        sums: dict[tuple[str, str], float | None] = {}
        for entry, chain in found:
            if chain is None or (role := self._role(chain, roots)) is None:
                continue
            so_far = sums.get(role, 0.0)
            sums[role] = None if so_far is None or entry.memory_bytes is None else so_far + entry.memory_bytes
        processes = tuple(
            GpuProcess(role=role, proof=how, memory_bytes=total)
            for (role, how), total in sorted(sums.items())
            if total is not None
        )
        return Owners(
            processes=processes, owned_bytes=self._owned(found, lists[uuid]), watched=watched, watched_proof=proof
        )

    def _owned(self, found: list[tuple[Listed, list[Process] | None]], listed: ProcessList) -> float | None:
        """Return the bytes that visible processes own, or None when a process may be hidden from us.

        A driver that translates pids leaves out those of other namespaces, so that a short list proves nothing, unless
        this is the host's namespace or vLLM's processes were seen here before.
        """
        if not listed.complete or not (self._seen_here or self._procfs.sees_all):
            return None
        held = [entry.memory_bytes if chain is not None else None for entry, chain in found]
        known = [memory for memory in held if memory is not None]
        return sum(known) if len(known) == len(held) else None

    def _role(self, chain: list[Process], roots: frozenset[int] | None) -> tuple[str, str] | None:
        depth = _depth(chain, roots)
        if depth is not None:
            # EngineCore is a child of the server, workers are its children; the title says it where there is one.
            title = chain[0].title
            worker = title == "Worker" or (title is None and depth >= 2)
            return ("worker" if worker else "engine"), ("config" if self.watch.pids else "procfs")
        if roots is None and _top(chain) is not None:
            return None  # one of several vLLMs, and it is not known which one is watched
        return "foreign", "procfs"


def _top(chain: list[Process]) -> int | None:
    """Return the pid of the topmost vLLM process in an ancestry, or None."""
    return next((process.pid for process in reversed(chain) if process.is_vllm), None)


def _depth(chain: list[Process], roots: frozenset[int] | None) -> int | None:
    """Return how far below a root the first process of the ancestry is, or None when it is not below one."""
    for depth, process in enumerate(chain):
        if roots is not None and process.pid in roots:
            return depth
    return None
