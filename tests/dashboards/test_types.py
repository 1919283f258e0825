"""The boards against Grafana's own types and TraceQL's own grammar, with the tools of `node/`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.dashboards.boards import Json, all_boards, tempo_targets

NODE = Path(__file__).resolve().parent / "node"


@pytest.fixture(scope="module")
def node() -> Path:
    """The folder with the packages installed as the lockfile says."""
    stamp = NODE / "node_modules" / ".package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < (NODE / "package-lock.json").stat().st_mtime:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=NODE, check=True, timeout=240, capture_output=True)
    return NODE


def type_errors(node: Path, folder: Path, boards: dict[str, Json]) -> str:
    """Check boards with the TypeScript compiler; return what it says."""
    for file in ("grafana.ts", "tsconfig.json"):
        shutil.copy(node / file, folder)
    (folder / "node_modules").symlink_to(node / "node_modules")
    (folder / "generated").mkdir()
    for uid, board in boards.items():
        text = f'import type {{ Board }} from "../grafana";\n\nexport const board: Board = {json.dumps(board)};\n'
        (folder / "generated" / f"{uid}.ts").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["node_modules/.bin/tsc", "-p", "."], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1, 2), done.stderr
    return done.stdout


@pytest.mark.needs("node", "npm")
def test_every_board_has_grafanas_types(node: Path, tmp_path: Path) -> None:
    """`tsc --strict` accepts every board, every panel's options and field configuration, every override."""
    assert type_errors(node, tmp_path, all_boards()) == ""


@pytest.mark.needs("node", "npm")
def test_the_type_check_finds_faults(node: Path, tmp_path: Path) -> None:
    """An unknown option, a misspelt field and a wrong value are each found: the check above can fail."""
    faults = {
        "option": ('"showLegend": true', '"showLegent": true'),
        "field": ('"fillOpacity"', '"fillOpactiy"'),
        "value": ('"graphMode": "none"', '"graphMode": "spark"'),
        "override": ('"custom.width"', '"custom.widht"'),
        "variable": ('"includeAll": true', '"includeAll": "yes"'),
        "annotation": ('"iconColor"', '"iconColour"'),
    }
    text = json.dumps(all_boards()["llmobs-health"])
    broken = {}
    for name, (right, wrong) in faults.items():
        assert right in text, name
        broken[name] = json.loads(text.replace(right, wrong))
    found = type_errors(node, tmp_path, broken)
    for name in faults:
        assert f"generated/{name}.ts" in found, name


@pytest.mark.needs("node", "npm")
def test_every_traceql_query_parses_and_names_documented_attributes(node: Path) -> None:
    """TraceQL's grammar accepts every Tempo query, and its span attributes are those that llmobs writes."""
    queries = [t.target["query"] for t in tempo_targets()]
    assert len(queries) >= 10
    done = subprocess.run(
        ["node", "traceql.mjs"],
        cwd=node,
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for query, found in zip(queries, json.loads(done.stdout), strict=True):
        assert found["error"] is None, query


@pytest.mark.needs("node", "npm")
def test_the_traceql_check_finds_faults(node: Path) -> None:
    """A query that is not TraceQL is found."""
    done = subprocess.run(
        ["node", "traceql.mjs"],
        cwd=node,
        input='["{ name = }"]',
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)[0]["error"] is not None


def test_the_lockfile_names_no_registry() -> None:
    """Packages are pinned by version and checksum; where they come from is the machine's business."""
    lock = (NODE / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock
    assert lock.count('"integrity"') >= 4
