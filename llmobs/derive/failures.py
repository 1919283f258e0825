"""Failures: what the source counts, what can be inferred with certainty, and out of memory above all.

vLLM's own page counts neither clients that disconnect nor requests that die with their engine. Both are inferred here,
as lower bounds that never count a request that did not fail; a reason that cannot be known is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from llmobs.snapshot import FAILURE_REASONS, OOM_KINDS, EngineSnapshot, EngineStats, Evidence, LostRequests, OomEvent

EngineKey = tuple[str, str]
_NONE: Mapping[str, float] = MappingProxyType({})

#: Two pieces of evidence of one kind closer than this, in seconds, are about one event, unless both name their event.
SAME_EVENT_SECONDS = 60.0

#: A journal's loss this long before a good reading, in seconds, can still be the death that the next reading finds.
_FROZEN_SECONDS = 10.0


def clients_gone(engine: EngineStats) -> float | None:
    """``first tokens − finished − running − waiting``, never below 0: clients that disconnected, at least.

    A sequence that had its first token has finished, still runs, waits again after a preemption, or was dropped
    because its client went away: vLLM counts the last nowhere. Running and waiting sequences without a first token
    make the figure too low for a moment; it is exact when the engine is idle. None when the source lacks a part.
    """
    if engine.time_to_first_token is None or not engine.finished or engine.running is None or engine.waiting is None:
        return None
    left = engine.time_to_first_token.count - sum(engine.finished.values()) - engine.running - engine.waiting
    return max(0.0, left)


def in_flight(engine: EngineStats) -> float:
    """``running + waiting``: sequences that are lost when the engine dies now."""
    return max(0.0, (engine.running or 0.0) + (engine.waiting or 0.0))


@dataclass(frozen=True, slots=True)
class Failures:
    """What must be remembered to count each failure once.

    `gone` is the largest `clients_gone` of this run per engine; `gone_before` that of earlier runs. `lost` is per
    engine and reason. `pending` are in-flight sequences of a dead engine whose reason is decided one cycle later, when
    the evidence has come in. `assumed` were booked so at `assumed_at` (Unix time): a journal that tells of them later
    does not count them again. `told_at` is when the journal's last loss happened. `last_oom` is when and as what the
    last event of each kind began.
    """

    gone: Mapping[EngineKey, float] = field(default_factory=lambda: MappingProxyType({}))
    gone_before: Mapping[EngineKey, float] = field(default_factory=lambda: MappingProxyType({}))
    lost: Mapping[EngineKey, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    pending: Mapping[EngineKey, float] = field(default_factory=lambda: MappingProxyType({}))
    assumed: float = 0.0
    assumed_at: float = 0.0
    told_at: float = 0.0
    ooms: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    oom_evidence: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    can_tell: frozenset[str] = frozenset()
    last_oom: Mapping[str, OomEvent] = field(default_factory=lambda: MappingProxyType({}))
    seen: frozenset[str] = frozenset()


def observe(failures: Failures, snapshot: EngineSnapshot) -> Failures:
    """Return the state after a good snapshot. Only a page whose figures are of one instant can be subtracted."""
    if snapshot.source != "metrics" or not snapshot.consistent:
        return failures
    gone = dict(failures.gone)
    for engine in snapshot.engines:
        found = clients_gone(engine)
        if found is not None:
            key = (engine.model_name, engine.engine)
            gone[key] = max(gone.get(key, 0.0), found)
    return replace(failures, gone=gone)


def restart(failures: Failures) -> Failures:
    """Return the state after a restart: the counters that `gone` was taken from begin again."""
    before = dict(failures.gone_before)
    for key, value in failures.gone.items():
        before[key] = before.get(key, 0.0) + value
    return replace(failures, gone=MappingProxyType({}), gone_before=before)


def engine_died(failures: Failures, last: EngineSnapshot) -> Failures:
    """Return the state after the engine was found dead: what was in flight in its last good snapshot is lost.

    Unless the journal has already told of this death: it is exact.
    """
    if failures.told_at > last.wall_time - _FROZEN_SECONDS:
        return failures
    pending = dict(failures.pending)
    for engine in last.engines:
        key = (engine.model_name, engine.engine)
        pending[key] = pending.get(key, 0.0) + in_flight(engine)
    return replace(failures, pending=pending)


def settle(failures: Failures, wall_time: float) -> Failures:
    """Return the state with pending losses booked: as `oom` when one was just seen, else as `engine_dead`."""
    if not failures.pending:
        return failures
    recent = any(abs(wall_time - event.time) <= SAME_EVENT_SECONDS for event in failures.last_oom.values())
    booked = _book(failures, failures.pending, "oom" if recent else "engine_dead")
    total = sum(failures.pending.values())
    return replace(booked, pending=MappingProxyType({}), assumed=total, assumed_at=wall_time)


def with_evidence(failures: Failures, evidence: Evidence, last: EngineSnapshot | None) -> Failures:
    """Return the state after new evidence: each event and each journal entry is counted once.

    `last` is the last good snapshot; where it came from `/stats` of the same run, a loss in the journal that it
    already contains is not counted again.
    """
    state = replace(failures, can_tell=failures.can_tell | evidence.can_tell)
    for event in sorted(evidence.ooms, key=lambda e: e.time):
        state = _with_oom(state, event)
    for loss in evidence.lost:
        if loss.id not in state.seen:
            state = _with_loss(replace(state, seen=state.seen | {loss.id}), loss, last)
    return state


def failed(failures: Failures, engine: EngineStats | None, key: EngineKey) -> dict[str, float]:
    """Return failed requests by reason for one engine, cumulative; reasons that cannot be known are absent.

    `engine` has monotonic counters; it is None when the engine was never seen, only its losses in a journal.
    """
    counts: dict[str, float] = dict(failures.lost.get(key, _NONE))
    counts.setdefault("engine_dead", 0.0)
    if failures.can_tell:
        counts.setdefault("oom", 0.0)
    if engine is None:
        return {reason: counts[reason] for reason in FAILURE_REASONS if reason in counts}
    if engine.failed:
        for reason in FAILURE_REASONS:
            counts[reason] = counts.get(reason, 0.0) + engine.failed.get(reason, 0.0)
        return counts
    found: dict[str, float] = {}
    if "error" in engine.finished:
        found["error"] = engine.finished["error"]
    gone = failures.gone.get(key)
    before = failures.gone_before.get(key, 0.0)
    if gone is not None or before:
        found["abort"] = (gone or 0.0) + before + engine.finished.get("abort", 0.0)
    if engine.admission_rejections:
        found["rejected"] = sum(engine.admission_rejections.values())
    for reason, count in found.items():
        counts[reason] = counts.get(reason, 0.0) + count
    return {reason: counts[reason] for reason in FAILURE_REASONS if reason in counts}


def oom_total(failures: Failures, engines: tuple[EngineStats, ...]) -> dict[str, float]:
    """Return out-of-memory events by kind, cumulative. Kinds that nothing could have shown are absent.

    The journal, log and cgroup are counted by llmobs; without them `/stats` may have its own count.
    """
    counts = {kind: failures.ooms.get(kind, 0.0) for kind in OOM_KINDS if kind in failures.can_tell}
    for kind in OOM_KINDS:
        reported = [e.oom[kind] for e in engines if kind in e.oom]
        if kind not in counts and reported:
            counts[kind] = sum(reported)
    return counts


def _with_oom(state: Failures, event: OomEvent) -> Failures:
    if event.id is not None and event.id in state.seen:
        return state
    evidence = dict(state.oom_evidence)
    evidence[event.evidence] = evidence.get(event.evidence, 0.0) + 1
    last = state.last_oom.get(event.kind)
    same = (
        last is not None and abs(event.time - last.time) <= SAME_EVENT_SECONDS and (event.id is None or last.id is None)
    )
    ooms = dict(state.ooms)
    if not same or last is None:
        ooms[event.kind] = ooms.get(event.kind, 0.0) + 1
        last = event
    # More evidence of one event does not move it: a server that dies once a minute has died more than once.
    return replace(
        state,
        ooms=ooms,
        oom_evidence=evidence,
        last_oom={**state.last_oom, event.kind: replace(last, id=last.id or event.id)},
        seen=state.seen if event.id is None else state.seen | {event.id},
    )


def _with_loss(state: Failures, loss: LostRequests, last: EngineSnapshot | None) -> Failures:
    keys = [(e.model_name, e.engine) for e in last.engines] if last is not None else []
    key = (loss.model_name or (keys[0][0] if keys else ""), loss.engine or (keys[0][1] if keys else "0"))
    # The journal is exact; what was only inferred about this death is dropped.
    state = replace(state, pending=MappingProxyType({}), told_at=max(state.told_at, loss.time))
    count = float(loss.count)
    if last is not None and last.source == "stats" and last.instance == loss.instance:
        known = sum(e.failed.get(loss.reason, 0.0) for e in last.engines)
        if loss.total is not None:
            count = max(0.0, loss.total - known)
        elif last.wall_time >= loss.time:
            count = 0.0
    if abs(loss.time - state.assumed_at) <= SAME_EVENT_SECONDS:
        known = min(count, state.assumed)
        count -= known
        state = replace(state, assumed=state.assumed - known)
    return _book(state, {key: count}, loss.reason)


def _book(state: Failures, counts: Mapping[EngineKey, float], reason: str) -> Failures:
    lost = {key: dict(reasons) for key, reasons in state.lost.items()}
    for key, count in counts.items():
        reasons = lost.setdefault(key, {})
        reasons[reason] = reasons.get(reason, 0.0) + count
    return replace(state, lost=lost)
