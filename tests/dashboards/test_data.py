"""Every panel has data, with simulated and known servers, sidecars, the alerts' rules and a real Prometheus."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.daemon import wait_for
from tests.dashboards import known
from tests.dashboards.boards import Target, all_boards, every_panel, fill, panels, prometheus_targets
from tests.dashboards.preview.data import Ask
from tests.dashboards.preview.page import inside, picture, texts
from tests.dashboards.stage import VALUES, Stage, stage
from tests.nvml import GIB

_T = TypeVar("_T")

pytestmark = [pytest.mark.needs("prometheus", "gcc"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage after its warm-up, shared by all tests of this file."""
    with stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


def finite(values: list[Any]) -> list[float]:
    return [v for v in map(float, values) if math.isfinite(v)]


def values_of(running: Stage, target: Target) -> list[float]:
    """Every figure that a target would draw."""
    expression = target.target["expr"]
    if target.target["instant"]:
        return finite([s["value"][1] for s in running.instant(expression)])
    return finite([v for s in running.series(expression, 60, 2) for _, v in s["values"]])


def patiently(still: Callable[[list[_T]], list[_T]], left: list[_T], seconds: float = 45.0) -> list[_T]:
    """Ask again for what is missing: on a busy machine a reading comes late, and a late reading is no gap."""
    deadline = time.monotonic() + seconds
    while (left := still(left)) and time.monotonic() < deadline:
        time.sleep(3)
    return left


def test_every_target_of_every_panel_has_data(running: Stage) -> None:
    """No query is refused, and each returns at least one series with a finite value."""
    empty = patiently(lambda left: [t for t in left if not values_of(running, t)], prometheus_targets())
    assert [t.where for t in empty] == []


def test_every_annotation_can_be_asked(running: Stage) -> None:
    """Prometheus accepts every annotation query; the restart, the out-of-memory event and the alerts show."""
    found = {}
    for annotation in all_boards()["llmobs-health"]["annotations"]["list"]:
        found[annotation["name"]] = running.series(annotation["target"]["expr"], 70, 1)
    assert found["Engine restarts"]
    assert found["Out of memory"]
    assert found["Alerts firing"]


def test_every_variable_offers_choices(running: Stage) -> None:
    """The queries behind the variables return values, and an objective's choices are the histogram's own bounds."""
    for board in all_boards().values():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query" or variable["name"] == "cluster":  # a label from outside, absent here
                continue
            match = re.fullmatch(r"label_values\((.+), ([\w$]+)\)", fill(variable["query"], VALUES))
            assert match
            selector = match[1] if "{" in match[1] else f"{match[1]}{{}}"
            found = running.ask(f"label/{match[2]}/values", **{"match[]": selector})
            assert found, (board["uid"], variable["name"])
            if variable["name"].endswith("_slo"):
                assert variable["current"]["value"] in found, (variable["name"], found)


@dataclass(frozen=True)
class Truth:
    """What one query of one panel must say about the known server (or its GPU); `within` is relative."""

    board: str
    panel: str
    expected: float
    legend: str = ""
    ref: str = "A"
    within: float = 0.001
    where: tuple[tuple[str, str], ...] = ()


_SECONDS = known.QUEUE + known.PREFILL + known.DECODE
_FAILED_SHARE = known.FAILED["error"] / (known.REQUESTS + sum(known.FAILED.values()))
_RATE = 0.05  # the sidecar reads every quarter second, Prometheus every second: a rate over 20 s is off by up to that

TRUTHS = (
    Truth("llmobs-health", "Requests per second", known.REQUESTS, within=_RATE),
    Truth("llmobs-health", "Failed requests", _FAILED_SHARE, within=_RATE),
    Truth("llmobs-health", "TTFT p95", 0.5 + 0.95 * 0.25, within=0.005),
    Truth("llmobs-health", "Inter-token p95", 0.02 + 0.95 * 0.005, within=0.005),
    Truth("llmobs-health", "Waiting", 6),
    Truth("llmobs-health", "KV cache usage", 0.6),
    Truth("llmobs-health", "Top 3 latency breakdown", known.QUEUE, where=(("phase", "queue"),)),
    Truth("llmobs-health", "Top 3 latency breakdown", known.DECODE, where=(("phase", "decode"),)),
    Truth("llmobs-health", "Share of time", known.PREFILL / _SECONDS, where=(("phase", "prefill"),)),
    Truth("llmobs-health", "Error rate by reason", 0.5, within=_RATE, where=(("reason", "timeout"),)),
    Truth("llmobs-latency", "TTFT met", 1.0),
    Truth("llmobs-latency", "TPOT met", 1.0),
    Truth("llmobs-latency", "Goodput", known.REQUESTS, within=_RATE),
    Truth("llmobs-latency", "End to end: p50, p95, p99, mean", _SECONDS, ref="D"),
    Truth("llmobs-latency", "Prefill time per computed token", known.PREFILL / (known.PROMPT * (1 - known.HIT_RATE))),
    Truth("llmobs-cache", "Hit rate", known.HIT_RATE),
    Truth("llmobs-cache", "Prompt tokens saved", known.HIT_RATE),
    Truth("llmobs-cache", "Capacity", 64_000),
    Truth("llmobs-cache", "What if: requests that fit", 64_000 / (known.PROMPT + known.OUTPUT)),
    Truth(
        "llmobs-cache", "What if: rate needed to fill the cache",
        64_000 / (known.PROMPT + known.OUTPUT) / (known.PREFILL + known.DECODE),
    ),
    Truth("llmobs-cache", "Preemptions per finished request", known.PREEMPTIONS / known.REQUESTS),
    Truth("llmobs-cache", "Prefill tokens per second: computed and cached", 8 * 1000 * 0.25, within=_RATE),
    Truth("llmobs-scheduling", "Fullest batch", 24 / 32),
    Truth("llmobs-scheduling", "Oldest waiting", 3.5),
    Truth("llmobs-scheduling", "Time to drain", 6 / known.REQUESTS, within=_RATE),
    Truth("llmobs-scheduling", "Mean tokens per step, and steps per second", known.STEP_TOKENS),
    Truth("llmobs-scheduling", "Tokens per second", known.REQUESTS * known.OUTPUT, ref="B", within=_RATE),
    Truth("llmobs-spec", "Acceptance rate", known.ACCEPTED / known.DRAFT_TOKENS),
    Truth("llmobs-spec", "Tokens per draft", 1 + known.ACCEPTED / known.DRAFTS),
    Truth(
        "llmobs-spec", "Speed-up, estimated",
        (1 + known.ACCEPTED / known.DRAFTS) / (1 + 0.02 * known.DRAFT_TOKENS / known.DRAFTS),
    ),
    Truth("llmobs-spec", "Acceptance per position", 0.55, where=(("position", "2"),)),
    Truth("llmobs-tokens", "Mean step by token position", 0.02 * 3, ref="C"),
    Truth("llmobs-fleet", "Generated tokens per second", known.REQUESTS * known.OUTPUT, within=_RATE),
    Truth("llmobs-gpu", "Memory used", 70 / 80),
    Truth("llmobs-gpu", "Power", 610),  # the average of the last second, which the driver gives beside 600 W now
    Truth("llmobs-gpu", "Head-room beyond the reserve", (80 - 70 - 1 - 0.2 * 80) * GIB),
    Truth("llmobs-gpu", "Distance to slow-down", 89 - 61),
    Truth("llmobs-gpu", "SM clock, share of its maximum", 1755 / 1980),
)  # fmt: skip

#: Only the first GPU of the shim counts for the truths about GPUs.
_ONE_GPU = ('instance=~"$instance"', 'instance=~"$instance", uuid="GPU-00000000-aaaa-bbbb-cccc-0123456789ab"')


def test_at_least_25_panels_are_held_to_the_truth() -> None:
    """The list below does not shrink unnoticed."""
    assert len({(t.board, t.panel) for t in TRUTHS}) >= 25


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda t: f"{t.board}: {t.panel} {t.ref}")
def test_a_panel_shows_the_known_truth(running: Stage, truth: Truth) -> None:
    """What the panel's own query answers equals what the known server was made to do."""
    panel = next(p for p in panels(all_boards()[truth.board]) if p["title"] == truth.panel)
    expression = next(t["expr"] for t in panel["targets"] if t["refId"] == truth.ref)
    instance = running.daemons["pair"].url.removeprefix("http://")
    if truth.board == "llmobs-gpu":
        expression = expression.replace(*_ONE_GPU)
    found = running.instant(expression, model=known.MODEL, target="known", instance=instance)
    chosen = [s for s in found if dict(truth.where).items() <= s["metric"].items()]
    assert len(chosen) == 1, found
    assert float(chosen[0]["value"][1]) == pytest.approx(truth.expected, rel=truth.within)


def test_the_oom_of_a_crash_is_on_the_board(running: Stage) -> None:
    """The crashing server's out-of-memory event, its lost requests and its restart show on the on-call board."""
    board = all_boards()["llmobs-health"]
    by_title = {p["title"]: p for p in panels(board)}
    oom = running.instant(by_title["Out of memory"]["targets"][0]["expr"], target="crashing", __range="120s")
    assert max(float(s["value"][1]) for s in oom) >= 0.9
    failures = by_title["Failures in this time range"]["targets"][0]
    assert failures["legendFormat"] == "oom"
    assert float(running.instant(failures["expr"], target="crashing", __range="120s")[0]["value"][1]) >= 0.9


def test_the_candidate_is_seen_to_be_worse(running: Stage) -> None:
    """The canary that fails one request in twenty and decodes slower is on the wrong side of the roll-back limits."""
    by_title = {p["title"]: p for p in panels(all_boards()["llmobs-canary"])}
    failed = by_title["Failed share, Δ"]
    limit = failed["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
    slower = by_title["Inter-token p95, Δ"]["targets"][0]["expr"]

    def above(expression: str, bound: float) -> bool:
        found = running.instant(expression, __rate_interval="70s")
        return bool(found) and float(found[0]["value"][1]) > bound

    wait_for("failures of the candidate", lambda: above(failed["targets"][0]["expr"], limit), 60, pause=2)
    wait_for("slower tokens of the candidate", lambda: above(slower, 0), 60, pause=2)


def test_a_fallen_gpu_shows_its_xid(running: Stage) -> None:
    """The Xid that the simulated GPU raised is in the graph and in the table."""
    by_title = {p["title"]: p for p in panels(all_boards()["llmobs-gpu"])}
    codes = {s["metric"]["xid"] for s in running.series(by_title["Xid errors"]["targets"][0]["expr"], 90, 2)}
    assert "79" in codes


@pytest.mark.needs("chromium")
def test_previews_are_drawn_without_an_empty_panel(running: Stage, tmp_path: Path) -> None:
    """The preview draws every board from live data; no panel but those of Tempo stays empty, and a picture is made."""

    def now() -> tuple[Ask, list[float]]:
        end = round(time.time())
        times = [end - 60.0 + 2 * i for i in range(31)]

        def ask(expression: str, instant: bool) -> list[dict[str, Any]]:
            query, span = fill(expression, VALUES), {"start": str(times[0]), "end": str(times[-1]), "step": "2"}
            found = running.ask("query", query=query) if instant else running.ask("query_range", query=query, **span)
            result: list[dict[str, Any]] = found["result"]
            return result

        return ask, times

    def blank(panel: dict[str, Any]) -> bool:
        words = set(texts(inside(panel, *now(), 600, 260)))
        empty = {panel["fieldConfig"]["defaults"].get("noValue", "No data"), "No traffic"} - {"None"}
        return not words or bool(words & empty)

    left = patiently(lambda left: [(b, p) for b, p in left if blank(p)], every_panel())
    assert [(b["uid"], p["title"]) for b, p in left] == []
    ask, times = now()
    picture(all_boards()["llmobs-health"], ask, times, tmp_path / "health.png", "preview")
    assert (tmp_path / "health.png").read_bytes().startswith(b"\x89PNG")
