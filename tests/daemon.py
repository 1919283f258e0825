"""Start the real daemon and Prometheus as processes for tests, and read what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import find
from tests.real.server import free_port

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 15.0, pause: float = 0.05) -> Any:
    """Return the first true value of `condition`; AssertionError naming `what` when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {seconds:g} s (last: {value!r})")
        time.sleep(pause)


class Daemon:
    """`llmobs run` as a process."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "llmobs.yaml"
        self.config.write_text(json.dumps(config or {}))
        self.log = folder / "llmobs.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith("LLMOBS_")}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "llmobs", "run", "--config", str(self.config)),
                    *("--listen", f"127.0.0.1:{self.port}", *arguments),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
            )

    def __enter__(self) -> Daemon:
        wait_for("answer from the daemon", self._healthy)
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def _healthy(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return self.get("/-/healthy")[0] == 200
        return False

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit code and how long it took in seconds."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(10)
        return code, time.monotonic() - started

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, bytes]:
        """Return (status, body)."""
        request = urllib.request.Request(self.url + path, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def series(self, *, openmetrics: bool = False) -> Series:
        """Return every series of /metrics, parsed by Prometheus' own Python parser."""
        accept = "application/openmetrics-text" if openmetrics else "text/plain"
        text = self.get("/metrics", {"Accept": accept})[1].decode()
        families = parse_openmetrics(text) if openmetrics else parse_text(text)
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def value(self, metric: str, **labels: str) -> float | None:
        """Return the value of the one series with these labels, or None."""
        series = self.series().items()
        found = [v for (name, have), v in series if name == metric and labels.items() <= dict(have).items()]
        assert len(found) <= 1, f"{metric}{labels} matches {len(found)} series"
        return found[0] if found else None

    def state(self) -> dict[str, Any]:
        """Return /api/v1/state."""
        document: dict[str, Any] = json.loads(self.get("/api/v1/state")[1])
        return document

    def events(self) -> list[dict[str, Any]]:
        """Return the log's JSON lines."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextlib.contextmanager
def prometheus(folder: Path, targets: Sequence[str], *, interval: str = "1s", rules: str = "") -> Iterator[str]:
    """Run the real Prometheus scraping `targets` (host:port); yield its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "llmobs", "static_configs": [{"targets": list(targets)}]}],
        "rule_files": [rules] if rules else [],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    with (folder / "prometheus.log").open("wb") as out:
        process = subprocess.Popen(
            [
                find("prometheus") or "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--log.level=warn",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{url}/-/ready", timeout=2).status == 200
        return False

    try:
        wait_for("answer from Prometheus", ready, 30)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def query(prometheus_url: str, expression: str) -> list[dict[str, Any]]:
    """Return the result of an instant query."""
    quoted = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus_url}/api/v1/query?{quoted}", timeout=10) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result
