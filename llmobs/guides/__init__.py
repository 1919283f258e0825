"""Pages of `docs/` that are made from data, so that they stay right: every setting, and vLLM's names beside ours."""

from __future__ import annotations

from llmobs.generate import Files, Options
from llmobs.guides import configuration, migration


def files(options: Options) -> Files:
    """Return `docs/configuration.md` and `docs/guides/migrate-dashboards.md`."""
    del options
    return {
        "docs/configuration.md": configuration.text(),
        "docs/guides/migrate-dashboards.md": migration.text(),
    }
