"""`llmobs plugin --to DIR`: the plugin in a stock vLLM, found through PYTHONPATH alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmobs.cli import main
from llmobs.deploy.plugin import install
from tests.real.server import VllmServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin, copied."""
    made = tmp_path_factory.mktemp("plugin")
    install(made / "lib")
    return made


@pytest.fixture(scope="module")
def stock(folder: Path) -> Iterator[VllmServer]:
    """A vLLM whose environment does not have llmobs, with the folder in its path."""
    (folder / "state").mkdir()
    server = VllmServer(
        folder / "vllm.log",
        environment={
            "PYTHONPATH": str(folder / "lib"),
            "LLMOBS_STATE_DIR": str(folder / "state"),
            "LLMOBS_LOG": str(folder / "state/vllm.jsonl"),
        },
    )
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.mark.needs("vllm")
def test_a_stock_vllm_loads_it(stock: VllmServer, folder: Path) -> None:
    """Without a changed image or command, /stats answers and a request leaves its log line."""
    with urllib.request.urlopen(stock.url + "/stats", timeout=10) as answer:
        assert json.load(answer)["schema"] == "llmobs.stats/v1"
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(
        stock.url + "/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    log, end = folder / "state/vllm.jsonl", time.monotonic() + 10
    while not (log.exists() and "request_completed" in log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_another_sitecustomize_still_runs(folder: Path, tmp_path: Path) -> None:
    """An image that has a sitecustomize of its own keeps it."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OTHER'] = 'ran'\n")
    code = "import os; print(os.environ.get('OTHER'))"
    path = f"{folder / 'lib'}:{tmp_path}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "ran\n"


def test_other_programs_are_left_alone(folder: Path) -> None:
    """A Python program that is not vLLM starts without anything of ours."""
    code = "import sys; print([m for m in sys.modules if m.startswith('llmobs')])"
    environment = {"PYTHONPATH": str(folder / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_it_can_be_repeated(folder: Path) -> None:
    """A restarted init container copies over what is there."""
    before = sorted(p.relative_to(folder) for p in (folder / "lib").rglob("*") if "__pycache__" not in p.parts)
    install(folder / "lib")
    assert sorted(p.relative_to(folder) for p in (folder / "lib").rglob("*") if "__pycache__" not in p.parts) == before


def test_a_folder_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing volume is said plainly."""
    assert main(["plugin", "--to", "/proc/llmobs"]) == 1
    assert "cannot be copied to /proc/llmobs" in capsys.readouterr().err
