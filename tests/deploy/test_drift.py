"""Generated files cannot drift: whatever line is deleted, the check notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmobs import collector, deploy, guides
from llmobs.errors import GenerateError
from llmobs.generate import Options, check

_FILES = {**collector.files(Options()), **deploy.files(Options()), **guides.files(Options())}


@pytest.mark.parametrize("name", sorted(_FILES))
def test_deleting_any_one_line_is_noticed(name: str, tmp_path: Path) -> None:
    """For every line of every generated file: without it, the check fails and names the file."""
    lines = _FILES[name].splitlines(keepends=True)
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    for number in range(len(lines)):
        path.write_text("".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(GenerateError, match="out of date"):
            check({name: _FILES[name]}, tmp_path)
    path.write_text("".join(lines))
    check({name: _FILES[name]}, tmp_path)


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    """A generated file that is not there fails the check."""
    with pytest.raises(GenerateError, match="is missing"):
        check(_FILES, tmp_path)
