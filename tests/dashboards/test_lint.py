"""The 17 rules of Grafana's dashboard linter, on every board; exclusions are those of the generated `.lint` file."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from tests.dashboards.boards import (
    Json,
    all_boards,
    every_panel,
    fill,
    panels,
    parse,
    prometheus_targets,
    selectors,
)

# Panel types that the PromQL rule of the linter looks at.
_PROMQL_TYPES = ("singlestat", "gauge", "table", "stat", "state-timeline", "timeseries")

#: The ids of Grafana's unit list that a vLLM board may use.
UNITS = {
    "none", "short", "percent", "percentunit", "s", "ms", "bytes", "Bps", "reqps", "ops", "cps", "watt", "joule",
    "celsius", "hertz", "rotrpm", "currencyUSD", "dtdurations", "bool_yes_no",
}  # fmt: skip

#: A count over the life of the device is read as it stands.
_LEVELS = {"nvidia_gpu_ecc_errors_lifetime_total"}

_EXCLUSIONS: Json = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "dashboards" / ".lint").read_text(encoding="utf-8")
)["exclusions"]


def excluded(rule: str, board: Json, panel: str | None = None) -> bool:
    """Whether the generated .lint file leaves this board or panel out of a rule."""
    return any(
        e["dashboard"] == board["title"] and e.get("panel") in (None, panel)
        for e in _EXCLUSIONS.get(rule, {}).get("entries", [])
    )


def variables(board: Json, kind: str) -> list[Json]:
    return [v for v in board["templating"]["list"] if v["type"] == kind]


BOARDS = pytest.mark.parametrize("board", all_boards().values(), ids=list(all_boards()))


def test_every_exclusion_has_a_reason_and_is_needed() -> None:
    """A listed exclusion says why, names a board that exists, and would be a finding without it."""
    titles = {b["title"] for b in all_boards().values()}
    for rule, body in _EXCLUSIONS.items():
        for entry in body["entries"]:
            assert len(entry["reason"]) > 20, (rule, entry)
            assert entry["dashboard"] in titles, (rule, entry)
    for entry in _EXCLUSIONS["template-datasource-rule"]["entries"]:
        board = next(b for b in all_boards().values() if b["title"] == entry["dashboard"])
        assert len(variables(board, "datasource")) > 1


@BOARDS
def test_template_datasource_rule(board: Json) -> None:
    """There is a data source variable, named `datasource` where it is the only one, and labelled to match."""
    found = variables(board, "datasource")
    assert found
    if excluded("template-datasource-rule", board):
        assert {(v["name"], v["query"]) for v in found} == {("datasource", "prometheus"), ("tempo_datasource", "tempo")}
        return
    assert [(v["name"], v["label"], v["query"]) for v in found] == [("datasource", "Data source", "prometheus")]


@BOARDS
@pytest.mark.parametrize(("name", "label"), [("job", "Job"), ("instance", "Instance")])
def test_template_job_and_instance_rules(board: Json, name: str, label: str) -> None:
    """`job` and `instance` are multi-value query variables whose All is `.+`."""
    found = next(v for v in board["templating"]["list"] if v["name"] == name)
    assert found["type"] == "query"
    assert found["datasource"]["uid"] == "${datasource}"
    assert (found["label"], found["multi"], found["includeAll"], found["allValue"]) == (label, True, True, ".+")


@BOARDS
def test_template_label_promql_and_reload_rules(board: Json) -> None:
    """Every query variable is a `label_values` of a selector that parses, and is asked again with the time range."""
    for variable in variables(board, "query"):
        match = re.fullmatch(r"label_values\((.+), ([\w$]+)\)", variable["query"])
        assert match, variable["query"]
        parse(match[1])
        assert variable["refresh"] == 2, variable["name"]


@BOARDS
def test_panel_datasource_rule(board: Json) -> None:
    """Panels ask the data source that the variable chooses."""
    for panel in panels(board):
        assert panel["datasource"]["uid"] in ("${datasource}", "${tempo_datasource}"), panel["title"]
        assert all(t["datasource"] == panel["datasource"] for t in panel["targets"]), panel["title"]


@BOARDS
def test_panel_title_description_rule(board: Json) -> None:
    """Every panel, whatever its type, has a title and a description."""
    for panel in panels(board):
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]


@BOARDS
def test_panel_units_rule(board: Json) -> None:
    """Every unit is an id of Grafana's list, in defaults and overrides; only words in the place of values need none."""
    for panel in panels(board):
        units = [panel["fieldConfig"]["defaults"].get("unit")]
        if panel["type"] == "heatmap":
            units = [panel["options"]["yAxis"]["unit"], panel["options"]["cellValues"]["unit"]]
        units += [p["value"] for o in panel["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "unit"]
        assert set(units) <= UNITS, (panel["title"], units)


@BOARDS
def test_panel_no_targets_rule(board: Json) -> None:
    """Every panel asks something."""
    for panel in panels(board):
        assert panel["targets"], panel["title"]


def test_target_promql_rule() -> None:
    """Every expression parses, in panels of all types."""
    for target in prometheus_targets():
        parse(target.target["expr"])


def test_target_rate_interval_rule() -> None:
    """The range of every `rate` and `irate` is `$__rate_interval`."""
    for target in prometheus_targets():
        for call in re.findall(r"\bi?rate\([^\[]*\[([^\]]+)\]", target.target["expr"]):
            assert call == "$__rate_interval", target.where


def test_target_job_and_instance_rules() -> None:
    """Every selector filters by `job` and `instance`, except those listed with a reason."""
    for target in prometheus_targets():
        for selector in re.findall(r"\{([^}]*)\}", target.target["expr"]):
            for name in ("job", "instance"):
                if not excluded(f"target-{name}-rule", target.board, target.panel["title"]):
                    assert f'{name}=~"${name}"' in selector, target.where


def test_target_counter_agg_rule() -> None:
    """A selector whose name ends in `_total` sits in `rate`, `irate` or `increase`: matchers do not hide it here."""
    for target in prometheus_targets():
        for selector, above in selectors(target.target["expr"]):
            if selector.name and selector.name.endswith("_total"):
                calls = [n.func.name for n in above if isinstance(n, promql_parser.Call)]
                assert selector.name in _LEVELS or calls[-1:] in (["rate"], ["increase"]), target.where


@BOARDS
def test_target_logql_rules(board: Json) -> None:
    """No board asks Loki, so that the two rules for LogQL have nothing to find."""
    for panel in panels(board):
        assert panel["datasource"]["type"] in ("prometheus", "tempo"), panel["title"]


@BOARDS
def test_uneditable_dashboard(board: Json) -> None:
    """A generated board cannot be changed by hand."""
    assert board["editable"] is False


def test_the_linter_sees_no_tempo_query_without_an_exclusion() -> None:
    """Panels that ask Tempo have no `expr`, which the linter's PromQL rule takes for an error: they are listed."""
    for board, panel in every_panel():
        if panel["datasource"]["type"] == "tempo" and panel["type"] in _PROMQL_TYPES:
            assert excluded("target-promql-rule", board, panel["title"]), panel["title"]


def test_fill_knows_every_variable() -> None:
    """A query with a variable that no board offers would draw nothing."""
    for board in all_boards().values():
        offered = {v["name"] for v in board["templating"]["list"]} | {"__rate_interval", "__range", "__interval"}
        for panel in panels(board):
            for target in panel["targets"]:
                used = set(re.findall(r"\$\{?(\w+)", target.get("expr", "")))
                assert used <= offered, (board["uid"], panel["title"], used - offered)
                fill(target.get("expr", ""))
