"""Grafana dashboards over the contract: `llmobs generate dashboards`.

Boards are data (`boards/`), queries can only be made from the contract (`promql`), grafanalib encodes them (`render`,
`assemble`), `modern` repairs what it writes, and `export` gives the three file forms.
"""

from __future__ import annotations

from collections.abc import Callable

from llmobs.alerts.settings import load as alert_settings
from llmobs.dashboards.assemble import assemble
from llmobs.dashboards.boards import cache, canary, fleet, gpu, health, latency, own, scheduling, slo, spec, tokens
from llmobs.dashboards.boards.context import Context
from llmobs.dashboards.export import as_files
from llmobs.dashboards.fields import Json
from llmobs.dashboards.limits import Limits
from llmobs.dashboards.panels import Board
from llmobs.dashboards.promql import Queries
from llmobs.dashboards.settings import load
from llmobs.generate import Files, Options

__all__ = ["BOARDS", "boards", "files"]

#: Every board, in the order of the set.
BOARDS: tuple[Callable[[Context], Board], ...] = (
    health.board, latency.board, cache.board, scheduling.board, gpu.board, spec.board, tokens.board, canary.board,
    slo.board, fleet.board, own.board,
)  # fmt: skip


def boards(options: Options) -> dict[str, Json]:
    """Return the Classic JSON of every board by its uid. Raises ConfigError for settings that cannot be used."""
    settings = load(options)
    context = Context(q=Queries(settings.variables), limits=Limits(alert_settings(options.config)), settings=settings)
    made = [make(context) for make in BOARDS]
    return {settings.uid_prefix + b.uid: assemble(b, settings) for b in made if not b.needs & settings.without}


def files(options: Options) -> Files:
    """Return the dashboards' files in the chosen format: `json` (default), `configmap`, or `grafana-com`."""
    return as_files(boards(options), load(options), options.format)
