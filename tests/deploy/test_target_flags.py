"""What the sidecar's flags say about its targets."""

from __future__ import annotations

import pytest

from llmobs.cli import parser
from llmobs.cli.settings import load_settings
from llmobs.config import Settings
from llmobs.errors import ConfigError


def _settings(*arguments: str) -> Settings:
    return load_settings(parser().parse_args(["run", *arguments]))


def test_labels_state_directory_and_key_hold_for_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each target given as a flag gets the labels, the state directory and the name of the key's variable."""
    monkeypatch.delenv("LLMOBS_CONFIG", raising=False)
    settings = _settings(
        "--target=http://a:1", "--target=http://b:2", "--label=model_id=chat", "--state-dir=/s", "--api-key-env=KEY"
    )
    assert [(t.labels, t.state_dir, t.api_key_env) for t in settings.targets] == [
        ({"model_id": "chat"}, "/s", "KEY")
    ] * 2


def test_an_empty_label_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without the label gives the downward API an empty value; the series then has no such label."""
    monkeypatch.delenv("LLMOBS_CONFIG", raising=False)
    (target,) = _settings("--target=http://a:1", "--label=version=", "--label=canary=true").targets
    assert target.labels == {"canary": "true"}


def test_a_label_may_hold_an_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first equals sign separates name and value."""
    monkeypatch.delenv("LLMOBS_CONFIG", raising=False)
    (target,) = _settings("--target=http://a:1", "--label=build=a=b").targets
    assert target.labels == {"build": "a=b"}


def test_a_label_without_value_is_refused() -> None:
    """A label that is no pair is one message with an example."""
    with pytest.raises(ConfigError, match="model_id=chat-8b"):
        _settings("--target=http://a:1", "--label=oops")
