"""The Prometheus and OpenMetrics text formats, line by line.

Only what reading needs: a sample line becomes (name and labels as written, value). The part before the value is the
same text on every page of one server, so that it can serve as a key and be taken apart once; see `llmobs.engine.page`.
"""

from __future__ import annotations

import re

# name{labels} value [timestamp] [# {exemplar}]; label values may hold any escaped character, also braces and spaces.
_SAMPLE = re.compile(
    r'(?P<series>[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)'
    r"[ \t]+(?P<value>[^ \t#]+)"
    r"(?:[ \t]+[-+0-9.eE]+)?"
    r"[ \t]*(?:#.*)?"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


def sample(line: str) -> tuple[str, float] | None:
    """Return (series as written, value) of one sample line, or None when it is not one.

    Timestamps and exemplars are skipped. NaN and ±Inf are returned as such.
    """
    match = _SAMPLE.fullmatch(line.strip())
    if match is None:
        return None
    try:
        # float() also takes "1_0", which no exposition format allows.
        value = float(match["value"]) if "_" not in match["value"] else None
    except ValueError:
        return None
    return None if value is None else (match["series"], value)


def series(text: str) -> tuple[str, dict[str, str]] | None:
    """Take a series as written apart into its name and labels, escapes undone; None when it is malformed."""
    name, brace, rest = text.partition("{")
    if not brace:
        return name, {}
    labels: dict[str, str] = {}
    at, end = 0, len(rest) - 1
    while at < end:
        match = _LABEL.match(rest, at, end)
        if match is None:
            return None
        value = match[2]
        labels[match[1]] = _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[0]), value) if "\\" in value else value
        at = match.end()
    return name, labels
