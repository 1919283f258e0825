"""The guides say what is so: metrics exist, commands parse, links and paths lead somewhere, settings are complete."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmobs.catalog import METRICS, series_names
from llmobs.cli import parser
from llmobs.config import DnsSettings, Settings, TargetSettings, leaves
from llmobs.engine.dialect import FAMILIES, UNUSED
from llmobs.generate import Options, check
from llmobs.guides import files
from llmobs.instrument.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
_PAGES = sorted(
    p
    for name in (
        "five-minutes", "quickstart-kubernetes", "quickstart-compose", "quickstart-host", "container", "collector",
        "names", "security", "troubleshooting", "scale", "migrate-dashboards",
    )
    for p in [ROOT / f"docs/guides/{name}.md"]
)  # fmt: skip
_CONFIGURATION = (ROOT / "docs/configuration.md").read_text()


def _names(text: str) -> set[str]:
    """Return the metric names that stand in code spans, without a wildcard's dots."""
    spans = re.findall(r"`([^`\n]+)`", text)
    found = {n for span in spans for n in re.findall(r"\b(?:vllm|llmobs|nvidia_gpu)_[a-z0-9_]+\b(?!…|\.|:)", span)}
    return {name for name in found if not name.endswith("_")}


def test_the_generated_pages_are_current() -> None:
    """Settings and names are what the code says."""
    check(files(Options()), ROOT)


@pytest.mark.parametrize("page", _PAGES, ids=lambda p: p.name)
def test_every_metric_in_a_guide_is_in_the_contract(page: Path) -> None:
    """A metric that a guide names exists."""
    known = {name for metric in METRICS.values() for name in (metric.name, *series_names(metric))}
    families = {f"{prefix}{family.name}" for family in FAMILIES for prefix in ("vllm_", "vllm:")}
    # Names of other things: the scalers' metric, and vLLM's own in the migration page.
    others = {"llmobs_requests_waiting"} | families | {f"{name}_total" for name in families}
    text = page.read_text().replace("llmobs_requests_waiting_…", "")
    assert _names(text) - others <= known


def _commands() -> Iterator[tuple[str, str]]:
    for page in _PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\|\|", line):
                    part = part.partition("  #")[0].partition(" > ")[0].strip().removeprefix("sudo ")
                    part = re.sub(r"^(\w+=\S+ )+", "", part)
                    if part.startswith("llmobs "):
                        yield page.name, part


@pytest.mark.parametrize(("page", "command"), list(_commands()))
def test_every_command_in_a_guide_is_understood(page: str, command: str) -> None:
    """A reader who copies a command gets no usage error."""
    del page
    words = shlex.split(command.replace("…", ""))[1:]
    assert parser().parse_args(words)


@pytest.mark.parametrize("page", _PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links point at files of the project, and their anchors at headings."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            text = target.read_text()
            headings = {_slug(h) for h in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
            assert anchor in headings or f'id="{anchor}"' in text, link


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", _PAGES, ids=lambda p: p.name)
def test_every_path_in_a_guide_exists(page: Path) -> None:
    """Files and folders of the project that a guide names are there."""
    spans = re.findall(r"`((?:deploy|collector|alerts|dashboards|docs)/[\w./-]*)`", page.read_text())
    for path in spans:
        assert (ROOT / path).exists(), path


def test_the_settings_reference_is_complete() -> None:
    """Every setting of the daemon, of a target and of a DNS name, and every variable inside vLLM, has its row."""
    keys = [key for cls in (Settings, TargetSettings, DnsSettings) for key, _, _ in leaves(cls)]
    missing = [key for key in keys if f"`{key}`" not in _CONFIGURATION]
    assert missing == []
    assert [name for name in VARIABLES if f"`{name}`" not in _CONFIGURATION] == []


def test_every_setting_says_what_it_is() -> None:
    """No row of the reference ends in an empty cell."""
    rows = [line for line in _CONFIGURATION.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.rstrip("| ").endswith("|") or "|  |" in row] == []


def test_every_name_of_vllm_is_in_the_migration_page() -> None:
    """Each family that the reader knows is in the table or among the unused."""
    text = (ROOT / "docs/guides/migrate-dashboards.md").read_text()
    missing = [f for f in (*(family.name for family in FAMILIES), *UNUSED) if f"`{f}`" not in text]
    assert missing == []


def test_the_seven_names_of_published_guides_are_there() -> None:
    """The names that the guides use verbatim are in the contract."""
    for name in (
        "vllm_request_waiting_queue_length", "vllm_kv_cache_usage_ratio", "vllm_decode_tokens_per_second_total",
        "vllm_request_failed_total", "vllm_gpu_cache_hit_rate", "vllm_num_running_requests",
    ):  # fmt: skip
        assert name in METRICS
        assert f"`{name}" in (ROOT / "docs/guides/names.md").read_text()
