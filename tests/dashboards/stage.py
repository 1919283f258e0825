"""Everything a board can show, at once: simulated and known servers, their GPUs, sidecars, rules, and Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from llmobs import alerts
from llmobs.generate import Options
from tests import nvml
from tests.daemon import Daemon, prometheus, wait_for
from tests.dashboards.boards import Json, fill
from tests.dashboards.known import KnownVllm
from tests.real.server import free_port

#: Values of the variables on the stage, where everything happens within minutes.
VALUES = {
    "__rate_interval": "20s", "__range": "60s", "__interval": "1s", "compare": "5s", "baseline": "20s",
    "ttft_slo": "0.75", "tpot_slo": "0.025", "split": "version", "stable": "v1", "candidate": "v2",
    "draft_cost": "0.02", "job": ".+", "instance": ".+", "model": ".+", "target": ".+", "engine": ".+",
    "cluster": ".*", "slo": ".+",
}  # fmt: skip

#: Rules in fast motion: what takes 5 minutes in production takes 15 seconds here.
_ALERTS = {"alerts": {"time_scale": 0.05, "interval": "20s"}}


@dataclass
class Stage:
    """The running parts; `url` is Prometheus."""

    url: str
    daemons: dict[str, Daemon]
    simulators: dict[str, str]

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an answer of Prometheus' API; AssertionError with its message when it refuses."""
        request = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{json.load(error)['error']}: {parameters}") from None

    def instant(self, expression: str, **values: str) -> list[Json]:
        """Return the result of a query now, its variables filled in."""
        found: list[Json] = self.ask("query", query=fill(expression, {**VALUES, **values}))["result"]
        return found

    def series(self, expression: str, seconds: float, step: float, **values: str) -> list[Json]:
        """Return the result of a query over the last `seconds`."""
        end = time.time()
        found: list[Json] = self.ask(
            "query_range",
            query=fill(expression, {**VALUES, **values}),
            start=str(end - seconds),
            end=str(end),
            step=f"{step:g}s",
        )["result"]
        return found


def _sooner(folder: Path, scenario: str, seconds: int) -> str:
    """Write a scenario whose events come `seconds` earlier; return its file."""
    text = (resources.files("llmobs.simulate") / "scenarios" / f"{scenario}.yaml").read_text(encoding="utf-8")
    path = folder / f"{scenario}.yaml"
    path.write_text(re.sub(r"\bat: (\d+)", lambda m: f"at: {int(m[1]) - seconds}", text), encoding="utf-8")
    return str(path)


def _simulator(folder: Path, scenario: str, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    with (folder / f"{scenario}.log").open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "llmobs", "simulate", "--scenario", scenario),
                *("--port", str(port), *arguments),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("LLMOBS_")},
        )
    return process, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _gpus(folder: Path) -> Iterator[None]:
    """The shim instead of a driver: a Hopper cut into MIG instances, and an old card with fans."""
    library = nvml.build(folder)
    text = folder / "gpus.scenario"
    slot = {
        "gi": 2, "ci": 0, "profile": "3g.40gb", "uuid": "MIG-2", "memory_total": 40 * nvml.GIB,
        "memory_used": 30 * nvml.GIB,
    }  # fmt: skip
    parent = {"mig_mode": 1, "mig_slots": 7, "rows": None, "gi.2.gpm.2": 33, "gi.2.gpm.5": 10, "gi.2.gpm.10": 20}
    text.write_text(
        nvml.scenario(
            nvml.h100(0),
            nvml.t4(1),
            nvml.h100(2, **parent),
            slots=[(2, 0, slot)],
        )
    )
    before = {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", "NVML_SHIM")}
    os.environ["LD_LIBRARY_PATH"] = str(library.parent)
    os.environ["NVML_SHIM"] = str(text)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def rules(folder: Path) -> str:
    """Write the alerts' rules in fast motion; return the pattern that finds them."""
    config = folder / "alerts.yaml"
    config.write_text(json.dumps(_ALERTS))
    for name, text in alerts.files(Options(config=config)).items():
        if re.fullmatch(r"alerts/[\w.-]+\.rules\.ya?ml", name):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return str(folder / "alerts" / "*.rules.yaml")


@contextlib.contextmanager
def stage(folder: Path, *, warm_up: float = 55.0) -> Iterator[Stage]:
    """Start all parts, wait until rates, rules and alerts have something to say, and stop them afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state"
    state.mkdir()
    with contextlib.ExitStack() as stack:
        urls = {}
        for scenario, arguments in (
            ("canary-pair", ()),
            ("canary", ()),
            ("oom-crash", ("--state-dir", str(state))),
        ):
            process, urls[scenario] = _simulator(folder, scenario, *arguments)
            stack.callback(_stop, process)
        known = KnownVllm()
        stack.callback(known.close)
        quick = {"interval_seconds": 0.5}
        parts = {
            "everything": (
                {"gpu": {"interval_seconds": 1}},
                ("--demo", "--scenario", _sooner(folder, "all-features", 30)),
            ),
            "gpu-fault": ({"gpu": {"interval_seconds": 1}}, ("--demo", "--scenario", _sooner(folder, "gpu-fault", 40))),
            "pair": (
                {
                    "targets": [
                        {"url": urls["canary-pair"], "name": "stable", "labels": {"version": "v1"}, **quick},
                        {"url": urls["canary"], "name": "candidate", "labels": {"version": "v2"}, **quick},
                        {"url": urls["oom-crash"], "name": "crashing", "state_dir": str(state), **quick},
                        {"url": known.url, "name": "known", "interval_seconds": 0.25},
                        {"url": f"http://127.0.0.1:{free_port()}", "name": "gone", **quick},
                    ],
                    "derive": {"window_seconds": 20, "peak_seconds": 20},
                    "gpu": {"interval_seconds": 1},
                },
                (),
            ),
        }
        daemons = {}
        with _gpus(folder):
            for name, (config, arguments) in parts.items():
                place = folder / name
                place.mkdir()
                daemons[name] = stack.enter_context(Daemon(place, config, *arguments))
        url = stack.enter_context(
            prometheus(
                folder / "prometheus", [d.url.removeprefix("http://") for d in daemons.values()], rules=rules(folder)
            )
        )
        made = Stage(url=url, daemons=daemons, simulators=urls)
        wait_for("first scrape", lambda: made.instant("count(vllm_up)"), 30)
        time.sleep(warm_up)
        yield made


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
