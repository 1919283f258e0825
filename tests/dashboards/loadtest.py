"""`python -m tests.dashboards.loadtest SCENARIO`: what the panels showed before and after a scenario's turn.

The figures of `docs/guides/explain-a-load-test.md` come from here: each is the answer of the panel's own query, asked
of a real Prometheus that scrapes the sidecar of the simulated engine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.daemon import Daemon, prometheus
from tests.dashboards.boards import all_boards, fill, panels
from tests.dashboards.preview.data import legend
from tests.dashboards.preview.units import text
from tests.dashboards.stage import VALUES, Stage

#: Board, panel; every query of the panel is asked.
LOOKED_AT = (
    ("health", "Requests per second"),
    ("health", "TTFT p95"),
    ("health", "Inter-token p95"),
    ("health", "Waiting"),
    ("health", "KV cache usage"),
    ("health", "Top 3 latency breakdown"),
    ("health", "Which phase grew"),
    ("health", "Share of time"),
    ("health", "Failed requests"),
    ("latency", "TTFT met"),
    ("latency", "TPOT met"),
    ("latency", "End to end: p50, p95, p99, mean"),
    ("latency", "Inter-token latency: p50, p95, p99, mean"),
    ("latency", "Prefill time per computed token"),
    ("cache", "Hit rate"),
    ("cache", "Prompt tokens saved"),
    ("cache", "Prefill tokens per second: computed and cached"),
    ("cache", "Prefill time saved"),
    ("cache", "Preemptions per second"),
    ("scheduling", "Running"),
    ("scheduling", "Tokens per second"),
    ("scheduling", "Mean tokens per step, and steps per second"),
    ("gpu", "Utilisation beside running requests"),
    ("gpu", "Tokens per joule"),
    ("gpu", "Energy per generated token"),
    ("gpu", "What the GPU is busy with"),
    ("spec", "Acceptance rate"),
    ("spec", "Acceptance per position"),
    ("spec", "Tokens per draft"),
    ("spec", "Speed-up, estimated"),
    ("spec", "Proposed tokens wasted"),
    ("spec", "Draft tokens per second"),
)
_VALUES = {**VALUES, "__rate_interval": "60s", "baseline": "150s", "ttft_slo": "0.5"}
#: A promise that the good half of each scenario keeps.
_TPOT = {"cache-unfriendly": "0.02", "draft-mismatch": "0.0075"}
#: The scenarios turn at 120 s; windows of 60 s lie wholly before and wholly after it.
_BEFORE, _AFTER = 112.0, 275.0


def main() -> None:
    """Play the scenario and print both columns."""
    scenario = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {"gpu": {"interval_seconds": 1}}
        with Daemon(folder, config, "--demo", "--scenario", scenario) as daemon:
            started = time.monotonic()
            with prometheus(folder / "prometheus", [daemon.url.removeprefix("http://")]) as url:
                running = Stage(url=url, daemons={}, simulators={})
                columns = []
                for moment in (_BEFORE, _AFTER):
                    time.sleep(max(0.0, started + moment - time.monotonic()))
                    columns.append(_read(running, {**_VALUES, "tpot_slo": _TPOT[scenario]}))
    for key in dict.fromkeys([*columns[0], *columns[1]]):
        print(f"{key} | {columns[0].get(key, '–')} | {columns[1].get(key, '–')}", flush=True)


def _read(running: Stage, values: dict[str, str]) -> dict[str, str]:
    found = {}
    for uid, title in LOOKED_AT:
        panel = next(p for p in panels(all_boards()[f"llmobs-{uid}"]) if p["title"] == title)
        unit, decimals = (panel["fieldConfig"]["defaults"].get(key) for key in ("unit", "decimals"))
        for target in panel["targets"]:
            for series in running.ask("query", query=fill(target["expr"], values))["result"]:
                name = legend(target["legendFormat"], series["metric"])
                found[f"{uid} | {title} | {name}"] = text(float(series["value"][1]), unit, decimals)
    return found


if __name__ == "__main__":
    main()
