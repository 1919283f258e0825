"""`python -m tests.dashboards.preview`: draw every board from the stage, or from a Prometheus that already runs."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT
from tests.dashboards.boards import Json, all_boards
from tests.dashboards.preview.page import picture
from tests.dashboards.stage import VALUES, Stage, stage

#: The known server of the tests is no sight: its curves are straight lines.
_SHOWN = {"target": "simulated|stable|candidate|crashing|gone", "model": "demo.*"}
NOTE = "Preview from live data of simulated engines; drawn by a test tool, not by Grafana"


def main() -> None:
    """Draw the boards into docs/pictures/dashboards."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "dashboards")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the stage plays before the pictures")
    parser.add_argument("--url", help="a Prometheus that already runs, instead of the stage")
    parser.add_argument("--only", action="append", default=[], metavar="UID")
    parser.add_argument("--hold", type=float, default=0.0, help="seconds to keep the stage running afterwards")
    arguments = parser.parse_args()
    with _running(arguments.url, arguments.minutes) as running:
        draw(running, arguments.out, arguments.minutes * 60, arguments.only)
        time.sleep(arguments.hold)


@contextlib.contextmanager
def _running(url: str | None, minutes: float) -> Iterator[Stage]:
    if url:
        yield Stage(url=url, daemons={}, simulators={})
        return
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder) / "stage", warm_up=minutes * 60) as made:
        print(made.url, flush=True)
        yield made


def draw(running: Stage, out: Path, seconds: float, only: list[str]) -> None:
    """Draw the boards over the last `seconds`."""
    step = max(1.0, round(seconds / 160))
    end = round(time.time())
    times = [end - seconds + i * step for i in range(int(seconds / step) + 1)]
    start = {"__range": f"{int(seconds)}s", **_SHOWN}

    def ask(expression: str, instant: bool) -> list[Json]:
        from tests.dashboards.boards import fill

        query = fill(expression, {**VALUES, **start})
        if instant:
            found: list[Json] = running.ask("query", query=query, time=str(times[-1]))["result"]
            return found
        ranged: list[Json] = running.ask(
            "query_range", query=query, start=str(times[0]), end=str(times[-1]), step=str(step)
        )["result"]
        return ranged

    for uid, board in all_boards().items():
        if not only or uid in only:
            path = out / f"{uid.removeprefix('llmobs-')}.png"
            picture(board, ask, times, path, NOTE)
            print(f"{path} {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main()
