"""Which fault is caught by which alert, how soon, with how many pages; beside public rule sets (docs/detection.md).

Simulated engines with their GPUs, the real daemon, the real Prometheus and the real Alertmanager, all with time
compressed by the same factor: what takes a minute takes 60 ÷ SPEED seconds, in the simulation and in every rule.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from benchmarks import _public_rules
from benchmarks._faults import FAULTS, HEALTHY, Fault
from llmobs.alerts.model import duration, seconds
from llmobs.alerts.recording import shortened
from llmobs.alerts.render import behaviour_only, groups
from llmobs.alerts.settings import AlertSettings, load
from tests.alerts.chain import Receiver, alertmanager, receiver
from tests.conftest import find
from tests.daemon import wait_for
from tests.real.server import free_port

#: Rows that run at the same time; more would need more than two cores.
_BATCH = 7

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What happened in one row; times in simulated seconds after the fault."""

    fault: Fault
    namespace: str
    began: float = 0.0
    told: list[tuple[float, str, str]] = field(default_factory=list)  # seconds, receiver, alert
    public: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)  # set → alert → (seconds, severity)

    def caught(self) -> tuple[float, str] | None:
        """The first wanted alert that reached somebody."""
        return next(((at, name) for at, _, name in self.told if at >= 0 and name in self.fault.wanted), None)

    def pages(self) -> list[str]:
        """Alerts that paged after the fault began."""
        return list(dict.fromkeys(name for at, to, name in self.told if to == "pager" and at >= 0))

    def false(self) -> list[str]:
        """Alerts before the fault, or about something that is not so."""
        good = {*self.fault.wanted, *self.fault.true_too}
        return list(dict.fromkeys(name for at, _, name in self.told if at < 0 or name not in good))


def prepared(fault: Fault, scenario: str, folder: Path) -> str:
    """Return a scenario with the row's healthy lead in front of its events and its changes: its name, or a file."""
    document = _document(scenario)
    if not document.get("events"):
        return scenario
    for event in document["events"]:
        event["at"] += fault.lead
        if fault.once:
            event.pop("every", None)
    if fault.loading:
        document["load_seconds"] = fault.loading
    file = folder / f"{re.sub(r'[^a-z]+', '-', fault.name.lower())}-{scenario}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(file)


def _document(scenario: str) -> dict[str, Any]:
    text = resources.files("llmobs.simulate").joinpath(f"scenarios/{scenario}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def first_event(scenario: str) -> float:
    """Return when the first event of a scenario is due, 0 without events."""
    return min((float(event["at"]) for event in _document(scenario).get("events", [])), default=0.0)


class Bench:
    """The chain with several scenarios in it, each in a namespace of its own."""

    def __init__(self, folder: Path, speed: float) -> None:
        self.folder, self.speed = folder, speed
        self.processes: dict[str, list[tuple[subprocess.Popen[bytes], int, int]]] = {}
        self.entries: dict[str, list[tuple[int, int]]] = {}
        (folder / "targets").mkdir(parents=True, exist_ok=True)

    def start(self, namespace: str, scenario: str, labels: dict[str, str], *, publish: bool = True) -> None:
        """Start a simulated server and the daemon beside it."""
        port, engine = free_port(), free_port()
        mine = self.folder / f"{namespace}-{port}"
        mine.mkdir()
        (mine / "memory.events").write_text("oom_kill 0\n")
        given = {
            "scenario": scenario,
            "speed": self.speed,
            "folder": str(mine),
            "port": port,
            "engine_port": engine,
            "labels": labels,
        }
        with (mine / "log").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks._watched", json.dumps(given)], stdout=out, stderr=out, cwd=ROOT
            )
        self.processes.setdefault(namespace, []).append((process, port, engine))
        if publish:
            self.entries.setdefault(namespace, []).append((port, engine))
            self.write()

    def write(self) -> None:
        """Write the targets for Prometheus' file discovery."""
        for job, which in (("llmobs", 0), ("vllm", 1)):
            document = [
                {"targets": [f"127.0.0.1:{pair[which]}"], "labels": {"namespace": namespace}}
                for namespace, pairs in self.entries.items()
                for pair in pairs
            ]
            new = self.folder / "targets" / f"{job}.new"
            new.write_text(json.dumps(document))
            new.replace(self.folder / "targets" / f"{job}.json")

    def act(self, namespace: str, what: str, scenario: str) -> None:
        """Do what the row asks for at the end of its lead."""
        if what == "vanish":
            del self.entries[namespace]
            self.write()
        elif what == "stop":
            self.processes[namespace][0][0].kill()
        elif what == "cgroup":
            (next(self.folder.glob(f"{namespace}-*")) / "memory.events").write_text("oom_kill 1\n")
        elif what == "roll":
            self.start(namespace, scenario, {})

    def finish_roll(self, namespace: str) -> None:
        """Take the old replica away once the new one serves."""
        process, port, engine = self.processes[namespace][0]
        self.entries[namespace].remove((port, engine))
        self.write()
        process.terminate()

    def stop(self) -> None:
        """Stop everything."""
        everything = [p for started in self.processes.values() for p, _, _ in started]
        for process in everything:
            process.terminate()
        for process in everything:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


@contextlib.contextmanager
def prometheus(bench: Bench, settings: AlertSettings, alertmanager_url: str, *, public: bool) -> Iterator[str]:
    """Run Prometheus with our rules and the public ones; yield its URL."""
    speed, folder = bench.speed, bench.folder
    every = f"{max(1000, round(15000 / speed))}ms"
    ours = behaviour_only(groups(settings))
    for group in ours:
        group["interval"] = every
    (folder / "ours.yaml").write_text(yaml.safe_dump({"groups": ours}))
    theirs = _public_rules.groups(lambda text: _compressed(text, 1 / speed)) if public else []
    for group in theirs:
        group["interval"] = every
    (folder / "public.yaml").write_text(yaml.safe_dump({"groups": theirs}))
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(folder / "ours.yaml"), str(folder / "public.yaml")],
        "alerting": {
            # The public sets have no routing of their own: they are read from Prometheus.
            "alert_relabel_configs": [{"source_labels": ["ruleset"], "regex": ".+", "action": "drop"}],
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}],
        },
        "scrape_configs": [
            {
                "job_name": job,
                "file_sd_configs": [{"files": [str(folder / "targets" / f"{job}.json")], "refresh_interval": "1s"}],
            }
            for job in (("llmobs", "vllm") if public else ("llmobs",))
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        find("prometheus") or "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", f"--rules.alert.resend-delay={every}",
        # Five minutes after its last sample a series is gone.
        f"--query.lookback-delta={max(2, round(300 / speed))}s",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ))
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{url}/-/ready", timeout=2).status == 200)
        return False

    try:
        wait_for("answer from Prometheus", ready, 30)
        yield url
    finally:
        process.terminate()
        process.wait(15)


def _compressed(text: str, scale: float) -> str:
    if re.fullmatch(r"\d+[smhd]", text):
        return duration(seconds(text) * scale)
    return re.sub(r"\[(\d+[smhd])\]", lambda m: f"[{shortened(m.group(1), scale)}]", text)


def run(faults: Sequence[Fault], speed: float, *, public: bool = True) -> list[Outcome]:
    """Run the rows at the same time, each in its namespace, and return what happened."""
    settings = replace(load(None), time_scale=1 / speed)
    outcomes = [Outcome(fault=fault, namespace=re.sub(r"\W+", "-", fault.name)) for fault in faults]
    with tempfile.TemporaryDirectory() as name, receiver() as sink:
        folder = Path(name)
        bench = Bench(folder, speed)
        try:
            with alertmanager(folder, settings, sink) as am, prometheus(bench, settings, am, public=public) as url:
                _run(bench, outcomes, url)
                collect(outcomes, sink, speed)
        finally:
            bench.stop()
    return outcomes


def _run(bench: Bench, outcomes: Sequence[Outcome], url: str) -> None:
    started = time.monotonic()
    pending = sorted(outcomes, key=lambda o: -o.fault.lead)
    rolled: list[tuple[float, str]] = []
    acted: set[str] = set()
    for outcome in pending:
        _start(bench, outcome)
    end = started + max(o.fault.lead + _offset(o) + o.fault.after for o in outcomes) / bench.speed
    while time.monotonic() < end:
        now = time.monotonic()
        for o in outcomes:
            if o.fault.act and o.namespace not in acted and now >= o.began:
                acted.add(o.namespace)
                bench.act(o.namespace, o.fault.act, o.fault.scenario)
                if o.fault.act == "roll":
                    rolled.append((now + 300 / bench.speed, o.namespace))
        for due, namespace in list(rolled):
            if now >= due:
                rolled.remove((due, namespace))
                bench.finish_roll(namespace)
        _poll_public(outcomes, url, bench.speed)
        time.sleep(0.5)


def _offset(outcome: Outcome) -> float:
    return first_event(outcome.fault.scenario) if outcome.fault.lead else 0.0


def _start(bench: Bench, outcome: Outcome) -> None:
    fault = outcome.fault
    bench.start(outcome.namespace, prepared(fault, fault.scenario, bench.folder), dict(fault.labels))
    for scenario, labels in fault.others:
        bench.start(outcome.namespace, prepared(fault, scenario, bench.folder), dict(labels))
    for _, port, _ in bench.processes[outcome.namespace]:

        def up(port: int = port) -> bool:
            with contextlib.suppress(OSError):
                return b"vllm_up" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2).read()
            return False

        wait_for(f"page of {outcome.namespace}", up, 60)
    outcome.began = time.monotonic() + (fault.lead + _offset(outcome)) / bench.speed


def _poll_public(outcomes: Sequence[Outcome], url: str, speed: float) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=5) as answer:
        now = time.monotonic()
        for alert in json.load(answer)["data"]["alerts"]:
            labels = alert["labels"]
            if alert["state"] != "firing" or "ruleset" not in labels:
                continue
            for o in outcomes:
                if o.namespace == labels.get("namespace"):
                    found = o.public.setdefault(labels["ruleset"], {})
                    found.setdefault(labels["alertname"], ((now - o.began) * speed, labels["severity"]))


def collect(outcomes: Sequence[Outcome], sink: Receiver, speed: float) -> None:
    """Put what was notified into the rows."""
    for note in sink.notified:
        if note.status != "firing" or note.receiver == "dead-man":
            continue
        for o in outcomes:
            names = {a["alertname"] for a in note.alerts if a.get("namespace") == o.namespace}
            o.told += [((note.at - o.began) * speed, note.receiver, name) for name in sorted(names)]
    for o in outcomes:
        o.told.sort()


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the matrix of our alerts."""
    lines = ["| fault | caught by | seconds | pages | also told | false alarms |", "|---|---|---|---|---|---|"]
    for o in outcomes:
        caught = o.caught()
        by, at = (caught[1], f"{caught[0]:.0f}") if caught else ("–" if not o.fault.wanted else "**missed**", "–")
        told = [
            n
            for n in dict.fromkeys(name for _, _, name in o.told)
            if n not in o.false() and n != by and n not in o.pages()
        ]
        cells = (
            o.fault.name,
            by,
            at,
            ", ".join(o.pages()) or "none",
            ", ".join(told) or "none",
            ", ".join(o.false()) or "none",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def public_table(outcomes: Sequence[Outcome]) -> str:
    """Return the matrix of the public sets: what fired, and when."""
    lines = ["| fault | " + " | ".join(_public_rules.SETS) + " |", "|---|" + "---|" * len(_public_rules.SETS)]
    for o in outcomes:
        cells = []
        for name in _public_rules.SETS:
            fired = sorted((at, alert, severity) for alert, (at, severity) in o.public.get(name, {}).items())
            cells.append(
                ", ".join(f"{a} {at:.0f} s{' (page)' if s == 'critical' else ''}" for at, a, s in fired) or "silent"
            )
        lines.append(f"| {o.fault.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything in batches and print both tables; FAULT=regex runs the rows whose name it matches."""
    # Stopped from outside, nothing that was started may stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted, speed = re.compile(os.environ.get("FAULT", "")), float(os.environ.get("SPEED", "15"))
    rows = [f for f in FAULTS if wanted.search(f.name)]
    light, heavy = [f for f in rows if not f.heavy], [f for f in rows if f.heavy]
    batches = [(light[i : i + _BATCH], speed) for i in range(0, len(light), _BATCH)]
    batches += [([f], speed / 3) for f in heavy]
    if wanted.search(HEALTHY.name):
        batches.append(([HEALTHY], 2 * speed))
    outcomes: list[Outcome] = []
    for batch, at in batches:
        done = run(batch, at)
        print(table(done), file=sys.stderr, flush=True)
        outcomes += done
    print(table(outcomes) + "\n\n" + public_table(outcomes), flush=True)


if __name__ == "__main__":
    main()
