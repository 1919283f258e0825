"""What grafanalib writes is made fit for today's Grafana: every panel and every field is walked."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from grafanalib import core

from llmobs.dashboards.modern import DASHBOARD_KEYS, PANEL_KEYS, ROW_KEYS, TARGET_KEYS, VARIABLE_KEYS, modernise
from tests.dashboards.boards import Json, all_boards, every_panel, panels

BOARDS = pytest.mark.parametrize("board", all_boards().values(), ids=list(all_boards()))

#: Keys of the Angular era and other leftovers that grafanalib writes.
LEGACY = {
    "__inputs", "cacheTimeout", "cards", "columns", "dataFormat", "displayMode ", "editable ", "error", "fieldOptions",
    "fontSize", "gnetId", "heatmap ", "height", "hideControls", "hideTimeOverride", "highlightCards", "intervalFactor",
    "line", "maxDataPoints", "metric", "minSpan", "op", "repeat", "rows", "sharedCrosshair", "span", "step", "style",
    "tagsQuery", "target ", "useTags", "xAxis", "yaxis", "auto", "auto_min", "auto_count", "timeShift",
}  # fmt: skip


def walk(value: Any, path: str = "") -> Any:
    """Every mapping below a value with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, f"{path}[{index}]")


@BOARDS
def test_the_dashboard_is_classic_json_of_a_schema_that_files_can_have(board: Json) -> None:
    """Schema 39 to 42, no id, a fixed uid, a refresh, a shared crosshair, a stated time zone, nothing else."""
    assert set(board) <= set(DASHBOARD_KEYS)
    assert 39 <= board["schemaVersion"] <= 42
    assert board["id"] is None
    assert re.fullmatch(r"llmobs-[a-z]+", board["uid"])
    assert (board["graphTooltip"], board["timezone"], board["refresh"]) == (1, "browser", "30s")
    assert board["time"] == {"from": "now-7d" if board["uid"] == "llmobs-slo" else "now-1h", "to": "now"}
    assert board["description"].endswith("?")


@BOARDS
def test_no_key_of_the_angular_era_is_left(board: Json) -> None:
    """Nothing that grafanalib writes for old Grafana versions survives, at any depth."""
    for path, mapping in walk(board):
        assert not set(mapping) & LEGACY, (path, set(mapping) & LEGACY)


@BOARDS
def test_only_known_keys_and_no_nulls(board: Json) -> None:
    """Panels, rows, targets and variables hold known keys; null is only the id of the board and a first threshold."""
    for panel in board["panels"]:
        assert set(panel) <= set(ROW_KEYS if panel["type"] == "row" else PANEL_KEYS), panel["title"]
    for panel in panels(board):
        for target in panel["targets"]:
            assert set(target) <= set(TARGET_KEYS), panel["title"]
    for variable in board["templating"]["list"]:
        assert set(variable) <= set(VARIABLE_KEYS), variable["name"]
    for path, mapping in walk(board):
        nulls = {key for key, value in mapping.items() if value is None}
        allowed = {"id"} if not path else {"value"} if "steps" in path else set()
        assert nulls <= allowed, (path, nulls)


@BOARDS
def test_panels_have_ids_and_do_not_overlap(board: Json) -> None:
    """Ids are unique; rectangles lie within 24 columns and apart from one another; rows lie above their panels."""
    found = [*board["panels"], *(p for row in board["panels"] for p in row.get("panels", []))]
    assert len({p["id"] for p in found}) == len(found)
    for visible in (board["panels"], *(row["panels"] for row in board["panels"] if row.get("panels"))):
        for panel in visible:
            grid = panel["gridPos"]
            assert grid["x"] >= 0, panel["title"]
            assert grid["x"] + grid["w"] <= 24, panel["title"]
        for one, other in itertools.combinations(visible, 2):
            a, b = one["gridPos"], other["gridPos"]
            apart = (
                a["x"] + a["w"] <= b["x"]
                or b["x"] + b["w"] <= a["x"]
                or a["y"] + a["h"] <= b["y"]
                or b["y"] + b["h"] <= a["y"]
            )
            assert apart, (one["title"], other["title"])


@BOARDS
def test_titles_are_unique(board: Json) -> None:
    """Two panels of a board never share a title."""
    titles = [p["title"] for p in panels(board)]
    assert len(set(titles)) == len(titles)


def test_targets_have_reference_ids_and_objects_as_data_sources() -> None:
    """A, B, … unique per panel; the data source is an object with a variable as its uid."""
    for board, panel in every_panel():
        refs = [t["refId"] for t in panel["targets"]]
        assert refs == [chr(ord("A") + i) for i in range(len(refs))], (board["uid"], panel["title"])
        for target in panel["targets"]:
            assert target["datasource"]["uid"].startswith("${"), panel["title"]


def test_thresholds_start_at_a_real_null_and_rise() -> None:
    """The base of every threshold is null, not text, and the steps rise; no panel is red at 80 by default."""
    for board, panel in every_panel():
        for path, mapping in walk(panel):
            if "steps" not in mapping or not isinstance(mapping["steps"], list):
                continue
            values = [s["value"] for s in mapping["steps"]]
            assert values[0] is None, (board["uid"], panel["title"], path)
            assert values[1:] == sorted(values[1:]), (panel["title"], values)
            assert 80 not in values, panel["title"]


def test_time_series_options_are_where_grafana_looks() -> None:
    """`spanNulls`, stacking and the thresholds' style belong below `fieldConfig.defaults.custom`; gaps stay gaps."""
    for _, panel in every_panel():
        if panel["type"] == "timeseries":
            custom = panel["fieldConfig"]["defaults"]["custom"]
            assert custom["spanNulls"] is False
            assert custom["stacking"]["mode"] in ("none", "normal")
            assert (custom["thresholdsStyle"]["mode"] == "dashed") == (
                len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1
            ), panel["title"]
            assert "spanNulls" not in panel["options"]


def test_stats_show_the_last_value() -> None:
    """A stat shows what is now, not the mean of the range."""
    for _, panel in every_panel():
        if panel["type"] in ("stat", "bargauge"):
            assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"], panel["title"]


def test_descriptions_say_what_which_metric_and_what_to_do() -> None:
    """Every description has the three parts, and names each metric that the queries read."""
    from llmobs.dashboards.promql import metrics_in

    for board, panel in every_panel():
        text = panel["description"]
        assert "Reads: " in text or "ALERTS" in str(panel["targets"]), (board["uid"], panel["title"])
        assert "\n\nWhat to do: " in text, panel["title"]
        for target in panel["targets"]:
            for name in metrics_in(target.get("expr", "")):
                assert f"`{name}`" in text, (panel["title"], name)


def test_queue_and_prefill_quantiles_say_where_they_are_interpolated() -> None:
    """Below the first bucket of vLLM's own page a quantile is interpolation, and the panels say so."""
    for board, panel in every_panel():
        for target in panel["targets"]:
            expr = target.get("expr", "")
            if "histogram_quantile" in expr and re.search(r"request_(queue|prefill)_time", expr):
                assert "below 0.3 s is interpolated" in panel["description"], (board["uid"], panel["title"])


def test_latency_panels_ask_for_exemplars() -> None:
    """Heatmaps and percentiles of latencies show the traces behind the observations."""
    for board, panel in every_panel():
        asked = " ".join(t.get("expr", "") for t in panel["targets"])
        latency = re.search(
            r"(time_to_first_token|inter_token|e2e_request|_time|step)_?(latency)?_seconds_bucket", asked
        )
        if (
            board["uid"] == "llmobs-latency"
            and latency
            and panel["type"] in ("heatmap", "timeseries")
            and "le=" not in asked
        ):
            assert any(t["exemplar"] for t in panel["targets"]), panel["title"]


def test_optional_features_are_in_collapsed_rows() -> None:
    """Nobody looks at an empty wall: KV transfer, LoRA, model cost, MIG and layers are folded away."""
    folded = " ".join(
        r["title"] for b in all_boards().values() for r in b["panels"] if r["type"] == "row" and r["collapsed"]
    )
    for word in ("KV transfer", "LoRA", "mfu", "MIG", "Layers", "block"):
        assert word in folded


def test_links_keep_time_and_variables() -> None:
    """The list of boards and every link from a panel carry the time range and the variables."""
    for board in all_boards().values():
        (link,) = board["links"]
        assert (link["keepTime"], link["includeVars"], link["tags"]) == (True, True, ["llmobs"])
        for panel in panels(board):
            for found in [*panel.get("links", []), *panel["fieldConfig"]["defaults"].get("links", [])]:
                assert "${__url_time_range}&${__all_variables}" in found["url"], panel["title"]
                assert found["url"].split("?")[0].removeprefix("/d/") in all_boards(), found["url"]


def test_annotations_mark_what_explains_a_curve() -> None:
    """Restarts, out of memory, changes of version or configuration, and firing alerts are marked on serving boards."""
    for uid, board in all_boards().items():
        names = [a["name"] for a in board["annotations"]["list"]]
        wanted = ["Engine restarts", "Out of memory", "Version changes", "Configuration changes", "Alerts firing"]
        assert names == ([] if uid == "llmobs-self" else wanted)


def test_modernise_repairs_what_grafanalib_writes() -> None:
    """A plain grafanalib dashboard has schema 12, empty reference ids and Angular keys; afterwards it has not."""
    plain = core.Dashboard(
        title="x",
        uid="x",
        panels=[
            core.TimeSeries(
                title="t", dataSource="d", targets=[core.Target(expr="up")], gridPos=core.GridPos(1, 1, 0, 0)
            )
        ],
    )
    before = plain.to_json_data()
    assert before["schemaVersion"] == 12
    after = modernise(plain)
    (panel,) = after["panels"]
    assert after["schemaVersion"] == 39
    assert panel["id"] == 1
    assert panel["targets"][0]["refId"] == "A"
    assert "maxDataPoints" not in panel
    assert "rows" not in after
