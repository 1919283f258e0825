"""Every board is imported into a real Grafana: the one at GRAFANA_URL, or one started here from PATH.

GRAFANA_TOKEN is sent as a bearer token; without it, admin:admin is tried. A board that was there before is put back.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import wait_for
from tests.dashboards.boards import all_boards, panels
from tests.real.server import free_port


class Grafana:
    """The HTTP interface of a Grafana."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return (status, JSON answer)."""
        token = os.environ.get("GRAFANA_TOKEN")
        basic = base64.b64encode(b"admin:admin").decode()
        headers = {
            "Authorization": f"Bearer {token}" if token else f"Basic {basic}",
            "Content-Type": "application/json",
        }
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grafana]:
    """The Grafana of the environment, or one of our own that is gone afterwards."""
    if url := os.environ.get("GRAFANA_URL"):
        yield Grafana(url)
        return
    program = shutil.which("grafana")
    assert program is not None
    places = [Path("/usr/share/grafana"), *Path(program).resolve().parents]
    home = next(p for p in places if (p / "public").is_dir())
    folder, port = tmp_path_factory.mktemp("grafana"), free_port()
    env = {**os.environ, "GF_SERVER_HTTP_ADDR": "127.0.0.1", "GF_SERVER_HTTP_PORT": str(port)}
    env |= {"GF_PATHS_DATA": str(folder), "GF_PATHS_LOGS": str(folder), "GF_ANALYTICS_REPORTING_ENABLED": "false"}
    process = subprocess.Popen([program, "server", "--homepath", str(home)], env=env, stdout=subprocess.DEVNULL)
    try:
        found = Grafana(f"http://127.0.0.1:{port}")

        def ready() -> bool:
            with contextlib.suppress(OSError):
                return found.call("GET", "/api/health")[0] == 200
            return False

        wait_for("answer from Grafana", ready, 120)
        yield found
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("uid", list(all_boards()))
def test_a_board_is_imported_without_an_error(grafana: Grafana, uid: str) -> None:
    """Grafana accepts the file as it is, keeps every panel and variable, and gives it back."""
    board = all_boards()[uid]
    status, before = grafana.call("GET", f"/api/dashboards/uid/{uid}")
    try:
        code, answer = grafana.call("POST", "/api/dashboards/db", {"dashboard": board, "overwrite": True})
        assert code == 200, answer
        assert answer["status"] == "success"
        code, found = grafana.call("GET", f"/api/dashboards/uid/{uid}")
        assert code == 200
        kept = found["dashboard"]
        assert [p["title"] for p in panels(kept)] == [p["title"] for p in panels(board)]
        names = [v["name"] for v in board["templating"]["list"]]
        assert [v["name"] for v in kept["templating"]["list"]] == names
        assert kept["schemaVersion"] >= board["schemaVersion"]
    finally:
        if status == 200:
            grafana.call("POST", "/api/dashboards/db", {"dashboard": before["dashboard"], "overwrite": True})
        else:
            grafana.call("DELETE", f"/api/dashboards/uid/{uid}")
