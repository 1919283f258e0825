"""LoRA on the real server: an adapter's requests are answered as ever and carry its name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import VLLM_ENV
from tests.instrument.ask import ask, the_line
from tests.instrument.conftest import Instrumented, wait_for
from tests.real.server import VllmServer, tiny_model

pytestmark = pytest.mark.needs("vllm")

_BODY = {"prompt": "hello world", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
_MODELS = ("tiny", "pirate", "poet")


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("adapter")
    script = Path(__file__).with_name("tiny_lora.py")
    subprocess.run([VLLM_ENV / "bin" / "python", script, tiny_model(), folder], check=True, timeout=120)
    names = (f"{name}={folder}" for name in _MODELS[1:])
    return ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules", *names)


@pytest.fixture(scope="module")
def theirs(flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What plain vLLM answers for each model; it is gone when the other one starts."""
    server = VllmServer(tmp_path_factory.mktemp("plain-lora") / "server.log", *flags)
    try:
        server.wait_ready()
        return {
            name: ask(server.url, "/v1/completions", {"model": name, **_BODY}, X_Request_Id=f"to-{name}").same
            for name in _MODELS
        }
    finally:
        server.stop()


@pytest.fixture(scope="module")
def lora(
    theirs: dict[str, tuple[int, str]], flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instrumented]:
    made = Instrumented(tmp_path_factory.mktemp("lora"), *flags, launcher=())
    try:
        made.server.wait_ready()
        yield made
    finally:
        made.server.stop()


@pytest.mark.parametrize("name", _MODELS)
def test_a_request_carries_its_adapters_name(lora: Instrumented, theirs: dict[str, tuple[int, str]], name: str) -> None:
    """The answer of plain vLLM, which differs between base and adapter; the line names the adapter, the base none."""
    reply = ask(lora.url, "/v1/completions", {"model": name, **_BODY}, X_Request_Id=f"to-{name}")
    assert reply.same == theirs[name]
    assert reply.status == 200
    line = the_line(lora, f"to-{name}")
    assert line["lora"] == (None if name == "tiny" else name)
    assert line["model"] == "tiny"
    assert (line["prompt_tokens"], line["completion_tokens"]) == (11, 8)


def test_an_unknown_adapter_is_refused_and_counted(lora: Instrumented) -> None:
    """A name that no adapter has: 404, logged under the name that was asked for."""
    assert ask(lora.url, "/v1/completions", {"model": "nobody", **_BODY}, X_Request_Id="to-nobody").status == 404
    line = the_line(lora, "to-nobody")
    assert (line["event"], line["lora"], line["model"]) == ("request_rejected", None, "nobody")


def test_zz_metrics_count_all_of_them(lora: Instrumented, theirs: dict[str, tuple[int, str]]) -> None:
    """Three completed, one refused, their tokens, no hook in trouble; the adapters made a difference at all."""
    assert theirs["tiny"][1].replace("tiny", "") != theirs["pirate"][1].replace("pirate", "")
    assert wait_for(lambda: lora.stats()["engines"][0]["completed"] == len(_MODELS))
    document = lora.stats()
    engine = document["engines"][0]
    assert (engine["prompt_tokens"], engine["generation_tokens"]) == (33, 24)
    assert engine["failed"]["invalid"] == 1
    assert sum(document["hook_errors"].values()) == 0
