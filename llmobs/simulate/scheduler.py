"""Who runs: the waiting queue, admission, blocks, and preemption of one simulated engine."""

from __future__ import annotations

import random
from collections import deque

from llmobs.simulate.kv import BlockPool
from llmobs.simulate.request import Request
from llmobs.simulate.scenario import EngineSettings
from llmobs.simulate.tally import Tally


class Scheduler:
    """The waiting queue, the running batch and the blocks of one engine; `llmobs.simulate.engine` makes the steps."""

    def __init__(self, settings: EngineSettings, tally: Tally, rng: random.Random) -> None:
        self.settings = settings
        self.tally = tally
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.pool = BlockPool(settings.kv_blocks)
        if settings.kv_cache_metrics:
            self.pool.on_evict = self._evicted
            self.pool.on_reuse = tally.block_gap.observe
        self._rng = rng
        self._deferred = 0

    @property
    def in_flight(self) -> int:
        """Sequences that are here: waiting or running."""
        return len(self.waiting) + len(self.running)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens in the queue."""
        return sum(r.prompt for r in self.waiting)

    def oldest_waiting(self) -> float | None:
        """Arrival of the request that has waited longest, or None."""
        return min((r.arrival for r in self.waiting if not r.left), default=None)

    def _admit(self, plan: list[tuple[Request, int]], budget: int, now: float) -> None:
        skipped: list[Request] = []
        loras = {r.adapter for r in self.running if r.adapter}
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if request.adapter and request.adapter not in loras and len(loras) >= self.settings.max_loras:
                skipped.append(self.waiting.popleft())
                continue
            if request.ready_at > now or (not request.fetched and self._fetch(request, now)):
                skipped.append(self.waiting.popleft())
                continue
            count = self._place(request, budget, now)
            if not count:
                break
            self.waiting.popleft()
            self.running.append(request)
            if request.adapter:
                loras.add(request.adapter)
            plan.append((request, count))
            budget -= count
        self.waiting.extendleft(reversed(skipped))
        self._deferred = len(skipped)

    def _fetch(self, request: Request, now: float) -> bool:
        """Ask the KV connector once per request; return whether the request now waits for a transfer."""
        request.fetched = True
        connector, tally = self.settings.connector, self.tally
        if not connector.enabled:
            return False
        local = self.pool.size(request.family) if request.family is not None else 0
        local = min(local, request.family_blocks) * self.settings.block_size
        missing = request.prompt - local
        if missing <= self.settings.block_size or self._rng.random() >= connector.hit_ratio:
            return False
        if self._rng.random() < connector.failure_ratio:
            tally.transfer_failures += 1
            return False
        tokens = (missing - 1) // self.settings.block_size * self.settings.block_size
        size = tokens * self.settings.kv_bytes_per_token
        seconds = 0.002 + size / connector.bytes_per_second
        tally.transfer_time.observe(seconds)
        tally.offload_bytes["load"] += size
        tally.offload_seconds["load"] += seconds
        request.external = tokens
        request.ready_at = now + seconds
        return True

    def _place(self, request: Request, budget: int, now: float) -> int:
        """Look the request's beginning up and give it blocks; return the tokens of its first step, 0 for no room."""
        pool, size = self.pool, self.settings.block_size
        limit = (request.tokens - 1) // size  # at least one token is always computed
        hit = 0
        if self.settings.prefix_caching:
            if request.family is not None:
                pool.acquire(request.family, now)
                request.held_family = True
                hit = request.shared = min(pool.size(request.family), request.family_blocks, limit)
            own = pool.take_back(request.conversation, now) if request.conversation is not None else 0
            kept = min(own, max(0, limit - hit)) if hit == request.family_blocks else 0
            pool.free(own - kept)
            request.blocks = kept
            hit += kept
        local = hit * size
        external = max(0, min(request.external, request.tokens - 1 - local)) // size * size if not request.seen else 0
        start = local + external
        count = min(request.tokens - start, budget)
        request.computed = start
        if not self._reserve(request, count, now):
            self._let_go(request, now)
            request.computed = 0
            return 0
        self._count_lookup(request, local, external)
        if not request.seen:
            request.seen = True
            request.first_scheduled = now
        return count

    def _count_lookup(self, request: Request, local: int, external: int) -> None:
        tally = self.tally
        if not self.settings.prefix_caching:
            return
        if request.seen:
            tally.preempted_queries += request.tokens
            tally.preempted_hits += local
            return
        tally.prefix_queries += request.prompt
        tally.prefix_hits += local
        tally.cached_tiers["device"] += local
        request.cached, request.external = local, external
        if self.settings.connector.enabled:
            tally.external_queries += request.prompt - local
            tally.external_hits += external
            tally.cached_tiers["host"] += external

    def _reserve(self, request: Request, count: int, now: float) -> bool:
        have = request.shared + request.blocks
        need = -(-(request.computed + count) // self.settings.block_size) - have
        if need <= 0:
            return True
        if not self.pool.allocate(need, now):
            return False
        request.blocks += need
        return True

    def _preempt(self, request: Request, now: float) -> None:
        self._let_go(request, now)
        request.computed = 0
        request.preemptions += 1
        self.tally.preemptions += 1
        self.waiting.appendleft(request)

    def _let_go(self, request: Request, now: float) -> None:
        """Give up all blocks; full ones with computed content stay cached until somebody needs the room."""
        pool = self.pool
        full = max(0, min(request.blocks, request.computed // self.settings.block_size - request.shared))
        if not self.settings.prefix_caching or request.conversation is None or request.shared < request.family_blocks:
            full = 0
        pool.free(request.blocks - full)
        pool.keep(request.conversation, full, now)
        request.blocks = 0
        request.shared = 0
        if request.held_family:
            pool.release(request.family, now)
            request.held_family = False

    def _publish(self) -> None:
        gauges = self.tally.gauges
        gauges.running, gauges.waiting = len(self.running), len(self.waiting)
        gauges.deferred = min(self._deferred, gauges.waiting)
        gauges.usage = self.pool.usage
        for adapters, requests in ((gauges.lora_running, self.running), (gauges.lora_waiting, self.waiting)):
            adapters.clear()
            for request in requests:
                if request.adapter:
                    adapters[request.adapter] = adapters.get(request.adapter, 0.0) + 1

    def _evicted(self, lifetime: float, idle: float) -> None:
        self.tally.block_lifetime.observe(lifetime)
        self.tally.block_idle.observe(idle)
