"""The launcher: plugins, refusals, exit codes, and signals, with small stand-ins for the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmobs.errors import ConfigError
from llmobs.instrument import launch

_GROUPS = {
    "vllm.general_plugins": ["lora", "llmobs"],
    "vllm.stat_logger_plugins": ["llmobs"],
    "vllm.endpoint_plugins": ["llmobs", "somebody_elses"],
}


def test_naming_our_endpoint_plugin_keeps_everybody_elses_plugins() -> None:
    """An unset VLLM_PLUGINS becomes all names that load by default, plus ours; other endpoint plugins stay off."""
    assert launch.allowed_plugins(None, _GROUPS) == "llmobs,lora"


def test_an_operators_list_gains_ours_once() -> None:
    """A list that is set is kept in its order, and ours is added when it is missing."""
    assert launch.allowed_plugins("lora", _GROUPS) == "lora,llmobs"
    assert launch.allowed_plugins("llmobs, lora", _GROUPS) == "llmobs,lora"
    assert launch.allowed_plugins("", _GROUPS) == "llmobs"


@pytest.mark.parametrize(
    "flags",
    [
        ["--otlp-traces-endpoint", "http://c:4317", "--disable-log-stats"],
        ["--otlp-traces-endpoint=http://c:4317", "--disable_log_stats"],
    ],
)
def test_the_deadly_pair_is_refused(flags: list[str]) -> None:
    """The two flags that kill vLLM together are refused by name, however they are spelled."""
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint together with --disable-log-stats"):
        launch.refuse_deadly_pair(["vllm", "serve", "m", *flags])


def test_the_deadly_pair_is_found_in_the_config_file(tmp_path: Path) -> None:
    """One of the two may stand in the YAML file of --config."""
    file = tmp_path / "vllm.yaml"
    file.write_text("disable-log-stats: true\n")
    with pytest.raises(ConfigError):
        launch.refuse_deadly_pair(["vllm", "serve", "m", "--config", str(file), "--otlp-traces-endpoint", "http://c"])
    launch.refuse_deadly_pair(["vllm", "serve", "m", "--config", str(file)])


def test_the_middleware_is_added_to_a_server_only() -> None:
    """`vllm serve` gains --middleware once; another command, and the Rust frontend, gain none."""
    for command, gains in ((["vllm", "serve", "m"], True), (["vllm", "bench", "x"], False), (["sleep", "1"], False)):
        arguments = list(command)
        launch.prepare(arguments, {})
        launch.prepare(arguments, {})
        assert arguments == command + (["--middleware", launch.MIDDLEWARE] if gains else [])
    arguments = ["vllm", "serve", "m"]
    launch.prepare(arguments, {"VLLM_USE_RUST_FRONTEND": "1"})
    assert "--middleware" not in arguments


def _llmobs(*arguments: str, code: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmobs", "instrument", *arguments, "--", sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **environment})  # fmt: skip


def test_without_options_the_process_becomes_the_command() -> None:
    """Same pid, same output, same exit code."""
    process = _llmobs(code="import os, sys; print(os.getpid()); sys.exit(5)")
    out, _ = process.communicate(timeout=30)
    assert (int(out), process.returncode) == (process.pid, 5)


_DIE = "import os, pathlib; pathlib.Path(os.environ['LLMOBS_RUN_DIR'], 'engine-died').write_text('{}')"


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("import sys; sys.exit(4)", 4), (_DIE, 9), (_DIE + "; import sys; sys.exit(4)", 4)],
)
def test_only_exit_code_zero_after_an_engine_death_is_changed(code: str, expected: int) -> None:
    """A good end stays 0, another code stays itself, and 0 after the engine died is the operator's code."""
    process = _llmobs("--engine-death-exit-code", "9", code=code)
    process.communicate(timeout=30)
    assert process.returncode == expected


def test_a_child_killed_by_a_signal_takes_the_parent_along() -> None:
    """Who waits for the launcher sees the same signal."""
    process = _llmobs("--engine-death-exit-code", "9", code="import os; os.kill(os.getpid(), 9)")
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


def test_signals_reach_the_child() -> None:
    """SIGTERM is handed on, and a stop that was asked for is not an engine death."""
    code = f"import signal, sys, time; signal.signal(15, lambda *a: sys.exit(0)); {_DIE}; print('up'); time.sleep(30)"
    process = _llmobs("--engine-death-exit-code", "9", code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 0


def test_the_child_does_not_outlive_a_killed_parent() -> None:
    """kill -9 of the launcher ends the server, which would otherwise run on unsupervised."""
    process = _llmobs("--engine-death-exit-code", "9", code="import os, time; print(os.getpid()); time.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(10)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.communicate(timeout=5)
