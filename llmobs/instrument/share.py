"""What the processes of one run tell each other, and how several API servers answer `/stats` as one.

Each API server of several publishes its own snapshot to the run folder about once a second, and answers with the sum
of what all have published, its own included. So the counters of successive answers never go down, whichever process
gives them. When one of them has published nothing, or nothing for a while, the answer says `partial`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmobs import stats
from llmobs.instrument import events, rundir
from llmobs.instrument.beat import BeatReader
from llmobs.instrument.guard import guard
from llmobs.instrument.runtime import Runtime
from llmobs.snapshot import FACTS, EngineSnapshot, EngineStats, Exemplar, Histogram

#: A published snapshot older than this, in seconds, is from a process that hangs or is gone.
STALE = 5.0


def tick(runtime: Runtime) -> None:
    """Do, in the writer's thread, what is due about once a second; what reads the ledger goes to the event loop."""
    guard("share").run(_collect, runtime)
    loop = runtime.loop
    if loop is not None and not loop.is_closed():
        try:
            loop.call_soon_threadsafe(lambda: guard("share").run(_on_loop, runtime))
        except RuntimeError:  # closed in between
            return


def _collect(runtime: Runtime) -> None:
    """Read what workers and engine cores have left in the run folder."""
    found: dict[str, Any] = {"spans_dropped": 0}
    for name in rundir.names(runtime.run_dir, ""):
        if name.startswith("memory-"):
            engine, rank = name.split("-")[1:3]
            memory = rundir.read(runtime.run_dir, name) or {}
            facts = found.setdefault(f"engine-{engine}", {})
            for fact in ("allocated", "reserved"):
                if fact in memory:
                    facts.setdefault(f"worker_memory_{fact}", {})[rank] = memory[fact]
        elif name.startswith("hooks-"):
            for hook, (active, errors) in (rundir.read(runtime.run_dir, name) or {}).items():
                if errors or hook not in found.get("hooks", {}):
                    found.setdefault("hooks", {})[hook] = (active, errors)
        elif name.startswith("journal-dropped-"):
            found["journal_dropped"] = found.get("journal_dropped", 0) + 1
        elif name.startswith("spans-dropped-"):
            found["spans_dropped"] += rundir.read(runtime.run_dir, name) or 0
    runtime.workers = found


def _on_loop(runtime: Runtime) -> None:
    runtime.count()
    now = time.monotonic()
    if runtime.client_count > 1:
        document = stats.encode(own(runtime))
        runtime.log.call(lambda: _publish(runtime, document))
    interval = runtime.settings.stats_interval
    if interval and now >= runtime.stats_due:
        runtime.stats_due = now + interval
        events.engine_stats(runtime)


def _publish(runtime: Runtime, document: dict[str, Any]) -> None:
    # When the scheduler last spoke to this process: its gauges are right in the process it spoke to last.
    document["spoken"] = {str(i): ledger.load_at for i, ledger in runtime.ledgers.items()}
    rundir.write(runtime.run_dir, f"api-{runtime.client_index}", document)


def own(runtime: Runtime) -> EngineSnapshot:
    """Return this process's snapshot, with what the engine cores share."""
    for index, ledger in runtime.ledgers.items():
        beat = runtime.beats.get(index)
        if beat is None:
            beat = runtime.beats[index] = BeatReader(runtime.run_dir, index)
        arrival = beat.oldest_arrival()
        ledger.oldest_waiting_arrival = arrival or None
    return runtime.snapshot()


def together(runtime: Runtime) -> EngineSnapshot:
    """Return the whole server's snapshot as far as it is known; reads files, so not for the event loop."""
    wall = time.time()
    parts: list[tuple[EngineSnapshot, dict[str, float]]] = []
    for index in range(runtime.client_count):
        document = rundir.read(runtime.run_dir, f"api-{index}")
        if isinstance(document, dict) and wall - document.get("time", 0.0) < STALE:
            part = stats.decode(document, taken_at=time.monotonic(), wall_time=document["time"])
            parts.append((part, document.get("spoken", {})))
    if not parts:
        return own(runtime)
    whole = merge(parts)
    return replace(whole, partial=len(parts) < runtime.client_count, wall_time=wall)


def merge(parts: Sequence[tuple[EngineSnapshot, dict[str, float]]]) -> EngineSnapshot:
    """Return the sum of snapshots of the same server.

    Counters and histograms are added. A gauge is taken from the process the scheduler spoke to last; ages are the
    smallest time since progress and the largest waiting age.
    """
    first = parts[0][0]
    engines = []
    for name in sorted({e.engine for part, _ in parts for e in part.engines}, key=lambda x: (len(x), x)):
        found = [(spoken.get(name, 0.0), e) for part, spoken in parts for e in part.engines if e.engine == name]
        engines.append(_merge_engine(found))
    return replace(
        first,
        engines=tuple(engines),
        start_time=min((p.start_time for p, _ in parts if p.start_time is not None), default=None),
        http_responses=_add([p.http_responses for p, _ in parts]),
        hook_active={
            k: min(p.hook_active.get(k, 1.0) for p, _ in parts) for k in {k for p, _ in parts for k in p.hook_active}
        },
        hook_errors=_add([p.hook_errors for p, _ in parts]),
        dropped=_add([p.dropped for p, _ in parts]),
    )


def _merge_engine(found: list[tuple[float, EngineStats]]) -> EngineStats:
    latest = max(found, key=lambda item: item[0])[1]
    values: dict[str, Any] = {}
    for name, fact in FACTS.items():
        known = [v for _, e in found if (v := getattr(e, name)) is not None and v != {}]
        if not known:
            continue
        if fact.kind == "gauge":
            values[name] = getattr(latest, name)
        elif fact.kind == "counter":
            values[name] = _add(known) if fact.by else sum(known)
        elif fact.by:
            keys = dict.fromkeys(k for v in known for k in v)
            values[name] = {k: _add_histograms([v[k] for v in known if k in v]) for k in keys}
        else:
            values[name] = _add_histograms(known)
    since = [e.seconds_since_progress for _, e in found if e.seconds_since_progress is not None]
    values["seconds_since_progress"] = min(since) if since else None
    waits = [e.oldest_waiting_seconds for _, e in found if e.oldest_waiting_seconds is not None]
    values["oldest_waiting_seconds"] = max(waits) if waits else None
    return replace(latest, **values)


def _add(mappings: Sequence[Any]) -> dict[str, float]:
    total: dict[str, float] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _add_histograms(histograms: Sequence[Histogram]) -> Histogram:
    first = histograms[0]
    if len(histograms) == 1:
        return first
    exemplars: list[Exemplar | None] = []
    if any(h.exemplars for h in histograms):
        for bucket in range(len(first.bounds)):
            candidates = [e for h in histograms if h.exemplars and (e := h.exemplars[bucket]) is not None]
            exemplars.append(max(candidates, key=lambda e: e.timestamp) if candidates else None)
    counts = tuple(sum(column) for column in zip(*(h.counts for h in histograms)))
    return Histogram(first.bounds, counts, sum(h.sum for h in histograms), tuple(exemplars))
