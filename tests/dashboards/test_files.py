"""The files: deterministic, current, small enough, in three forms, and shaped by the user's knobs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from llmobs.dashboards import files
from llmobs.dashboards.settings import Settings
from llmobs.errors import ConfigError
from llmobs.generate import Options, check
from tests.conftest import ROOT
from tests.dashboards.boards import all_boards, panels

UIDS = [
    "llmobs-health", "llmobs-latency", "llmobs-cache", "llmobs-scheduling", "llmobs-gpu", "llmobs-spec",
    "llmobs-tokens", "llmobs-canary", "llmobs-slo", "llmobs-fleet", "llmobs-self",
]  # fmt: skip


def config(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "llmobs.yaml"
    path.write_text(text, encoding="utf-8")
    return Options(config=path)


def test_the_set_is_complete() -> None:
    """Eleven boards, each with its fixed uid, in the order of the set."""
    assert list(all_boards()) == UIDS


def test_committed_files_are_what_is_generated() -> None:
    """The files in `dashboards/` are current."""
    check(files(Options()), ROOT)


def test_the_same_boards_are_always_the_same_text() -> None:
    """Two runs give the same bytes, with sorted keys."""
    first, second = files(Options()), files(Options())
    assert first == second
    text = first["dashboards/llmobs-health.json"]
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_files_are_small_enough() -> None:
    """Each JSON stays below 700 kB and each ConfigMap below 1 MiB."""
    for text in files(Options()).values():
        assert len(text.encode()) < 700_000
    for text in files(Options(format="configmap")).values():
        assert len(text.encode()) < 2**20


def test_a_configmap_is_valid_and_holds_the_same_board() -> None:
    """Kubernetes accepts the ConfigMap, Grafana's sidecar finds it by its label, and its board is the plain one."""
    for name, text in files(Options(format="configmap")).items():
        found = yaml.safe_load(text)
        kubernetes_validate.validate(found, "1.29", strict=True)
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"]["grafana_folder"] == "vLLM"
        uid = Path(name).stem
        assert json.loads(found["data"][f"{uid}.json"]) == all_boards()[uid]


def test_the_shared_form_asks_for_its_data_sources() -> None:
    """The grafana.com form has `__inputs` for each data source and `__requires`; the plain one has neither."""
    for name, text in files(Options(format="grafana-com")).items():
        board = json.loads(text)
        inputs = {i["name"] for i in board["__inputs"]}
        assert "DS_PROMETHEUS" in inputs
        for variable in board["templating"]["list"]:
            if variable["type"] == "datasource":
                assert variable["current"]["value"].strip("${}") in inputs, name
        kinds = {r["id"] for r in board["__requires"] if r["type"] == "panel"}
        assert kinds == {p["type"] for p in panels(board)}
        assert board["__elements"] == {}
    assert all("__inputs" not in board for board in all_boards().values())


def test_an_unknown_format_is_an_error() -> None:
    """A format that does not exist is one line that names those that do."""
    with pytest.raises(ConfigError, match="configmap"):
        files(Options(format="configmaps"))


@pytest.mark.parametrize(
    ("part", "gone", "word"),
    [("gpu", "llmobs-gpu", "nvidia_gpu_"), ("spec", "llmobs-spec", "spec_decode"), ("tempo", None, "tempo")],
)
def test_a_part_can_be_left_out(part: str, gone: str | None, word: str) -> None:
    """`--without` removes the part's board, its panels on other boards, its variables, and every query of it."""
    boards = all_boards((part,))
    assert (gone in boards) is False
    assert len(boards) == len(UIDS) - (gone is not None)
    for board in boards.values():
        targets = [t for p in panels(board) for t in p["targets"]]
        names = [v["name"] for v in board["templating"]["list"]]
        assert word not in json.dumps([targets, names]), board["uid"]
        assert all(row["panels"] for row in board["panels"] if row["type"] == "row" and row["collapsed"])


def test_an_unknown_part_is_an_error() -> None:
    """A part that does not exist names the nearest."""
    with pytest.raises(ConfigError, match="did you mean 'tempo'"):
        files(Options(without=("temp",)))


def test_names_folder_tags_and_variables_are_knobs(tmp_path: Path) -> None:
    """Prefixes, folder, tags, data source names, version labels and extra variables come from the YAML."""
    options = config(
        tmp_path,
        """
        dashboards:
          title_prefix: "Prod · "
          uid_prefix: prod-
          folder: LLM
          tags: [mine]
          datasource: Mimir
          tempo_datasource: Traces
          variables: [region, namespace]
          version_labels: [release]
          refresh: 1m
        """,
    )
    text = files(options)
    board = json.loads(text["dashboards/prod-llmobs-canary.json"])
    assert board["title"] == "Prod · vLLM Canary"
    assert board["links"][0]["tags"] == ["mine"]
    assert board["refresh"] == "1m"
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == "Mimir"
    assert variables["region"]["allValue"] == ".*"
    assert variables["split"]["current"]["value"] == "release"
    assert all('region=~"$region", namespace=~"$namespace"' in t["expr"] for p in panels(board) for t in p["targets"])
    tokens = json.loads(text["dashboards/prod-llmobs-tokens.json"])
    assert {v["name"]: v for v in tokens["templating"]["list"]}["tempo_datasource"]["current"]["value"] == "Traces"
    links = json.loads(text["dashboards/prod-llmobs-health.json"])
    assert '"/d/prod-llmobs-latency?' in json.dumps(links)
    again = files(Options(config=options.config, format="configmap"))
    assert yaml.safe_load(again["dashboards/configmaps/prod-llmobs-canary.yaml"])["metadata"]["annotations"] == {
        "grafana_folder": "LLM"
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dashboards: {titel_prefix: x}", "did you mean 'title_prefix'"),
        ("dashboards: {tags: mine}", "must be a list of words"),
        ("dashboards: {tags: []}", "at least one"),
        ("dashboards: {folder: 7}", "must be a text"),
        ("dashboards: [1]", "must be a mapping"),
        ("dashboards: {", "cannot be read"),
    ],
)
def test_a_wrong_knob_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    """A wrong setting names the file, the setting, and what would be right."""
    with pytest.raises(ConfigError, match=message):
        files(config(tmp_path, text))


def test_one_threshold_of_one_model_is_a_line_on_its_panels(tmp_path: Path) -> None:
    """Five lines of YAML move the alert's threshold of one model, and draw it beside the general one."""
    options = config(
        tmp_path,
        "alerts:\n  rules:\n    VllmTTFTP95High:\n      models:\n        llama-70b: {threshold: 1.5}\n",
    )
    board = json.loads(files(options)["dashboards/llmobs-health.json"])
    panel = next(p for p in panels(board) if p["title"] == "TTFT p95, now and then")
    limits = [t["expr"] for t in panel["targets"] if t["legendFormat"] == "limit of {{model_name}}"]
    assert len(limits) == 1
    assert 'model_name="llama-70b"' in limits[0]
    assert limits[0].endswith("+ 1.5")
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] == 2.5


def test_a_general_threshold_moves_the_line(tmp_path: Path) -> None:
    """The line on a panel is the alert's threshold; an alert that is off draws none."""
    moved = config(tmp_path, "alerts: {rules: {VllmQueueLong: {threshold: 77}}}")
    text = files(moved)["dashboards/llmobs-scheduling.json"]
    assert '"value": 77' in text
    off = config(tmp_path, "alerts: {rules: {VllmQueueLong: {threshold: 77, enabled: false}}}")
    assert '"value": 77' not in files(off)["dashboards/llmobs-scheduling.json"]


def test_every_knob_and_board_is_documented() -> None:
    """`docs/dashboards.md` names every setting and every board."""
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Settings):
        assert f"`{field.name}`" in page or f"--{field.name}" in page, field.name
    for board in all_boards().values():
        assert f"| {board['title']} |" in page, board["title"]


def test_the_guide_names_boards_and_panels_that_exist() -> None:
    """Each step of the load-test guide names a panel of the board it names; each board has its picture."""
    page = (ROOT / "docs" / "guides" / "explain-a-load-test.md").read_text(encoding="utf-8")
    titles = {b["title"].removeprefix("vLLM "): {p["title"] for p in panels(b)} for b in all_boards().values()}
    steps = 0
    for line in page.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) > 6 and cells[1].isdigit():
            steps += 1
            named = [t for t in titles[cells[2]] if cells[3].startswith(t.split(":")[0])]
            assert named, cells[2:4]
    assert steps >= 25
    for uid in all_boards():
        picture = ROOT / "docs" / "pictures" / "dashboards" / f"{uid.removeprefix('llmobs-')}.png"
        assert picture.stat().st_size < 300_000
        assert f"pictures/dashboards/{picture.name}" in page
