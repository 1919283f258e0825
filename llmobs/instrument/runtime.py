"""What one API server process knows: its ledgers, its requests in flight, and who wants to hear about them.

Made by the stat logger when the engine is ready. Everything is touched on the event loop only; the writer's thread
gets values, never these objects.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from llmobs.instrument import rundir
from llmobs.instrument.assemble import assemble
from llmobs.instrument.beat import BeatReader
from llmobs.instrument.clients import Clients
from llmobs.instrument.ends import Ends
from llmobs.instrument.guard import guards, logger
from llmobs.instrument.ledger import EngineLedger
from llmobs.instrument.logs import LogWriter
from llmobs.instrument.observer import Observers
from llmobs.instrument.outcome import COMPLETED, Outcome, classify
from llmobs.instrument.record import Load, RequestFacts, RequestRecord, SequenceRecord
from llmobs.instrument.settings import InstrumentSettings
from llmobs.instrument.steps import Steps
from llmobs.snapshot import FAILURE_REASONS, OOM_KINDS, EngineSnapshot

#: A prompt above this share of the model's context is "near the limit".
NEAR_LIMIT = 0.9


class Runtime:
    """The state of one API server process. `static` are its engines' unchanging facts."""

    def __init__(
        self,
        settings: InstrumentSettings,
        *,
        model_name: str,
        engines: list[int],
        static: dict[str, Any],
        max_model_len: int,
        version: str | None,
        client_count: int = 1,
        client_index: int = 0,
        log: LogWriter | None = None,
    ) -> None:
        self.settings = settings
        self.version = version
        self.max_model_len = max_model_len
        self.client_count = client_count
        self.client_index = client_index
        self.run_dir = rundir.make()
        self.instance = rundir.instance(self.run_dir)
        self.start_time = time.time()
        self.ledgers = {e: EngineLedger(model_name, e, static, max_model_len) for e in engines}
        self.first = self.ledgers[engines[0]]
        self.active: set[RequestRecord] = set()
        self.steps = Steps()
        self.sequences: dict[str, SequenceRecord] = {}  # by the engine's request id, unfinished only
        self.detailed: dict[str, SequenceRecord] = {}  # those of them with `detail`
        self.observers = Observers()
        self._ends = Ends(self._conclude, self.observers)
        self.clients = Clients(settings.outlier_factor)
        self.failed: dict[str, float] = dict.fromkeys(FAILURE_REASONS, 0)
        self.oom: dict[str, float] = dict.fromkeys(OOM_KINDS, 0)
        self.completed = 0
        self.http: dict[str, float] = {"2xx": 0, "4xx": 0, "5xx": 0}
        self.death: str | None = None  # why the engine is dead: oom, engine_dead
        self.stopping = False  # the server is being shut down in good order
        self.oom_kills_at_start: int | None = None
        self.clock_offset: float | None = None
        self.journal_dropped = 0
        self.spans_dropped = 0
        self.log = log or LogWriter(settings, index=client_index)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.workers: dict[str, Any] = {}  # facts other processes left in the run folder
        self.beats: dict[int, BeatReader] = {}
        self.config: dict[str, Any] = {}
        self.stats_due = time.monotonic() + settings.stats_interval
        self._static = static

    def add_engines(self, engines: list[int]) -> None:
        """Add further engines of the same server."""
        for engine in engines:
            self.ledgers[engine] = EngineLedger(self.first.model_name, engine, self._static, self.max_model_len)

    # -- requests --------------------------------------------------------------------------------------------------

    def begin(self, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        """A request arrived."""
        record.heard = self.heard()
        self.active.add(record)
        self._ends.moved = record.started
        for hook, started in self.observers.started:
            hook.run(started, record, headers)

    def end(self, record: RequestRecord, raised: BaseException | None) -> None:
        """A request has ended; calling it again does nothing. What follows from that is done later: see `ends`."""
        if record not in self.active:
            return
        self.active.discard(record)
        record.left_at = time.monotonic()
        record.raised, record.heard_at_end, record.engine_death = raised, self.heard(), self.death
        self._ends.add(record)

    def count(self) -> None:
        """Count all steps and all requests that have ended, for a reader. On the event loop, or without it."""
        self.steps.count()
        self._ends.count()

    def settle(self) -> None:
        """Count everything, and log and trace all requests that have ended."""
        self.steps.count()
        self._ends.settle()

    def _conclude(self, record: RequestRecord) -> RequestFacts:
        """Count one request; return its facts."""
        outcome = classify(record, timeout=self.settings.timeout, raised=record.raised, dead=record.engine_death)
        if outcome is COMPLETED:
            self.completed += 1
        elif outcome.reason is not None:
            self.failed[outcome.reason] += 1
        if record.http and record.status is not None:
            group = f"{record.status // 100}xx"
            self.http[group] = self.http.get(group, 0) + 1
        for sequence in record.sequences:
            # The step that made token 0 is its prefill.
            stats = sequence.stats
            if stats is not None and stats.scheduled_ts and stats.first_token_ts:
                self.first.steps.first(max(0.0, stats.first_token_ts - stats.scheduled_ts))
        facts = self.facts(record, outcome)
        self._observe(facts)
        return facts

    def facts(self, record: RequestRecord, outcome: Outcome) -> RequestFacts:
        """Return the facts of a record that has ended."""
        return assemble(
            record,
            outcome,
            model=self.first.model_name,
            load_at_arrival=self.load_of(record.heard),
            load=self.load_of(record.heard_at_end),
            max_prompt=self.max_model_len * NEAR_LIMIT,
            offset=self.clock_offset or 0.0,
            clients=self.clients,
        )

    def _observe(self, facts: RequestFacts) -> None:
        ledger = self.first
        if facts.near_limit:
            ledger.counters["prompts_near_limit"] += 1
        if facts.outlier:
            ledger.counters["prompt_outliers"] += 1
        trace = facts.trace
        if trace is None or not trace.sampled or facts.outcome != "completed":
            return
        wall = facts.wall(facts.ended_at)
        for accumulator, value in (
            (ledger.e2e, facts.latency),
            (ledger.queue, facts.queue),
            (ledger.prefill, facts.prefill),
            (ledger.decode, facts.decode),
            (ledger.ttft, facts.time_to_first_token),
        ):
            if value is not None:
                accumulator.exemplify(value, trace.trace_id, wall)

    # -- the engine --------------------------------------------------------------------------------------------------

    def heard(self) -> Any:
        """Return what the scheduler of each engine said last, for `load_of`."""
        first = self.first
        return first.latest if len(self.ledgers) == 1 else [ledger.latest for ledger in self.ledgers.values()]

    def load_of(self, heard: Any) -> Load:
        """Return the load that was heard of: requests summed over the engines, KV usage as their mean."""
        if len(self.ledgers) == 1:
            return self.first.load_of(heard)
        loads = [ledger.load_of(s) for ledger, s in zip(self.ledgers.values(), heard or ())]
        usages = [x.kv_cache_usage for x in loads if x.kv_cache_usage is not None]
        return Load(
            _sum([x.running for x in loads]),
            _sum([x.waiting for x in loads]),
            sum(usages) / len(usages) if usages else None,
        )

    def engine_died(self, cause: str) -> list[RequestRecord]:
        """The engine is dead. Return the requests that are lost with it, marked once."""
        self.settle()
        self.death = self.death or cause
        lost = [r for r in self.active if r.unfinished and r.death_reason is None]
        for record in lost:
            record.death_reason = cause
        return lost

    def busy_since(self, engine: int) -> float | None:
        """Return when the oldest unfinished work of an engine arrived, or None when it has none.

        With one engine every sequence in flight is its work, also when a frozen engine never reports it as running.
        """
        ledger = self.ledgers[engine]
        if len(self.ledgers) > 1:
            return (ledger.progress_at or ledger.load_at) if ledger.load.running else None
        return min((s.submitted_at for s in self.sequences.values()), default=None)

    # -- reading -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> EngineSnapshot:
        """Return everything this process knows, at one instant."""
        now, wall = time.monotonic(), time.time()
        engines = []
        for index, ledger in self.ledgers.items():
            shared: dict[str, Any] = {}
            if ledger is self.first:
                shared = {"failed": dict(self.failed), "oom": dict(self.oom), "completed": float(self.completed)}
            shared.update(self.workers.get(f"engine-{index}", {}))
            engines.append(ledger.snapshot(now=now, wall=wall, busy_since=self.busy_since(index), shared=shared))
        every = {
            **self.workers.get("hooks", {}),
            **{g.name: (float(g.active), float(g.errors)) for g in guards().values()},
        }
        return EngineSnapshot(
            taken_at=now,
            wall_time=wall,
            source="stats",
            dialect="llmobs.stats/v1",
            engines=tuple(engines),
            version=self.version,
            start_time=self.start_time,
            instance=self.instance,
            partial=self.client_count > 1,
            http_responses=dict(self.http),
            hook_active={name: active for name, (active, _) in every.items()},
            hook_errors={name: errors for name, (_, errors) in every.items()},
            dropped={
                "log_lines": float(self.log.dropped),
                "journal_lines": float(self.journal_dropped + self.workers.get("journal_dropped", 0)),
                "spans": float(self.spans_dropped + self.workers.get("spans_dropped", 0)),
            },
        )


_runtime: Runtime | None = None


def get() -> Runtime | None:
    """Return this process's runtime, or None before the engine is ready and in processes that serve nothing."""
    return _runtime


def install(runtime: Runtime) -> Runtime:
    """Make `runtime` this process's. A second one (elastic scale-up rebuilds the loggers) replaces the first."""
    global _runtime
    if _runtime is not None:
        logger.info("llmobs: the engine was rebuilt; counters start again")
    _runtime = runtime
    return runtime


def _sum(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
