"""The rest of the alerting chain for tests: a real Alertmanager, and a receiver that remembers what it was told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from llmobs.alerts.routing import alertmanager_file
from llmobs.alerts.settings import AlertSettings
from tests.conftest import find
from tests.daemon import wait_for
from tests.real.server import free_port


@dataclass
class Notified:
    """One notification: when (monotonic), to which receiver, its status, and its alerts' labels."""

    at: float
    receiver: str
    status: str
    alerts: list[dict[str, str]]


@dataclass
class Receiver:
    """What was received so far."""

    url: str
    notified: list[Notified] = field(default_factory=list)

    def names(self, receiver: str) -> list[str]:
        """Return the names of the alerts a receiver was told to be firing, each notification once."""
        return [n.alerts[0]["alertname"] for n in self.notified if n.receiver == receiver and n.status == "firing"]


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a webhook receiver."""
    found = Receiver(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            alerts = [a["labels"] for a in body["alerts"] if a["status"] == body["status"]]
            found.notified.append(Notified(time.monotonic(), self.path.strip("/"), body["status"], alerts))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextlib.contextmanager
def alertmanager(folder: Path, settings: AlertSettings, sink: Receiver, *, inhibit: bool = True) -> Iterator[str]:
    """Run the real Alertmanager with our configuration, its receivers pointed at `sink`; yield its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load(alertmanager_file(settings)["alerts/alertmanager.yaml"])
    for target in config["receivers"]:
        for webhook in target["webhook_configs"]:
            webhook["url"] = f"{sink.url}/{target['name']}"
    if not inhibit:
        config["inhibit_rules"] = []
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    with (folder / "alertmanager.log").open("wb") as out:
        process = subprocess.Popen(
            [
                find("alertmanager") or "alertmanager",
                f"--config.file={file}",
                f"--storage.path={folder / 'am'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{url}/-/ready", timeout=2).status == 200)
        return False

    try:
        wait_for("answer from Alertmanager", ready, 30)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def fire(url: str, alerts: Sequence[Mapping[str, str]]) -> None:
    """Send alerts to an Alertmanager, as Prometheus does."""
    body = json.dumps([{"labels": dict(labels), "annotations": {}} for labels in alerts]).encode()
    request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def inhibited(url: str) -> dict[str, bool]:
    """Return for each alert name whether it is inhibited now."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return {a["labels"]["alertname"]: bool(a["status"]["inhibitedBy"]) for a in found}
