"""Servers for the tests of `llmobs.instrument`: the real vLLM, plain and with the plugin, each started once."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import VLLM_ENV
from tests.instrument.overlay import overlay
from tests.real.server import VllmServer

INJECT = Path(__file__).with_name("inject")


class Instrumented:
    """A running vLLM with llmobs inside, its log lines and its journal."""

    def __init__(
        self, folder: Path, *arguments: str, launcher: tuple[str, ...] | None = None, **environment: str
    ) -> None:
        env = overlay(VLLM_ENV)
        self.state = folder / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.lines_file = folder / "requests.jsonl"
        self.log = folder / "server.log"
        settings = {
            "LLMOBS_STATE_DIR": str(self.state),
            "LLMOBS_LOG": str(self.lines_file),
            "PATH": f"{env / 'bin'}:{os.environ.get('PATH', '')}",
            **environment,
        }
        command = (str(env / "bin" / "vllm"),)
        if launcher is not None:
            command = (str(env / "bin" / "llmobs"), "instrument", *launcher, "--", *command)
        self.server = VllmServer(self.log, *arguments, environment=settings, command=command)
        self.url = self.server.url

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Return the log lines of these events so far, or all."""
        if not self.lines_file.exists():
            return []
        found = [json.loads(line) for line in self.lines_file.read_text().splitlines()]
        return [line for line in found if not events or line["event"] in events]

    def requests(self) -> list[dict[str, Any]]:
        """Return the lines of requests that have ended."""
        return self.lines("request_completed", "request_failed", "request_rejected")

    def stats(self, **headers: str) -> dict[str, Any]:
        """Return the `/stats` document."""
        request = urllib.request.Request(self.url + "/stats", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            document: dict[str, Any] = json.load(response)
            return document

    def journal(self) -> list[dict[str, Any]]:
        """Return the journal's lines."""
        path = self.state / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return the first true value of `what`, asked again until `seconds` have passed; the last value otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.05)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM without our plugin."""
    server = VllmServer(tmp_path_factory.mktemp("plain") / "server.log")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrumented]:
    """vLLM with the plugin, started through the launcher, a short queue limit for admission, and an API key."""
    made = Instrumented(tmp_path_factory.mktemp("instrumented"), launcher=(), LLMOBS_STATS_INTERVAL_S="1")
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()
