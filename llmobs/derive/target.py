"""One watched server: what is remembered between cycles, and how a reading changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from llmobs.derive import cache, joined, lengths, monotonic, phases, progress
from llmobs.derive import failures as failing
from llmobs.derive.failures import EngineKey, Failures
from llmobs.derive.monotonic import Carry
from llmobs.derive.progress import Progress
from llmobs.derive.window import Window
from llmobs.snapshot import EngineSnapshot, EngineStats, Evidence, GpuSnapshot, Reading

_T = TypeVar("_T")

#: Readings kept per window: more would only cost memory, the window's ends are what counts.
_SAMPLES_PER_WINDOW = 6

#: Engines remembered per target; a server that invents names does not fill memory.
MAX_KNOWN = 1024

#: Errors that a server which is still loading also gives; anything else is wrong from the first cycle on.
_STARTING_ERRORS = ("refused", "dns", "timeout", "network", "empty", "http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the derivation, in seconds."""

    window_seconds: float = 60.0
    peak_seconds: float = 60.0
    stall_seconds: float = 30.0
    start_budget_seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The engines of one good reading, counters monotonic, and the GPUs as they were last read then."""

    at: float
    engines: Mapping[EngineKey, EngineStats]
    gpus: GpuSnapshot | None = None
    failed: Mapping[tuple[EngineKey, str], float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Peak:
    """Gauges of one engine at one moment, for the maxima."""

    at: float
    waiting: float | None
    running: float | None
    usage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """Everything known about one target after a cycle. Times are the reader's monotonic seconds.

    `engines` is empty while the target cannot be read or its engine is dead; `known` keeps the last totals of every
    engine ever seen. `last` is the last good snapshot, raw; `mourned` says that what was in flight in it is already
    counted as lost. `idle_seconds` is None until GPU and queue were known together. `failed` are failed requests by
    engine and reason, `counts` the counters of `phases.counters` by engine and metric, `ooms` the out-of-memory events
    by kind; none of them ever falls.
    """

    watched_since: float
    word: str = "starting"
    entered_at: float
    ever_up: bool = False
    reading: Reading | None = None
    last: EngineSnapshot | None = None
    engines: Mapping[EngineKey, EngineStats] = field(default_factory=lambda: MappingProxyType({}))
    carries: Mapping[EngineKey, Carry] = field(default_factory=lambda: MappingProxyType({}))
    history: tuple[Moment, ...] = ()
    peaks: Mapping[EngineKey, tuple[Peak, ...]] = field(default_factory=lambda: MappingProxyType({}))
    progress: Mapping[EngineKey, Progress] = field(default_factory=lambda: MappingProxyType({}))
    failures: Failures = field(default_factory=Failures)
    restarts: int = 0
    known: Mapping[EngineKey, EngineStats] = field(default_factory=lambda: MappingProxyType({}))
    server_carry: Carry = field(default_factory=Carry)
    server_counts: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    mourned: bool = False
    idle_seconds: float | None = None
    failed: Mapping[tuple[EngineKey, str], float] = field(default_factory=lambda: MappingProxyType({}))
    failed_offsets: Mapping[tuple[EngineKey, str], float] = field(default_factory=lambda: MappingProxyType({}))
    counts: Mapping[tuple[EngineKey, str], float] = field(default_factory=lambda: MappingProxyType({}))
    count_offsets: Mapping[tuple[EngineKey, str], float] = field(default_factory=lambda: MappingProxyType({}))
    ooms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    oom_offsets: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    host_memory: tuple[float | None, float | None] = (None, None)

    @property
    def up(self) -> bool:
        """Whether facts about at least one engine are known now."""
        return bool(self.engines)

    def window(self, key: EngineKey) -> Window | None:
        """Return what happened to one engine during the sliding window; None before there are two readings."""
        now = self.engines.get(key)
        if now is None:
            return None
        for moment in self.history:
            before = moment.engines.get(key)
            if before is not None and before is not now:
                return Window(before, now, self.history[-1].at - moment.at)
        return None


def begin(at: float) -> TargetState:
    """Return the state of a target that was never read."""
    return TargetState(watched_since=at, entered_at=at)


def advance(
    state: TargetState, reading: Reading, evidence: Evidence, limits: Limits, gpus: GpuSnapshot | None = None
) -> TargetState:
    """Return the state after one more cycle. Of a reading older than the last one only its evidence counts."""
    could_tell = state.failures.can_tell
    # Evidence first: it decides what the losses of the cycle before were.
    failures = failing.with_evidence(state.failures, evidence, state.last)
    if state.reading is not None and reading.taken_at <= state.reading.taken_at:
        return replace(state, failures=failures)
    failures = failing.settle(failures, reading.wall_time)
    host_memory = (evidence.host_memory_used_bytes, evidence.host_memory_limit_bytes)
    state = replace(state, reading=reading, failures=failures, host_memory=host_memory)
    unhealthy = reading.health is not None and reading.health >= 500
    dead = unhealthy and (state.ever_up or reading.snapshot is not None)
    switched = state.last is not None and reading.snapshot is not None and state.last.source != reading.snapshot.source
    if reading.snapshot is not None and not dead:
        state = _read(state, reading.snapshot, limits, gpus)
    else:
        state = _not_read(state, dead=dead, gone=reading.error_reason == "refused")
    state = _count_failed(state, switched=switched, can_tell_more=could_tell != failures.can_tell)
    word = _word(state, dead=dead, limits=limits)
    return state if word == state.word else replace(state, word=word, entered_at=reading.taken_at)


def _read(state: TargetState, snapshot: EngineSnapshot, limits: Limits, gpus: GpuSnapshot | None) -> TargetState:
    failures, restarts = state.failures, state.restarts
    restarted = _restarted(state, snapshot)
    if restarted:
        restarts += 1
        if not state.mourned:
            # It died and came back between two cycles.
            failures = _mourn(state, failures)
        failures = failing.restart(failures)
    engines: dict[EngineKey, EngineStats] = {}
    carries = dict(state.carries)
    moving: dict[EngineKey, Progress] = {}
    peaks: dict[EngineKey, tuple[Peak, ...]] = {}
    if restarted:
        # Engines that do not come back keep their totals for the day they do.
        carries = {k: monotonic.advance(c, EngineStats(model_name=k[0]), restarted=True)[1] for k, c in carries.items()}
    for engine in map(lengths.on_common_bounds, snapshot.engines):
        key = (engine.model_name, engine.engine)
        engines[key], carries[key] = monotonic.advance(carries.get(key, Carry()), engine, restarted=False)
        before = Progress() if restarted else state.progress.get(key, Progress())
        moving[key] = progress.advance(before, engine, snapshot.taken_at)
        peak = Peak(snapshot.taken_at, engine.waiting, engine.running, cache.usage(engine))
        kept = (p for p in state.peaks.get(key, ()) if snapshot.taken_at - p.at < limits.peak_seconds)
        peaks[key] = (*kept, peak)
    counts = {
        "http_responses": snapshot.http_responses,
        "hook_errors": snapshot.hook_errors,
        "dropped": snapshot.dropped,
    }
    switched = state.last is not None and state.last.source != snapshot.source
    now = {(key, name): value for key, e in engines.items() for name, value in phases.counters(e).items()}
    totals, offsets = monotonic.never_down(state.counts, state.count_offsets, now, rebase=restarted or switched)
    server_counts, server_carry = monotonic.advance_counts(state.server_carry, counts, restarted=restarted)
    return replace(
        state,
        ever_up=True,
        last=snapshot,
        engines=engines,
        carries=carries,
        history=_history(state.history, Moment(snapshot.taken_at, engines, gpus), limits.window_seconds),
        peaks=peaks,
        progress=moving,
        failures=failing.observe(failures, snapshot),
        restarts=restarts,
        known={**state.known, **engines},
        server_carry=server_carry,
        server_counts=server_counts,
        counts=totals,
        count_offsets=offsets,
        mourned=False,
        idle_seconds=_idle_seconds(state, snapshot, gpus),
    )


def _restarted(state: TargetState, snapshot: EngineSnapshot) -> bool:
    return state.last is not None and monotonic.restarted(state.last, snapshot, state.carries)


def _idle_seconds(state: TargetState, snapshot: EngineSnapshot, gpus: GpuSnapshot | None) -> float | None:
    waiting = [e.waiting for e in snapshot.engines if e.waiting is not None]
    idle = joined.idle_while_waiting(sum(waiting) if waiting else None, joined.watched(gpus))
    if idle is None:
        return state.idle_seconds
    elapsed = snapshot.taken_at - state.history[-1].at if state.history else 0.0
    return (state.idle_seconds or 0.0) + (elapsed if idle else 0.0)


def _not_read(state: TargetState, *, dead: bool, gone: bool) -> TargetState:
    failures = state.failures
    mourned = state.mourned
    if state.last is not None and not mourned and (dead or gone):
        failures = _mourn(state, failures)
        mourned = True
    return replace(
        state,
        engines=MappingProxyType({}),
        history=(),
        peaks=MappingProxyType({}),
        progress=MappingProxyType({}),
        failures=failures,
        mourned=mourned,
    )


def _mourn(state: TargetState, failures: Failures) -> Failures:
    """Return the failures with what was in flight counted as lost, unless the last good reading is too old to know."""
    last, reading = state.last, state.reading
    if last is None or reading is None or reading.taken_at - last.taken_at > failing.SAME_EVENT_SECONDS:
        return failures
    return failing.engine_died(failures, last)


def _count_failed(state: TargetState, *, switched: bool, can_tell_more: bool) -> TargetState:
    """Return the state with failed requests and OOM events counted, and engines beyond `MAX_KNOWN` forgotten."""
    if len(state.known) > MAX_KNOWN:
        state = _forget(state)
    keys = {*state.known, *state.failures.lost}
    now = {
        (key, reason): count
        for key in keys
        for reason, count in failing.failed(state.failures, state.known.get(key), key).items()
    }
    totals, offsets = monotonic.never_down(state.failed, state.failed_offsets, now, rebase=switched)
    found = failing.oom_total(state.failures, tuple(state.known.values()))
    ooms, oom_offsets = monotonic.never_down(state.ooms, state.oom_offsets, found, rebase=switched or can_tell_more)
    if state.up:
        state = replace(state, history=(*state.history[:-1], replace(state.history[-1], failed=totals)))
    return replace(state, failed=totals, failed_offsets=offsets, ooms=ooms, oom_offsets=oom_offsets)


def failed(state: TargetState, key: EngineKey) -> dict[str, float]:
    """Return failed requests of one engine by reason, for the reasons that can be known now."""
    now = failing.failed(state.failures, state.known.get(key), key)
    return {reason: state.failed[key, reason] for reason in now if (key, reason) in state.failed}


def _forget(state: TargetState) -> TargetState:
    """Return the state without the engines that were seen first and are gone, so that `MAX_KNOWN` are left."""
    gone = [key for key in state.known if key not in state.engines]
    forgotten = set(gone[: len(state.known) - MAX_KNOWN])
    failures = state.failures

    def left(known: Mapping[EngineKey, _T]) -> dict[EngineKey, _T]:
        return {key: value for key, value in known.items() if key not in forgotten}

    def left_counts(counts: Mapping[tuple[EngineKey, str], float]) -> dict[tuple[EngineKey, str], float]:
        return {key: value for key, value in counts.items() if key[0] not in forgotten}

    return replace(
        state,
        known=left(state.known),
        carries=left(state.carries),
        failed=left_counts(state.failed),
        failed_offsets=left_counts(state.failed_offsets),
        counts=left_counts(state.counts),
        count_offsets=left_counts(state.count_offsets),
        failures=replace(
            failures,
            gone=left(failures.gone),
            gone_before=left(failures.gone_before),
            lost=left(failures.lost),
            pending=left(failures.pending),
        ),
    )


def _history(history: tuple[Moment, ...], now: Moment, window: float) -> tuple[Moment, ...]:
    """Return the moments of the window, the newest last, thinned so that a short interval costs no memory.

    The oldest kept is the youngest that is at least a window old, so that the window is never shorter than asked for.
    """
    if len(history) >= 2 and history[-1].at - history[-2].at < window / _SAMPLES_PER_WINDOW:
        history = history[:-1]
    if history and now.at - history[-1].at > window:
        return (now,)  # a gap: what happened in it is not the window's
    old = [i for i, moment in enumerate(history) if now.at - moment.at >= window]
    return (*history[old[-1] if old else 0 :], now)


def _word(state: TargetState, *, dead: bool, limits: Limits) -> str:
    reading = state.reading
    assert reading is not None
    if dead:
        return "dead"
    if not state.up:
        waited = reading.taken_at - state.watched_since
        starting = not state.ever_up and reading.error_reason in _STARTING_ERRORS
        return "starting" if starting and waited <= limits.start_budget_seconds else "unreachable"
    if any(e.sleep_state.get("awake") == 0 for e in state.engines.values()):
        return "sleeping"
    words = [engine_word(state, key, limits) for key in state.engines]
    return next((word for word in ("stalled", "livelock") if word in words), "ready")


def quiet_seconds(state: TargetState, key: EngineKey) -> float | None:
    """Seconds without progress of one engine while it has work; None without work."""
    engine, moving = state.engines.get(key), state.progress.get(key)
    if engine is None or moving is None or state.last is None:
        return None
    return progress.seconds_since(moving, engine, state.last.taken_at)


def engine_word(state: TargetState, key: EngineKey, limits: Limits) -> str:
    """Return "stalled", "livelock" or "moving" for one engine."""
    quiet = quiet_seconds(state, key)
    if not progress.stalled(quiet, limits.stall_seconds):
        return "moving"
    return "livelock" if progress.livelocked(state.progress[key], quiet, limits.stall_seconds) else "stalled"
