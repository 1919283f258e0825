"""A simulated vLLM server: its models and engines, its clients, and its life from loading to death and back.

Phases: ``loading`` (nothing listens), ``ready``, ``dead`` (an engine died: the page is frozen, /health says so, the
process will exit), ``down`` (no process). A new start is a new process: counters, start time and instance begin anew.
The HTTP server around it is `llmobs.simulate.http`; like the engines, this is pure and driven by `advance`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from llmobs.simulate.engine import Engine
from llmobs.simulate.request import Request
from llmobs.simulate.scenario import LASTING, Event, ModelSettings, Scenario
from llmobs.simulate.tally import Tally
from llmobs.simulate.traffic import SHORTEST_THOUGHT, Source


@dataclass(slots=True)
class Totals:
    """Requests of all server runs together, by where they are now."""

    arrived: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Death:
    """An engine death: what the failure journal and the log would tell. `kind` is cuda, host or None."""

    at: float
    instance: str
    kind: str | None
    lost: tuple[tuple[str, str, int], ...]  # model, engine, sequences in flight


@dataclass(slots=True)
class Process:
    """What begins anew with each start of the server."""

    started_at: float
    ready_at: float
    instance: str
    engines: dict[str, list[Engine]] = field(default_factory=dict)


class SimulatedVllm:
    """One server of a scenario. `wall` maps seconds of the simulation to Unix time.

    `on_death` is called once for every engine death.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        wall: Callable[[float], float] = float,
        on_death: Callable[[Death], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.wall = wall
        self.now = 0.0
        self.phase = "down"
        self.active: list[Event] = []
        self.xids: list[tuple[float, int]] = []
        self.leaked_bytes = 0.0
        self.past = Totals()
        self._on_death = on_death
        self._rng = random.Random(scenario.seed)
        self._order = itertools.count()
        self._timeline: list[tuple[float, int, str, Event]] = []
        self._clients: list[tuple[float, int, str, Engine, Request]] = []
        self._change_at = math.inf  # when the phase ends by itself
        self._sources = {m.name: Source(m, random.Random(self._rng.random())) for m in scenario.models}
        for event in scenario.events:
            self._schedule(event.at, "begin", event)
        self.process = Process(0.0, 0.0, "")
        self._start(0.0, 0.0 if not scenario.load_at_start else scenario.load_seconds)

    # Reading

    @property
    def listening(self) -> bool:
        """Whether a process answers on the port."""
        return self.phase in ("ready", "dead")

    @property
    def asleep(self) -> int:
        """Sleep level, 0 when awake."""
        return max((event.level for event in self.active if event.kind == "sleep"), default=0)

    def engines(self) -> list[tuple[ModelSettings, int, Engine]]:
        """Return (model, rank, engine) of all engines of the present process."""
        return [(m, i, e) for m in self.scenario.models for i, e in enumerate(self.process.engines.get(m.name, ()))]

    def totals(self) -> Totals:
        """Return requests of all runs: those that arrived, finished well, and failed."""
        found = Totals(self.past.arrived, self.past.finished, self.past.failed)
        for _, _, engine in self.engines():
            tally = engine.tally
            found.arrived += tally.arrived
            found.finished += sum(n for reason, n in tally.finished.items() if reason not in ("error", "abort"))
            found.failed += sum(tally.failed.values())
        return found

    @property
    def in_flight(self) -> int:
        """Sequences of clients that are still waiting for their answer."""
        return sum(1 for _, _, e in self.engines() for r in (*e.waiting, *e.running) if not r.left)

    # Driving

    def advance(self, until: float) -> None:
        """Let everything happen up to `until`, seconds since the scenario began. Going back does nothing."""
        while self.now < until:
            # No further than the shortest thought: a turn that follows on what happens up to `at` comes after it.
            at = min(until, self._next_event(), self.now + SHORTEST_THOUGHT)
            if self.phase == "ready":
                for _, _, engine in self.engines():
                    engine.advance(at)
            elapsed = at - self.now
            self.leaked_bytes += elapsed * sum(e.bytes_per_second for e in self.active if e.kind == "memory_leak")
            self.now = at
            self._happen()

    def _next_event(self) -> float:
        times = [self._change_at]
        if self._timeline:
            times.append(self._timeline[0][0])
        if self._clients:
            times.append(self._clients[0][0])
        if self._taking():
            times.extend(source.next_arrival(self.now) for source in self._sources.values())
        return min(times)

    def _taking(self) -> bool:
        return self.phase == "ready" and not self.asleep

    def _happen(self) -> None:
        now = self.now
        if self._change_at <= now:
            self._next_phase()
        while self._timeline and self._timeline[0][0] <= now:
            _, _, what, event = heapq.heappop(self._timeline)
            self._event(what, event)
        while self._clients and self._clients[0][0] <= now:
            _, _, reason, engine, request = heapq.heappop(self._clients)
            self._leave(engine, request, reason)
        if self._taking():
            for model in self.scenario.models:
                source = self._sources[model.name]
                while source.next_arrival(now) <= now:
                    self._arrive(model, source)

    # Clients

    def _arrive(self, model: ModelSettings, source: Source) -> None:
        now, traffic, rng = self.now, source.traffic, self._rng
        engine = self._route(model)
        tally = engine.tally
        request = source.take(now, trace=tally.trace_id())
        tally.arrived += 1
        if self._refused(engine, request, source):
            return
        if rng.random() < traffic.multimodal_ratio:
            tally.mm_queries += 1
            tally.mm_hits += rng.random() < traffic.multimodal_hit_ratio
        limit = model.engine.max_model_len
        tally.near_limit += request.prompt > 0.9 * limit
        tally.outliers += request.turn == 0 and request.prompt > 3 * (traffic.prompt.mean + traffic.prefix.tokens)
        engine.submit(request, now)
        if traffic.timeout_seconds is not None:
            self._watch(now + traffic.timeout_seconds, "timeout", engine, request)
        if rng.random() < traffic.abort_ratio:
            self._watch(now + rng.expovariate(1 / max(traffic.abort_after_seconds, 1e-3)), "abort", engine, request)

    def _refused(self, engine: Engine, request: Request, source: Source) -> bool:
        """Count a request that never reaches the engine: the caller's mistake, or a full queue."""
        settings, traffic, tally = engine.settings, source.traffic, engine.tally
        draw = self._rng.random()
        if draw < traffic.invalid_ratio + traffic.context_length_ratio:
            tally.failed["invalid" if draw < traffic.invalid_ratio else "context_length"] += 1
            tally.responded("4xx", settings.overhead_seconds)
            return True
        reason = None
        if settings.max_num_queued_reqs is not None and len(engine.waiting) >= settings.max_num_queued_reqs:
            reason = "max_num_queued_reqs"
        elif (
            settings.max_num_queued_tokens is not None
            and engine.waiting_tokens + request.prompt > settings.max_num_queued_tokens
        ):
            reason = "max_num_queued_tokens"
        if reason is None:
            return False
        tally.rejections[reason] += 1
        tally.failed["rejected"] += 1
        tally.responded("5xx", settings.overhead_seconds)
        return True

    def _route(self, model: ModelSettings) -> Engine:
        engines = self.process.engines[model.name]
        imbalance = model.imbalance
        for event in self.active:
            if event.imbalance is not None and event.model in (None, model.name):
                imbalance = event.imbalance
        if self._rng.random() < imbalance:
            return engines[0]
        return min(engines, key=lambda e: e.in_flight)

    def _watch(self, at: float, reason: str, engine: Engine, request: Request) -> None:
        heapq.heappush(self._clients, (at, next(self._order), reason, engine, request))

    def _leave(self, engine: Engine, request: Request, reason: str) -> None:
        if request.left or request.done:
            return
        engine.drop(request, self.now)
        engine.tally.failed[reason] += 1
        # The response had begun or not: vLLM's HTTP counters call it 2xx either way.
        engine.tally.responded("2xx", self.now - request.arrival)

    def _ended(self, model: str, engine: Engine, request: Request, now: float) -> None:
        if request.left:
            return
        seconds = now - request.arrival + engine.settings.overhead_seconds
        if request.error:
            engine.tally.failed["error"] += 1
            engine.tally.responded("5xx", seconds)
            return
        engine.tally.corrupted += request.corrupted
        engine.tally.responded("2xx", seconds)
        self._sources[model].ended(request, now)

    # Events

    def _schedule(self, at: float, what: str, event: Event) -> None:
        heapq.heappush(self._timeline, (at, next(self._order), what, event))

    def _event(self, what: str, event: Event) -> None:
        if what == "end":
            self.active.remove(event)
            self._apply()
            return
        if event.every is not None:
            self._schedule(self.now + event.every, "begin", event)
        if event.kind in LASTING:
            if event.kind == "sleep" and self.phase == "ready":
                self._abort_all()
            self.active.append(event)
            self._schedule(self.now + event.duration, "end", event)
            self._apply()
        elif event.kind == "gpu_xid":
            self.xids.append((self.now, event.code))
        elif self.phase == "ready":
            self._strike(event)

    def _strike(self, event: Event) -> None:
        if event.kind in ("oom", "host_oom", "engine_death"):
            kind = {"oom": "cuda", "host_oom": "host"}.get(event.kind)
            self._die(kind)
        elif event.kind == "restart":
            self._lose("abort")
            self._exit()
        else:
            for model, _, engine in self.engines():
                if event.model not in (None, model.name):
                    continue
                if event.kind == "abort_all":
                    for request in [r for r in (*engine.running, *engine.waiting) if not r.left]:
                        self._leave(engine, request, "abort")
                else:
                    self._oversized(model, engine, event)

    def _abort_all(self) -> None:
        """A server that goes to sleep ends what is in flight."""
        for _, _, engine in self.engines():
            for request in engine.abort_all(self.now):
                engine.tally.failed["abort"] += 1
                engine.tally.responded("2xx", self.now - request.arrival)

    def _oversized(self, model: ModelSettings, engine: Engine, event: Event) -> None:
        engine.tally.arrived += 1
        tokens = event.tokens or model.engine.kv_blocks * model.engine.block_size + 1
        engine.submit(Request(arrival=self.now, prompt=tokens, output=16, max_tokens=16, conversation=None), self.now)

    def _apply(self) -> None:
        """Let the engines and sources feel what is active now."""
        for model, _, engine in self.engines():
            mine = [e for e in self.active if e.model in (None, model.name)]
            engine.slowdown = math.prod(e.factor for e in mine if e.kind in ("slow", "gpu_throttle"))
            engine.acceptance = math.prod(e.factor for e in mine if e.kind == "draft_mismatch")
            frozen = any(e.kind in ("hang", "sleep") for e in mine)
            if engine.frozen and not frozen and self.phase == "ready":
                engine.thaw(self.now)
                engine.drop_all_left(self.now)
            engine.frozen = frozen
        for model in self.scenario.models:
            mine = [e for e in self.active if e.kind == "traffic" and e.model in (None, model.name)]
            self._sources[model.name].change(mine, self.now)

    # Life and death

    def _start(self, at: float, load_seconds: float) -> None:
        # Two runs of one scenario are two servers, although everything in them is the same.
        instance = f"{int(self.wall(at) * 1000):012x}{self._rng.getrandbits(32):08x}"
        self.process = Process(at, at + load_seconds, instance)
        for model in self.scenario.models:
            engines = self.process.engines[model.name] = []
            for _ in range(model.engines):
                rng = random.Random(self._rng.random())
                engines.append(self._engine(model, rng))
        self.leaked_bytes = 0.0
        self.phase, self._change_at = "loading", at + load_seconds
        if load_seconds <= 0:
            self._next_phase()

    def _engine(self, model: ModelSettings, rng: random.Random) -> Engine:
        def ended(request: Request, now: float) -> None:
            self._ended(model.name, engine, request, now)

        engine = Engine(model.engine, Tally(model.engine, rng, self.wall), rng, ended)
        return engine

    def _next_phase(self) -> None:
        self._change_at = math.inf
        if self.phase == "loading":
            self.phase = "ready"
            for source in self._sources.values():
                source.forget()
            self._apply()
        elif self.phase == "dead":
            self._exit()
        else:
            self._start(self.now, self.scenario.load_seconds)

    def _die(self, kind: str | None) -> None:
        lost = tuple(
            (m.name, str(i), sum(1 for r in (*e.waiting, *e.running) if not r.left)) for m, i, e in self.engines()
        )
        death = Death(self.now, self.process.instance, kind, lost)
        if kind is not None:
            self.engines()[0][2].tally.oom[kind] += 1
        self._lose("oom" if kind else "engine_dead")
        self.phase, self._change_at = "dead", self.now + self.scenario.exit_seconds
        if self._on_death is not None:
            self._on_death(death)

    def _lose(self, reason: str) -> None:
        for _, _, engine in self.engines():
            for request in (*engine.running, *engine.waiting):
                if not request.left:
                    request.left = True
                    engine.tally.failed[reason] += 1
                    engine.tally.responded("5xx", self.now - request.arrival)
        self._clients.clear()

    def _exit(self) -> None:
        totals = self.totals()
        self.past = totals
        self.process = Process(self.process.started_at, math.inf, self.process.instance)
        self.phase, self._change_at = "down", self.now + self.scenario.down_seconds
