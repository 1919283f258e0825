"""Every hook raises, under load: vLLM answers as if we were not there, and each hook is removed."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.instrument import client
from tests.instrument.conftest import INJECT, Instrumented, wait_for
from tests.real.server import VllmServer

pytestmark = pytest.mark.needs("vllm")

#: Kinds whose answer does not depend on when a client leaves.
_KINDS = tuple(k for k in client.KINDS if not k.startswith("leave"))
#: Hooks that are called only while the outer ones work, and then the outer ones.
_INNER = ("request_log", "stats_page", "share", "scheduler")
_OUTER = ("http", "sequences", "steps", "stat_logger")


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switch") / "hooks"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, switch: Path) -> Iterator[Instrumented]:
    folder = tmp_path_factory.mktemp("broken")
    made = Instrumented(folder, launcher=(), INJECT_HOOKS=str(switch), PYTHONPATH=str(INJECT))
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


def _page(broken: Instrumented) -> int:
    try:
        return 200 if broken.stats() else 0
    except urllib.error.HTTPError as error:
        return error.code


def test_responses_are_those_of_plain_vllm_while_every_hook_raises(
    broken: Instrumented, plain: VllmServer, switch: Path
) -> None:
    """Mixed requests, 32 at a time, while first the inner and then all hooks raise: same status, same body."""
    work = client.plan(160, kinds=_KINDS)
    theirs = [(a.status, client.joined(a.body)) for a in asyncio.run(client.run(plain.url, work))]
    for names in (" ".join(_INNER), "*"):
        switch.write_text(names)
        ours = [(a.status, client.joined(a.body)) for a in asyncio.run(client.run(broken.url, work))]
        assert ours == theirs
        if names != "*":
            assert [_page(broken) for _ in range(4)] == [500, 500, 500, 404]
    assert broken.server.process.poll() is None


@pytest.mark.parametrize("hook", [*_INNER, *_OUTER])
def test_each_failing_hook_is_said_once_and_removed(broken: Instrumented, hook: str) -> None:
    """The log names each hook: once when it first fails, once when it is removed."""

    def removed() -> bool:
        text = broken.log.read_text(errors="replace")
        return text.count(f"hook '{hook}' failed 3 times and is removed") == 1

    assert wait_for(removed, 10)
    assert broken.log.read_text(errors="replace").count(f"hook '{hook}' failed, vLLM is not affected") == 1
