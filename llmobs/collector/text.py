"""YAML for people: the same text every time, with comments that say why a setting is as it is.

PyYAML writes the scalars; this module adds what it cannot do: comments above a key or an item, lists of short scalars
on one line, and an empty line between the top-level blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

import yaml

Value: TypeAlias = Union[bool, int, float, str, "Noted", Sequence["Value"], Mapping[str, "Value"], None]

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a comment that is written above its key (or list item)."""

    note: str
    value: Value


def render(document: Mapping[str, Value], header: str) -> str:
    """Return `document` as YAML below `header`, whose lines become comments."""
    lines = [f"# {line}".rstrip() for line in header.strip().splitlines()]
    for key, value in document.items():
        lines.append("")
        lines.extend(_mapping({key: value}, ""))
    return "\n".join(lines) + "\n"


def render_all(documents: Sequence[Mapping[str, Value]], header: str) -> str:
    """Return several documents in one file, separated by ``---``."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in header.strip().splitlines())
    return head + "".join("---\n" + "\n".join(_mapping(document, "")) + "\n" for document in documents)


def plain(value: Value) -> Value:
    """Return `value` without its notes, as a YAML parser would read it back."""
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def _mapping(mapping: Mapping[str, Value], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        yield from _note(value, indent)
        yield from _entry(f"{indent}{_scalar(key)}:", _unnoted(value), indent)


def _items(items: Sequence[Value], indent: str) -> Iterator[str]:
    for item in items:
        yield from _note(item, indent)
        value = _unnoted(item)
        if isinstance(value, Mapping) and value:
            # The first key stands on the line of the dash; the others line up below it.
            inner = list(_mapping(value, indent + "  "))
            first = next(i for i, line in enumerate(inner) if not line.lstrip().startswith("#"))
            yield from inner[:first]
            yield f"{indent}- {inner[first].lstrip()}"
            yield from inner[first + 1 :]
        else:
            yield from _entry(f"{indent}-", value, indent)


def _unnoted(value: Value) -> Value:
    """Return the value inside a note; what is inside that value keeps its own notes."""
    return _unnoted(value.value) if isinstance(value, Noted) else value


def _entry(head: str, value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        if not value:
            yield f"{head} {{}}"
            return
        yield head
        yield from _mapping(value, indent + "  ")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if not any(isinstance(item, (Mapping, Noted, list, tuple)) or set(str(item)) & set(" \n") for item in value):
            line = f"{head} [{', '.join(_scalar(item, flow=True) for item in value)}]"
            if len(line) <= _WIDTH:
                yield line
                return
        yield head
        yield from _items(value, indent + "  ")
    elif isinstance(value, str) and "\n" in value:
        yield f"{head} |" + ("" if value.endswith("\n") else "-")
        for line in value.rstrip("\n").split("\n"):
            yield f"{indent}  {line}".rstrip()
    else:
        yield f"{head} {_scalar(value)}"


def _note(value: Value, indent: str) -> Iterator[str]:
    while isinstance(value, Noted):
        for line in value.note.strip().splitlines():
            yield f"{indent}# {line}".rstrip()
        value = value.value


def _scalar(value: Value, *, flow: bool = False) -> str:
    text: str = yaml.safe_dump([value] if flow else value, width=1e9, allow_unicode=True, default_flow_style=flow)
    text = text.removesuffix("...\n").strip()
    return text[1:-1] if flow else text


def lines_of(value: Value, indent: str) -> list[str]:
    """Return `value` (a mapping or a list) as YAML lines that stand at `indent`."""
    if isinstance(value, Mapping):
        return list(_mapping(value, indent))
    assert isinstance(value, Sequence)
    assert not isinstance(value, str)
    return list(_items(value, indent))
