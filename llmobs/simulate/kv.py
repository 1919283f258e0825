"""The paged KV cache: blocks in use, and blocks that are kept because a later request may begin the same way.

A `Chain` is a run of blocks that hold the beginning of some text. While a request uses it (`refs` > 0) it is part of
the used blocks; afterwards it stays as a candidate for reuse until its blocks are needed, the least recently used
chain first and from its end, which is the order in which vLLM's free queue gives them up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable


class Chain:
    """Cached blocks of one text. Times are seconds of the simulation."""

    __slots__ = ("created", "last_used", "refs", "size")

    def __init__(self, now: float) -> None:
        self.size = 0
        self.refs = 0
        self.created = now
        self.last_used = now


class BlockPool:
    """All blocks of one engine.

    Of the `total`, `held` are owned by running requests alone, `shared` are in chains that running requests use,
    `cached` are in chains that nobody uses; the rest is empty.
    `on_evict` is called with (lifetime, idle) in seconds, and `on_reuse` with the gap, when a chain is cut or used.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.shared = 0
        self.cached = 0
        self.on_evict: Callable[[float, float], None] | None = None
        self.on_reuse: Callable[[float], None] | None = None
        self._chains: dict[Hashable, Chain] = {}
        self._unused: OrderedDict[Hashable, Chain] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that running requests need, as vLLM's usage counts them."""
        return self.held + self.shared

    @property
    def usage(self) -> float:
        """Used blocks ÷ all blocks, 0–1."""
        return self.used / self.total

    def size(self, key: Hashable) -> int:
        """Return how many blocks of the chain are there."""
        chain = self._chains.get(key)
        return chain.size if chain is not None else 0

    def acquire(self, key: Hashable, now: float) -> None:
        """Use a chain (made empty if it is not there): its blocks can't be evicted until released."""
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = Chain(now)
        elif chain.refs == 0:
            del self._unused[key]
            self.cached -= chain.size
            self.shared += chain.size
        if chain.size and self.on_reuse is not None:
            self.on_reuse(now - chain.last_used)
        chain.refs += 1
        chain.last_used = now

    def release(self, key: Hashable, now: float) -> None:
        """Stop using a chain."""
        chain = self._chains[key]
        chain.refs -= 1
        chain.last_used = now
        if chain.refs:
            return
        if not chain.size:
            del self._chains[key]
            return
        self.shared -= chain.size
        self.cached += chain.size
        self._unused[key] = chain

    def allocate(self, blocks: int, now: float) -> bool:
        """Give a request `blocks` more of its own, evicting cached ones; False when there are not enough."""
        if blocks > self.total - self.used:
            return False
        self._evict(blocks - (self.total - self.used - self.cached), now)
        self.held += blocks
        return True

    def free(self, blocks: int) -> None:
        """Take back blocks whose content is worth nothing."""
        self.held -= blocks

    def extend(self, key: Hashable, blocks: int) -> None:
        """Turn a request's own blocks into the continuation of a chain that it uses."""
        self.held -= blocks
        self.shared += blocks
        self._chains[key].size += blocks

    def keep(self, key: Hashable, blocks: int, now: float) -> None:
        """Turn a request's own blocks into an unused chain."""
        if blocks <= 0:
            return
        self.held -= blocks
        self.cached += blocks
        chain = Chain(now)
        chain.size = blocks
        self._chains[key] = self._unused[key] = chain

    def take_back(self, key: Hashable, now: float) -> int:
        """Make an unused chain a request's own again; return its blocks."""
        chain = self._unused.pop(key, None)
        if chain is None:
            return 0
        del self._chains[key]
        self.cached -= chain.size
        self.held += chain.size
        if self.on_reuse is not None:
            self.on_reuse(now - chain.last_used)
        return chain.size

    def _evict(self, blocks: int, now: float) -> None:
        while blocks > 0:
            key, chain = next(iter(self._unused.items()))
            taken = min(blocks, chain.size)
            chain.size -= taken
            self.cached -= taken
            blocks -= taken
            if self.on_evict is not None:
                self.on_evict(now - chain.created, now - chain.last_used)
            if not chain.size:
                del self._unused[key]
                del self._chains[key]
