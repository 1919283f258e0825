"""The live page: its files, ready to be served.

`files()` gives every file by its path relative to the daemon's root ("" is the page itself). The page uses relative
addresses only, so that it also works below a prefix of a reverse proxy, and loads nothing from anywhere else; it needs
no inline script or style, so that `CONTENT_SECURITY_POLICY` can forbid them.

The page asks ``api/v1/state`` every two seconds. With more than twelve targets it adds ``?history=NAME`` for each open
target (an empty value when none is open): histories of other targets are then not drawn and need not be sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

__all__ = ["CONTENT_SECURITY_POLICY", "File", "files"]

#: What the page needs, and nothing more; send it with every file of `files()`.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page: its bytes, its media type with charset, and its entity tag (quoted, strong)."""

    body: bytes
    content_type: str
    etag: str


@lru_cache(maxsize=1)
def files() -> Mapping[str, File]:
    """Return the page's files by path: "" for the page, else "page/NAME". Read once and kept.

    Serve them with ``Cache-Control: no-cache``, so that a browser asks again after an upgrade and mostly gets a 304.
    """
    found = {}
    for entry in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            body = entry.read_bytes()
            path = "" if entry.name == "index.html" else f"page/{entry.name}"
            found[path] = File(body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:24]}"')
    return MappingProxyType(found)
