"""TraceQL in boards, alerts and the Collector names only spans and attributes that llmobs sends (docs/traces.md)."""

from __future__ import annotations

import re

import pytest

from llmobs.generate import Options, generate
from llmobs.instrument.traces.names import ATTRIBUTES, SPANS

_SPANS = {name.replace("{i}", "0") for name in SPANS}


def _texts(kind: str) -> str:
    # Boards are JSON: their quotes are escaped.
    return "\n".join(generate(kind, Options()).values()).replace('\\"', '"').replace("\\\\", "\\")


@pytest.mark.parametrize("kind", ["dashboards", "alerts"])
def test_attributes_are_sent(kind: str) -> None:
    """Every ``span.…`` in a query is an attribute of the list."""
    named = set(re.findall(r"\bspan\.((?:llmobs|gen_ai|error|http|token)[\w.]*)", _texts(kind)))
    assert named
    assert named <= set(ATTRIBUTES)


@pytest.mark.parametrize("kind", ["dashboards", "alerts", "collector"])
def test_spans_are_sent(kind: str) -> None:
    """Every span that is asked for by name is one of the list."""
    named = set(re.findall(r'\bname ==? "((?:llm|http)\.[\w.]+)"', _texts(kind)))
    assert named
    assert named <= _SPANS


def test_sampling_reads_attributes_that_are_sent() -> None:
    """What the Collector's tail sampling decides by exists on the spans."""
    named = set(re.findall(r'attributes\["([\w.]+)"\]', _texts("collector")))
    named = {name for name in named if name.startswith(("llmobs.", "gen_ai.latency", "gen_ai.usage", "error."))}
    assert named
    assert named <= set(ATTRIBUTES)
