"""One request to a server, and everything that came back."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.instrument import client
from tests.instrument.conftest import Instrumented, wait_for

_SHORT_ID = re.compile(r"-[0-9a-f]{16}\b")


@dataclass(frozen=True)
class Reply:
    """`body` has ids and times replaced, so that two servers can be compared; `headers` by lower-case name."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def same(self) -> tuple[int, str]:
        """What must not differ from plain vLLM."""
        return self.status, self.body


def ask(url: str, path: str, body: Any = None, **headers: str) -> Reply:
    """Send `body` as JSON with POST, or GET without one; header names have underscores for hyphens."""
    head = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, found, data = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        status, found, data = error.code, error.headers, error.read()
    return Reply(status, {k.lower(): v for k, v in found.items()}, _SHORT_ID.sub("-ID", client.normal(data.decode())))


def the_line(server: Instrumented, request_id: str) -> dict[str, Any]:
    """Return the one log line of a request."""
    found = wait_for(lambda: [x for x in server.requests() if x["request_id"] == request_id])
    assert len(found) == 1, (request_id, found)
    line: dict[str, Any] = found[0]
    return line
