"""`llmobs instrument -- vllm serve …`: set what the installed vLLM needs, then become it.

Without `--engine-death-exit-code` the process is replaced (exec): same pid, exit code, signals, and output. With it, a
small parent stays: it hands signals on, and turns the exit code 0 that a single-API-server vLLM ends with after its
engine died into the one that was asked for.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from llmobs.errors import ConfigError, LlmobsError
from llmobs.instrument import rundir, settings

MIDDLEWARE = "llmobs.instrument.middleware.Middleware"
PLUGIN = "llmobs"
_ENDPOINTS = "vllm.endpoint_plugins"
#: Every group that `VLLM_PLUGINS` filters.
GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
    _ENDPOINTS,
)
_SI_KERNEL = 0x80
_FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
_PR_SET_PDEATHSIG = 1


def launch(command: Sequence[str], *, engine_death_exit_code: int | None = None) -> int:
    """Run `command`; without `engine_death_exit_code` this does not return.

    Raises ConfigError for a command or settings that cannot work, LlmobsError when the program cannot be started.
    """
    if not command:
        raise ConfigError("llmobs instrument: nothing to run; write: llmobs instrument -- vllm serve MODEL …")
    if engine_death_exit_code is not None and not 1 <= engine_death_exit_code <= 255:
        raise ConfigError(f"--engine-death-exit-code {engine_death_exit_code} is not an exit code from 1 to 255")
    settings.check()
    refuse_deadly_pair(command)
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"llmobs instrument: {command[0]!r} is not a program on PATH")
    environment = dict(os.environ)
    arguments = list(command)
    if not settings.is_disabled():
        prepare(arguments, environment)
    if engine_death_exit_code is None:
        try:
            os.execve(program, arguments, environment)  # noqa: S606  becoming the given command is the point
        except OSError as error:
            raise LlmobsError(f"llmobs instrument: {program} cannot be started: {error}") from error
    return _supervise(program, arguments, environment, engine_death_exit_code)


def prepare(arguments: list[str], environment: MutableMapping[str, str]) -> None:
    """Change command line and environment in place so that all of our plugins load and nobody else's is lost."""
    plugins = allowed_plugins(environment.get("VLLM_PLUGINS"))
    if plugins is not None:
        environment["VLLM_PLUGINS"] = plugins
    python_frontend = environment.get("VLLM_USE_RUST_FRONTEND", "0") in ("", "0")
    if python_frontend and _is_api_server(arguments) and MIDDLEWARE not in arguments:
        arguments += ["--middleware", MIDDLEWARE]


def allowed_plugins(current: str | None, groups: Mapping[str, Sequence[str]] | None = None) -> str | None:
    """Return the value `VLLM_PLUGINS` needs, or None to leave it unset.

    vLLM loads endpoint plugins only when this variable names them, and naming one switches off every other plugin
    that it doesn't name. So an unset variable becomes the names of all plugins that load by default, plus ours; one
    that the operator has set gains ours. Other people's endpoint plugins stay off, unless they share a name.
    """
    found = groups if groups is not None else _installed_plugins()
    if PLUGIN not in found.get(_ENDPOINTS, ()):
        return None if current is None else _with_ours(current)
    if current is not None:
        return _with_ours(current)
    defaults = {name for group, names in found.items() if group != _ENDPOINTS for name in names}
    return ",".join(sorted(defaults | {PLUGIN}))


def _with_ours(current: str) -> str:
    names = [name.strip() for name in current.split(",") if name.strip()]
    return ",".join([*names, *([] if PLUGIN in names else [PLUGIN])])


def _installed_plugins() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group in GROUPS:
        names = [point.name for point in importlib.metadata.entry_points(group=group)]
        if names:
            found[group] = names
    return found


def refuse_deadly_pair(command: Sequence[str]) -> None:
    """Raise ConfigError for `--otlp-traces-endpoint` with `--disable-log-stats`: together they kill a plain vLLM.

    Flags may be spelled with underscores, as ``--flag=value``, or stand in the YAML file of ``--config``.
    """
    words = [word.split("=", 1)[0].replace("_", "-") for word in command if word.startswith("--")]
    configured = _config_file(command)
    found = {flag for flag in ("otlp-traces-endpoint", "disable-log-stats") if f"--{flag}" in words}
    for flag in ("otlp-traces-endpoint", "disable-log-stats"):
        value = configured.get(flag, configured.get(flag.replace("-", "_")))
        if value not in (None, False, ""):
            found.add(flag)
    if len(found) == 2:
        raise ConfigError(
            "llmobs instrument: --otlp-traces-endpoint together with --disable-log-stats kills vLLM's engine after the "
            "first request (an assertion in its tracing); drop one of the two flags"
        )


def _config_file(command: Sequence[str]) -> Mapping[str, Any]:
    path = None
    for index, word in enumerate(command):
        if word == "--config" and index + 1 < len(command):
            path = command[index + 1]
        elif word.startswith("--config="):
            path = word.partition("=")[2]
    if path is None or not Path(path).is_file():
        return {}
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # vLLM says what is wrong with it
    return document if isinstance(document, dict) else {}


def _is_api_server(arguments: Sequence[str]) -> bool:
    """Whether this is `vllm serve …` or `python -m vllm.entrypoints…api_server …`, and not for a headless node."""
    if "--headless" in arguments or any(flag in arguments for flag in ("--help", "-h", "--help=")):
        return False
    if Path(arguments[0]).name == "vllm":
        return len(arguments) > 1 and arguments[1] == "serve"
    joined = " ".join(arguments)
    return "vllm.entrypoints.cli.main serve" in joined or "api_server" in joined


def _supervise(program: str, arguments: list[str], environment: dict[str, str], death_code: int) -> int:
    """Run the program as a child, hand signals on, and return its exit code, or `death_code` after an engine death.

    A child killed by a signal takes this process along in the same way, so that the waiter sees the same.
    """
    environment.pop(rundir.VARIABLE, None)
    run_dir = rundir.make(environment)
    signals = {getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | {signal.SIGCHLD})
    parent = os.getpid()
    try:
        child = subprocess.Popen(  # noqa: S603  running the given command is the point
            [program, *arguments[1:]],
            env=environment,
            preexec_fn=lambda: _in_child(signals, parent),
        )
    except OSError as error:
        rundir.remove(environment)
        raise LlmobsError(f"llmobs instrument: {program} cannot be started: {error}") from error
    try:
        asked_to_stop = False
        while child.poll() is None:
            info = signal.sigwaitinfo(signals | {signal.SIGCHLD})
            if info.si_signo == signal.SIGCHLD:
                continue
            asked_to_stop |= info.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
            # What a terminal sends reaches the whole foreground group by itself.
            if info.si_code != _SI_KERNEL and child.poll() is None:
                os.kill(child.pid, info.si_signo)
        died = rundir.read(run_dir, "engine-died") is not None
    finally:
        rundir.remove(environment)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals | {signal.SIGCHLD})
    code = child.returncode
    if code == 0 and died and not asked_to_stop:
        print(f"llmobs: the engine died and vLLM exited with 0; exiting with {death_code}", file=sys.stderr)
        return death_code
    if code < 0:
        _die_by(-code)
    return code


def _in_child(signals: set[signal.Signals], parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals | {signal.SIGCHLD})
    # If this parent is killed with -9, vLLM must not go on without a supervisor.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _die_by(number: int) -> NoReturn:
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    os._exit(128 + number)
