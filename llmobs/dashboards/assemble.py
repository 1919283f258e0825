"""A board as data → the dashboard's JSON: variables, annotations, links, rows and panels in their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grafanalib import core

from llmobs.dashboards.fields import Json
from llmobs.dashboards.modern import modernise, variable
from llmobs.dashboards.panels import Board, Choice, Lookup, Panel, Section
from llmobs.dashboards.promql import Queries
from llmobs.dashboards.render import PROMETHEUS, any_tempo, grafana_panel, layout
from llmobs.dashboards.settings import Settings

_EVERY_TIME = 2  # refresh: on time range change
_ALPHABETICAL, _NUMERICAL = 1, 3


def assemble(board: Board, settings: Settings) -> Json:
    """Return the Classic JSON of a board without the parts that the settings leave out."""
    board = prune(board, settings)
    panels: list[core.Panel] = []
    top = 0
    for section in board.sections:
        row = core.RowPanel(
            title=section.title, collapsed=section.collapsed, gridPos=core.GridPos(h=1, w=24, x=0, y=top)
        )
        placed, below = layout(list(section.panels), top + 1)
        inside = [grafana_panel(panel, x, y) for panel, x, y in placed]
        if section.collapsed:
            row.panels = inside
            panels.append(row)
            top += 1
        else:
            panels += [row, *inside]
            top = below
    return modernise(
        core.Dashboard(
            title=settings.title_prefix + board.title,
            uid=settings.uid_prefix + board.uid,
            description=board.question,
            tags=list(settings.tags),
            editable=False,
            graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
            refresh=settings.refresh,
            timezone="browser",
            time=core.Time(board.time_from, "now"),
            panels=panels,
            templating=core.Templating(list=list(_variables(board, settings))),
            annotations=core.Annotations(list=list(_annotations(settings)) if board.annotations else []),
            links=[
                core.DashboardLink(
                    asDropdown=True, icon="external link", includeVars=True, keepTime=True, tags=[settings.link_tag],
                    targetBlank=False, title="vLLM dashboards", tooltip="", type="dashboards",
                )
            ],
        )
    )  # fmt: skip


def prune(board: Board, settings: Settings) -> Board:
    """Return the board without panels that need a part left out, and without sections that are then empty."""
    sections = []
    for section in board.sections:
        panels = tuple(p for p in section.panels if not p.needs & settings.without)
        if panels:
            sections.append(replace(section, panels=panels))
    return replace(board, sections=tuple(sections))


def panels_of(sections: tuple[Section, ...]) -> Iterator[Panel]:
    """Every panel, in order."""
    for section in sections:
        yield from section.panels


def _variables(board: Board, settings: Settings) -> Iterator[core.Template]:
    yield _datasource("datasource", "Data source", "prometheus", settings.datasource)
    if any_tempo(list(panels_of(board.sections))):
        yield _datasource("tempo_datasource", "Tempo data source", "tempo", settings.tempo_datasource)
    q = Queries(settings.variables)
    earlier: list[str] = []
    for label in settings.variables:
        # `.*` also matches series without the label: a Prometheus of one cluster has none.
        seen = f"{{{', '.join(earlier)}}}" if earlier else ""
        yield _lookup(
            Lookup(
                name=label, label=label.replace("_", " ").capitalize(), multi=True, all_value=".*",
                query=f"label_values(llmobs_build_info{seen}, {label})",
            )
        )  # fmt: skip
        earlier.append(f'{label}=~"${label}"')
    outside = f"{{{', '.join(earlier)}}}" if earlier else ""
    with_job = f"{{{', '.join([*earlier, 'job=~' + chr(34) + '$job' + chr(34)])}}}"
    common = [
        Lookup(name="job", label="Job", query=f"label_values(llmobs_build_info{outside}, job)"),
        Lookup(name="instance", label="Instance", query=f"label_values(llmobs_build_info{with_job}, instance)"),
    ]
    running = f"vllm_num_running_requests{{{q.matchers(None)}"
    filters = {
        "model": Lookup(name="model", label="Model", query=f"label_values({running}}}, model_name)"),
        "target": Lookup(name="target", label="Target", query=f"label_values(vllm_up{{{q.matchers(None)}}}, target)"),
        "engine": Lookup(
            name="engine", label="Engine", query=f'label_values({running}, model_name=~"$model"}}, engine)'
        ),
    }
    for lookup in (*common, *(filters[name] for name in board.filters)):
        yield _lookup(replace(lookup, multi=True, all_value=".+"))
    for more in board.variables:
        yield _choice(more) if isinstance(more, Choice) else _lookup(more)


def _datasource(name: str, label: str, kind: str, chosen: str) -> core.Template:
    return variable(name=name, label=label, type="datasource", query=kind, default=chosen or None, refresh=1)


def _lookup(lookup: Lookup) -> core.Template:
    return variable(
        name=lookup.name,
        label=lookup.label,
        description=lookup.description,
        type="query",
        query=lookup.query,
        dataSource=PROMETHEUS,
        default=lookup.default or None,
        multi=lookup.multi,
        includeAll=lookup.multi,
        allValue=lookup.all_value or None,
        regex=lookup.regex,
        refresh=_EVERY_TIME,
        sort=_NUMERICAL if lookup.numeric else _ALPHABETICAL,
    )


def _choice(choice: Choice) -> core.Template:
    return variable(
        name=choice.name,
        label=choice.label,
        description=choice.description,
        type="custom",
        query="",
        choices=choice.choices,
        options=[{"selected": True}],
    )


def _annotations(settings: Settings) -> Iterator[Json]:
    """Moments that explain a change of any curve."""
    q = Queries(settings.variables)
    restarts = f"increase({q.select('vllm_engine_restarts_total')}[$__rate_interval]) > 0"
    ooms = f"increase({q.select('vllm_oom_total')}[$__rate_interval]) > 0"
    alerts = f'ALERTS{{{_outside(settings)}alertstate="firing", severity=~"critical|warning"}}'
    yield _annotation("Engine restarts", restarts, "blue", "Restart", "{{target}} on {{instance}}", "target,instance")
    yield _annotation("Out of memory", ooms, "dark-red", "Out of memory", "{{kind}}: {{target}}", "target,kind")
    for name, metric, labels, color in (
        ("Version changes", "vllm_info", ("instance", "target", "version"), "purple"),
        (
            "Configuration changes", "vllm_config_info",
            ("instance", "target", "engine", "block_size", "cache_dtype", "gpu_memory_utilization", "prefix_caching"),
            "orange",
        ),
    ):  # fmt: skip
        text = ", ".join(f"{label} {{{{{label}}}}}" for label in labels[2:])
        yield _annotation(name, _changed(q, metric, labels), color, name, f"{{{{target}}}}: {text}", "target")
    yield _annotation(
        "Alerts firing", alerts, "red", "{{alertname}}", "{{severity}} {{model_name}} {{target}}", "alertname"
    )


def _outside(settings: Settings) -> str:
    return "".join(f'{label}=~"${label}", ' for label in settings.variables)


def _changed(q: Queries, info: str, labels: tuple[str, ...]) -> str:
    """Label sets that are there now and were not two minutes ago, of targets that were."""
    names, same = ", ".join(labels), ", ".join(labels[:2])
    before = f"last_over_time({q.select(info)}[1h] offset 2m)"
    new = f"max by ({names}) ({q.select(info)}) unless max by ({names}) ({before})"
    return f"({new}) and on ({same}) {before}"


def _annotation(name: str, expr: str, color: str, title: str, text: str, tags: str) -> Json:
    return {
        "datasource": PROMETHEUS, "enable": True, "hide": False, "iconColor": color, "name": name, "tagKeys": tags,
        "target": {"datasource": PROMETHEUS, "editorMode": "code", "expr": expr, "refId": "Anno"},
        "textFormat": text, "titleFormat": title, "useValueForTime": False,
    }  # fmt: skip
