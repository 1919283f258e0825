"""JSON as it is written into log lines and `/stats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmobs.instrument import jsontext


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True, "größer"]}, '{"a":[1,2.5,null,true,"größer"]}'),
        ({"a": float("nan"), "b": [float("inf")]}, '{"a":null,"b":[null]}'),
        ({"a": 2**70, 7: "b"}, '{"a":1180591620717411303424,"7":"b"}'),
        ({"a": Path("/x")}, '{"a":"/x"}'),
    ],
)
def test_json_is_the_same_with_and_without_msgspec(
    value: Any, text: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What JSON has no word for is null or text in both."""
    if not fast:
        monkeypatch.setattr(jsontext, "_fast", None)
    assert json.loads(jsontext.encode(value)) == json.loads(text)


def test_json_of_half_a_character_is_still_json() -> None:
    """A model may emit half a surrogate pair, which UTF-8 cannot hold."""
    assert json.loads(jsontext.encode({"a": "x\ud800"})) == {"a": "x\ud800"}
