"""Arrivals: a Poisson process whose rate swings over the day, and what each request is like. Pure and seeded."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Iterable

from llmobs.simulate.request import Request
from llmobs.simulate.scenario import Event, Lengths, ModelSettings, Traffic

#: Nobody answers faster than this, in seconds.
SHORTEST_THOUGHT = 1.0


class Source:
    """Requests of one model. `change` applies the events that are active now."""

    def __init__(self, model: ModelSettings, rng: random.Random) -> None:
        self.model = model
        self.traffic = model.traffic
        self._rng = rng
        self._ids = itertools.count()
        self._next: float | None = None
        self._turns: list[tuple[float, int, Request]] = []
        prefix = model.traffic.prefix
        weights = (1 / (rank + 1) ** prefix.skew for rank in range(prefix.families))
        self._popularity = list(itertools.accumulate(weights))

    def rate(self, at: float) -> float:
        """Requests per second at this moment."""
        traffic = self.traffic
        swing = traffic.daily_swing * math.cos(2 * math.pi * at / traffic.day_seconds)
        return max(0.0, traffic.rate * (1 - swing))

    def change(self, events: Iterable[Event], now: float) -> None:
        """Apply the active `traffic` events; what was drawn for the future under other conditions is drawn again."""
        self.traffic = changed(self.model.traffic, events)
        self._next = self._draw(now)

    def next_arrival(self, now: float) -> float:
        """Time of the next arrival, infinite when none will come."""
        if self._next is None:
            self._next = self._draw(now)
        return min(self._next, self._turns[0][0] if self._turns else math.inf)

    def take(self, at: float, *, trace: str | None) -> Request:
        """Return the request that arrives at `at`, which is `next_arrival`."""
        if self._turns and self._turns[0][0] <= at:
            return self._turn(heapq.heappop(self._turns)[2], at, trace)
        self._next = self._draw(at)
        return self._fresh(at, trace)

    def ended(self, request: Request, now: float) -> None:
        """Let the client of a finished request think about a next turn."""
        if request.think is not None:
            heapq.heappush(self._turns, (now + request.think, next(self._ids), request))

    def forget(self) -> None:
        """Forget what was to come: after an outage clients begin anew."""
        self._turns.clear()
        self._next = None

    def _draw(self, now: float) -> float:
        peak = self.traffic.rate * (1 + self.traffic.daily_swing)
        if peak <= 0:
            return math.inf
        at = now
        while True:  # thinning: candidates at the highest rate, kept with the share of it that holds then
            at += self._rng.expovariate(peak)
            if self._rng.random() * peak <= self.rate(at):
                return at

    def _think(self) -> float | None:
        # Decided at arrival, so that chance does not depend on the order in which several engines are looked at.
        if self._rng.random() >= self.traffic.follow_up_ratio:
            return None
        return max(SHORTEST_THOUGHT, self._rng.expovariate(1 / max(self.traffic.think_seconds, SHORTEST_THOUGHT)))

    def _length(self, lengths: Lengths) -> int:
        spread = lengths.spread
        value = self._rng.lognormvariate(math.log(max(lengths.mean, 1)) - spread * spread / 2, spread)
        return int(min(max(value, lengths.minimum, 1), lengths.maximum))

    def _fresh(self, at: float, trace: str | None) -> Request:
        rng, traffic, engine = self._rng, self.traffic, self.model.engine
        prompt = self._length(traffic.prompt)
        family, blocks = None, 0
        if rng.random() < traffic.prefix.share:
            family = ("family", bisect_left(self._popularity, rng.random() * self._popularity[-1]))
            blocks = traffic.prefix.tokens // engine.block_size
            prompt += traffic.prefix.tokens
        compile_until = at + traffic.structured_compile_seconds if rng.random() < traffic.structured_ratio else 0.0
        output = self._length(traffic.output)
        max_tokens = min(traffic.max_tokens, engine.max_model_len - 1)
        prompt = min(prompt, engine.max_model_len - min(output, max_tokens))
        if blocks * engine.block_size >= prompt:
            blocks = (prompt - 1) // engine.block_size
        return Request(
            arrival=at, prompt=prompt, output=output, max_tokens=max_tokens, conversation=next(self._ids),
            family=family, family_blocks=blocks, ready_at=compile_until, trace=trace,
            adapter=rng.choice(traffic.adapters) if traffic.adapters else None,
            error=rng.random() < traffic.error_ratio, corrupted=rng.random() < traffic.corrupted_ratio,
            think=self._think(),
        )  # fmt: skip

    def _turn(self, before: Request, at: float, trace: str | None) -> Request:
        engine = self.model.engine
        prompt = before.prompt + before.generated + self._length(self.traffic.prompt) // 4
        output = self._length(self.traffic.output)
        if prompt + min(output, before.max_tokens) > engine.max_model_len:
            return self._fresh(at, trace)
        return Request(
            arrival=at, prompt=prompt, output=output, max_tokens=before.max_tokens, conversation=before.conversation,
            family=before.family, family_blocks=before.family_blocks, trace=trace, turn=before.turn + 1,
            adapter=before.adapter, think=self._think(),
        )  # fmt: skip


def changed(traffic: Traffic, events: Iterable[Event]) -> Traffic:
    """Return the traffic under the given `traffic` events, later ones winning."""
    for event in events:
        replaced = {
            name: value
            for name in ("timeout_seconds", "abort_ratio", "error_ratio", "invalid_ratio", "context_length_ratio")
            if (value := getattr(event, name)) is not None
        }
        traffic = dataclasses.replace(
            traffic,
            rate=traffic.rate * _factor(event.rate_factor),
            prompt=_scaled(traffic.prompt, event.prompt_factor),
            output=_scaled(traffic.output, event.output_factor),
            prefix=traffic.prefix
            if event.prefix_share is None
            else dataclasses.replace(traffic.prefix, share=event.prefix_share),
            **replaced,
        )
    return traffic


def _factor(value: float | None) -> float:
    return 1.0 if value is None else value


def _scaled(lengths: Lengths, factor: float | None) -> Lengths:
    return lengths if factor is None else dataclasses.replace(lengths, mean=lengths.mean * factor)
