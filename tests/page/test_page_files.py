"""The files of the live page, without a browser."""

from __future__ import annotations

import re

import pytest

from llmobs.exporter.page import CONTENT_SECURITY_POLICY, files


def test_every_file_the_page_refers_to_is_served() -> None:
    """Each address in the page and each import in a script is a file of the package."""
    page = files()[""].body.decode()
    wanted = set(re.findall(r'(?:href|src)="(page/[^"]+)"', page))
    for path, file in files().items():
        if path.endswith(".js"):
            wanted |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', file.body.decode())}
    assert wanted == set(files()) - {""}


def test_each_file_has_its_type_and_a_tag_of_its_own() -> None:
    """Types name their charset, and tags differ as the bytes do."""
    kinds = {path: file.content_type for path, file in files().items()}
    assert kinds[""] == "text/html; charset=utf-8"
    assert kinds["page/style.css"] == "text/css; charset=utf-8"
    assert kinds["page/page.js"] == "text/javascript; charset=utf-8"
    tags = {file.etag for file in files().values()}
    assert len(tags) == len(files())
    assert all(re.fullmatch(r'"[0-9a-f]{24}"', tag) for tag in tags)


@pytest.mark.parametrize("path", sorted(files()))
def test_nothing_points_outside(path: str) -> None:
    """No file holds an absolute address; only the name of the SVG vocabulary looks like one."""
    text = files()[path].body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert not re.search(r'(?:href|src)="/', text)


@pytest.mark.parametrize("path", [path for path in sorted(files()) if path.endswith(".js")])
def test_no_script_ever_parses_html(path: str) -> None:
    """Text of the server can't become markup, because nothing here turns text into markup or code."""
    script = files()[path].body.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function", script
    )


def test_the_page_has_nothing_inline() -> None:
    """No inline script, style or handler, so the policy can forbid them."""
    page = files()[""].body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    assert "unsafe" not in CONTENT_SECURITY_POLICY
