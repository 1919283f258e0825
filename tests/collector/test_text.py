"""YAML with comments, as people read it."""

from __future__ import annotations

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmobs.collector.text import Noted, plain, render, render_all

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(alphabet="ab1 :#-?[]{},&*!|>%@`'\"\\/.~=é–", max_size=12),
    st.sampled_from(
        ["yes", "1.0", "null", "a: b", "# x", "[::]:4317", "", " padded ", "one\ntwo\n", "one\ntwo", "'", '"']
    ),
)
_KEYS = st.text(alphabet="abcdefghij_.-/", min_size=1, max_size=12)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_KEYS, inner, max_size=4),
        inner.map(lambda value: Noted("why\nin two lines", value)),
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_what_is_written_reads_back_as_it_was(document: dict) -> None:
    """Whatever the values, a YAML parser reads back exactly what was meant, without the notes."""
    assert (yaml.safe_load(render(document, "header")) or {}) == plain(document)


def test_a_note_stands_above_its_key() -> None:
    """A note is a comment directly above the key it explains, at the same indentation."""
    text = render({"a": {"b": Noted("because", 1)}}, "head")
    assert text == "# head\n\na:\n  # because\n  b: 1\n"


def test_several_documents_are_separated() -> None:
    """A file of several documents reads back as that many."""
    text = render_all([{"a": 1}, {"b": [1, 2]}], "head")
    assert list(yaml.safe_load_all(text)) == [{"a": 1}, {"b": [1, 2]}]
