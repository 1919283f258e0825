"""The block pool never loses, invents or gives out a block twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llmobs.simulate.kv import BlockPool

TOTAL = 40
KEYS = st.sampled_from("abcdef")


class Pool(RuleBasedStateMachine):
    """Any order of what engines do with blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.mine = 0
        self.uses: dict[str, int] = {}
        self.now = 0.0
        self.evicted: list[tuple[float, float]] = []
        self.pool.on_evict = lambda lifetime, idle: self.evicted.append((lifetime, idle))

    @rule(blocks=st.integers(0, TOTAL + 5))
    def allocate(self, blocks: int) -> None:
        self.now += 1
        room = TOTAL - self.pool.used
        assert self.pool.allocate(blocks, self.now) == (blocks <= room)
        if blocks <= room:
            self.mine += blocks

    @rule(key=KEYS)
    def acquire(self, key: str) -> None:
        self.now += 1
        self.pool.acquire(key, self.now)
        self.uses[key] = self.uses.get(key, 0) + 1

    @rule(key=KEYS)
    def release(self, key: str) -> None:
        if self.uses.get(key):
            self.pool.release(key, self.now)
            self.uses[key] -= 1

    @rule(key=KEYS, data=st.data())
    def extend(self, key: str, data: st.DataObject) -> None:
        if self.uses.get(key):
            blocks = data.draw(st.integers(0, self.mine))
            self.pool.extend(key, blocks)
            self.mine -= blocks

    @rule(key=st.integers(), data=st.data())
    def keep(self, key: int, data: st.DataObject) -> None:
        if not self.pool.size(key):
            blocks = data.draw(st.integers(0, self.mine))
            self.pool.keep(key, blocks, self.now)
            self.mine -= blocks

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.integers(0, self.mine))
        self.pool.free(blocks)
        self.mine -= blocks

    @rule(key=st.integers())
    def take_back(self, key: int) -> None:
        size = self.pool.size(key)
        assert self.pool.take_back(key, self.now) == size
        self.mine += size

    @invariant()
    def holds_what_it_was_given(self) -> None:
        assert self.pool.held == self.mine

    @invariant()
    def stays_within_its_size(self) -> None:
        pool = self.pool
        assert min(pool.held, pool.shared, pool.cached) >= 0
        assert pool.used + pool.cached <= TOTAL
        assert 0 <= pool.usage <= 1

    @invariant()
    def chains_in_use_are_not_evicted(self) -> None:
        assert self.pool.shared == sum(self.pool.size(key) for key, uses in self.uses.items() if uses)

    @invariant()
    def evictions_come_after_the_last_use(self) -> None:
        assert all(lifetime >= idle >= 0 for lifetime, idle in self.evicted)


TestPool = Pool.TestCase


def test_least_recently_used_goes_first() -> None:
    """The chain that was used longest ago loses its blocks first, from its end."""
    pool = BlockPool(10)
    for at, key in enumerate("abc"):
        pool.allocate(3, at)
        pool.keep(key, 3, at)
    pool.acquire("a", 3)
    pool.release("a", 3)
    assert pool.allocate(3, 4)  # one block is empty: two of b's go
    assert [pool.size(key) for key in "abc"] == [3, 1, 3]
