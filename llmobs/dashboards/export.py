"""One dashboard object → the file forms: plain JSON, a ConfigMap, the form that grafana.com shares."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping

import yaml

from llmobs import __version__
from llmobs.dashboards.fields import Json
from llmobs.dashboards.settings import Settings
from llmobs.errors import ConfigError, nearest

FORMATS = ("json", "configmap", "grafana-com")

_PLUGINS = {"prometheus": "Prometheus", "tempo": "Tempo"}
_PANELS = {
    "timeseries": "Time series", "stat": "Stat", "heatmap": "Heatmap", "bargauge": "Bar gauge", "table": "Table",
    "state-timeline": "State timeline", "text": "Text",
}  # fmt: skip
#: Oldest Grafana whose Classic JSON is schema 39.
_GRAFANA = "10.4.0"


def as_files(boards: Mapping[str, Json], settings: Settings, form: str | None) -> dict[str, str]:
    """Return the files of all boards in one format. Raises ConfigError for a format that does not exist."""
    form = form or "json"
    if form not in FORMATS:
        raise ConfigError(f"--format {form}: dashboards have no such format{nearest(form, FORMATS)}; use {FORMATS}")
    if form == "configmap":
        return {f"dashboards/configmaps/{uid}.yaml": configmap(uid, b, settings) for uid, b in boards.items()}
    if form == "grafana-com":
        return {f"dashboards/grafana-com/{uid}.json": text(shared(board)) for uid, board in boards.items()}
    found = {f"dashboards/{uid}.json": text(board) for uid, board in boards.items()}
    return {**found, "dashboards/.lint": lint(boards)}


def text(board: Json) -> str:
    """Return the JSON, keys sorted, so that the same board is always the same text."""
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def configmap(uid: str, board: Json, settings: Settings) -> str:
    """Return a ConfigMap that Grafana's dashboard sidecar picks up by its label."""
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{uid}-dashboard",
            "labels": {"app.kubernetes.io/name": "llmobs", "grafana_dashboard": "1"},
            "annotations": {"grafana_folder": settings.folder},
        },
        "data": {f"{uid}.json": text(board)},
    }
    made: str = yaml.safe_dump(document, sort_keys=True, allow_unicode=True, width=2**20)
    return made


def shared(board: Json) -> Json:
    """Return the board as grafana.com shares it: `__inputs` ask for the data sources at import."""
    made = copy.deepcopy(board)
    sources = [v for v in made["templating"]["list"] if v["type"] == "datasource"]
    for variable in sources:
        name = f"DS_{variable['query'].upper()}"
        variable["current"] = {"selected": True, "text": f"${{{name}}}", "value": f"${{{name}}}"}
    made["__inputs"] = [
        {
            "name": f"DS_{v['query'].upper()}", "label": _PLUGINS[v["query"]], "type": "datasource",
            "pluginId": v["query"], "pluginName": _PLUGINS[v["query"]], "description": "",
        }
        for v in sources
    ]  # fmt: skip
    kinds = sorted({p["type"] for row in made["panels"] for p in (row, *row.get("panels", []))} - {"row"})
    made["__requires"] = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _GRAFANA},
        *({"type": "datasource", "id": v["query"], "name": _PLUGINS[v["query"]], "version": "1.0.0"} for v in sources),
        *({"type": "panel", "id": kind, "name": _PANELS[kind], "version": ""} for kind in kinds),
    ]
    made["__elements"] = {}
    made["description"] = f"{made['description']} Made for the metrics of llmobs {__version__}."
    return made


_TWO_SOURCES = "The board asks Prometheus and Tempo; `datasource` keeps its name so that links between boards carry it."
_TEMPO_QUERY = "A TraceQL query has no PromQL expression."
_NO_TARGET = "Alerts and recorded series are about a model, not about one scrape: they have neither job nor instance."


def lint(boards: Mapping[str, Json]) -> str:
    """Return the exclusions for Grafana's dashboard linter, each with its reason."""
    found: dict[str, list[Json]] = {}
    for board in boards.values():
        title = board["title"]
        if sum(v["type"] == "datasource" for v in board["templating"]["list"]) > 1:
            found.setdefault("template-datasource-rule", []).append({"dashboard": title, "reason": _TWO_SOURCES})
        for panel in (p for row in board["panels"] for p in (row, *row.get("panels", []))):
            entry = {"dashboard": title, "panel": panel["title"]}
            for target in panel.get("targets", []):
                if "expr" not in target:
                    found.setdefault("target-promql-rule", []).append({**entry, "reason": _TEMPO_QUERY})
                elif 'job=~"$job"' not in target["expr"]:
                    for rule in ("target-job-rule", "target-instance-rule"):
                        found.setdefault(rule, []).append({**entry, "reason": _NO_TARGET})
    unique = {rule: {"entries": list({json.dumps(e): e for e in entries}.values())} for rule, entries in found.items()}
    made: str = yaml.safe_dump({"exclusions": unique}, sort_keys=True, allow_unicode=True, width=200)
    return made
