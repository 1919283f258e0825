"""Scenario files: what is accepted, and what the message says when one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmobs.errors import ConfigError
from llmobs.simulate import load, names
from llmobs.simulate.files import parse


@pytest.mark.parametrize("name", names())
def test_packaged_scenarios(name: str) -> None:
    """Every packaged scenario loads and says in a sentence what it is."""
    scenario = load(name)
    assert scenario.name == name
    assert scenario.description.endswith(".")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """A path is taken as a file; its name becomes the scenario's."""
    file = tmp_path / "mine.yaml"
    file.write_text("description: Mine.\nmodels:\n  - traffic: {rate: 7}\n")
    scenario = load(str(file))
    assert scenario.name == "mine"
    assert scenario.models[0].traffic.rate == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modles: []", "unknown key 'modles'; did you mean 'models'?"),
        ("models:\n  - traffic: {raet: 1}", "models[0]: traffic: unknown key 'raet'; did you mean 'rate'?"),
        ("models:\n  - traffic: {rate: fast}", "models[0]: traffic: rate: expected a number, not 'fast'"),
        ("models:\n  - traffic: {rate: -1}", "rate: -1 is below 0"),
        ("models:\n  - traffic: {abort_ratio: 1.5}", "abort_ratio: a ratio is at most 1"),
        ("models:\n  - engine: {kv_blocks: 0}", "kv_blocks: 0 must be above 0"),
        ("models:\n  - engine: {kv_blocks: 1.5}", "expected a whole number"),
        ("models:\n  - traffic: {prompt: {spread: 1}}", "missing 1 required keyword-only argument: 'mean'"),
        ("models: []", "at least one model"),
        ("models: [{name: a}, {name: a}]", "two have the same name"),
        ("models: 3", "models: expected a list, not 3"),
        ("events: [{kind: hangs, at: 1}]", "'hangs' is not one of"),
        ("events: [{kind: hang, model: demo/chat}]", "no model is called 'demo/chat'; did you mean 'demo/chat-8b'?"),
        ("events: [{kind: hang, every: 0}]", "every: must be above 0"),
        ("version: 3", "version: expected text, not 3"),
        ("load_at_start: maybe", "expected true or false"),
        ("a: [", "not valid YAML"),
        ("- 1", "expected keys"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    """A wrong key or value is one sentence that says where it is and, where possible, what was meant."""
    with pytest.raises(ConfigError) as error:
        parse(text, "mine.yaml")
    assert message in str(error.value)
    assert "mine.yaml" in str(error.value)


def test_unknown_scenario() -> None:
    """A name that does not exist gets the nearest one and the list."""
    with pytest.raises(ConfigError, match=r"'steady-chats' does not exist; did you mean 'steady-chat'\?.*burst"):
        load("steady-chats")


def test_missing_file() -> None:
    """A file that is not there is a ConfigError, not a traceback."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load("./nowhere.yaml")
