"""`llmobs instrument --check` names every hook: those of the source, and those of a running server."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

import llmobs.instrument
from llmobs.instrument.check import HOOKS
from tests.conftest import VLLM_ENV
from tests.instrument.ask import ask
from tests.instrument.conftest import Instrumented, wait_for
from tests.instrument.overlay import overlay
from tests.real.server import free_port

_BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
_ALWAYS = {hook.name for hook in HOOKS if hook.option is None}


def _in_the_source() -> set[str]:
    """Whatever is passed to `guard()`, and the name of every observer."""
    found = set()
    for path in Path(llmobs.instrument.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "guard":
                found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            elif isinstance(node, ast.ClassDef) and "Observer" in [b.id for b in node.bases if isinstance(b, ast.Name)]:
                found |= {
                    n.value.value for n in node.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                }
    return found


def test_every_guard_of_the_source_is_listed() -> None:
    """A hook that is added cannot be forgotten in `--check`; none is there twice."""
    names = [hook.name for hook in HOOKS]
    assert _in_the_source() - set(names) == set()
    assert len(names) == len(set(names))


@pytest.mark.needs("vllm")
def test_check_prints_all_of_them_as_found() -> None:
    """With the real vLLM every hook is found, and said to be."""
    program = overlay(VLLM_ENV) / "bin" / "llmobs"
    done = subprocess.run([program, "instrument", "--check"], capture_output=True, text=True, timeout=120, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    printed = {line[1]: line[0] for line in lines if len(line) > 1}
    assert {hook.name: printed.get(hook.name) for hook in HOOKS} == {hook.name: "ok" for hook in HOOKS}


@pytest.mark.needs("vllm")
def test_a_server_with_every_option_has_all_of_them(tmp_path: Path, instrumented: Instrumented) -> None:
    """The names in `hook_active` of /stats are those of the list: all with every option, the rest without any."""
    ask(instrumented.url, "/v1/completions", _BODY)
    # `share` has its hook from its first second on, spans from their first request.
    assert wait_for(lambda: set(instrumented.stats()["hook_active"]) >= _ALWAYS), instrumented.stats()["hook_active"]
    made = Instrumented(
        tmp_path,
        launcher=(),
        LLMOBS_LOG_VLLM="json",
        LLMOBS_TRACE_LAYERS="1",
        LLMOBS_TRACE_DETAIL_RATIO="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}",
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    try:
        made.server.wait_ready()
        assert ask(made.url, "/v1/completions", _BODY).status == 200
        names = {hook.name for hook in HOOKS} & _in_the_source()
        wait_for(lambda: set(made.stats()["hook_active"]) == names, 5)
        active = made.stats()["hook_active"]
        assert set(active) == names
        assert set(active.values()) == {1.0}
    finally:
        made.server.stop()
