"""`llmobs simulate` on the command line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from llmobs.cli import main
from llmobs.simulate import names

COMMAND = "from llmobs.cli import main; raise SystemExit(main())"


def seconds_to_stop(number: signal.Signals) -> float:
    """Start a pair of servers, talk to both, send the signal; return how long the end took."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "simulate", "--scenario", "canary-pair"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        urls = [re.search(r"http://\S+/metrics", line)[0] for line in (lines[1], lines[3])]
        assert "canary-pair" in lines[0]
        assert "0.33.0" in lines[2]
        for url in urls:
            with urllib.request.urlopen(url, timeout=5) as response:
                assert b"vllm:" in response.read()
        started = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
        took = time.monotonic() - started
        assert process.returncode == 0
        assert errors == ""
        return took
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_stops_at_once(number: signal.Signals) -> None:
    """The first lines say where it is; a signal ends it within two seconds, without a word on stderr."""
    # The better of two: a machine busy with other tests can stand still for seconds.
    assert seconds_to_stop(number) < 2 or seconds_to_stop(number) < 2


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` shows every scenario with its sentence."""
    assert main(["simulate", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == names()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "brust"], "did you mean 'burst'?"),
        (["--dialect", "0.1.0"], "write a version from 0.5.0 on"),
        (["--speed", "0"], "must be above 0"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is one line on stderr and exit code 2."""
    assert main(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
