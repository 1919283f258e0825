"""The same state of an engine, as each version of vLLM would show it, gives the same facts.

The pages come from the simulator's renderer, whose table of versions was written apart from the dialects that read
them; `families.txt` is what vLLM's source can show.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import pytest

from llmobs.derive.publish import samples
from llmobs.derive.target import Limits, advance, begin
from llmobs.engine import dialect as dialects
from llmobs.engine.page import PageReader
from llmobs.simulate import SimulatedVllm, facts, load, render
from llmobs.simulate.dialects import dialect
from llmobs.snapshot import FACTS, EngineSnapshot, Evidence, Histogram, Reading
from tests.engine.conftest import PAGES, one, read

VERSIONS = (
    "0.5.0", "0.5.5", "0.6.6", "0.7.3-v0", "0.7.3-v1", "0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.16.0",
    "0.20.0", "0.24.0", "0.32.0", "0.33.0", "0.32.0-ray", "0.10.2-ray", "0.32.0-multiprocess", "0.9.2-multiprocess",
)  # fmt: skip

#: Facts that vLLM's pages have had from 0.5 on, whatever they were called.
ALWAYS = (
    "running", "waiting", "kv_cache_usage", "prompt_tokens", "generation_tokens", "finished", "time_to_first_token",
    "inter_token_latency", "prompt_length", "generation_length",
)  # fmt: skip


@functools.cache
def server() -> SimulatedVllm:
    """A server under load, in the middle of its work."""
    made = SimulatedVllm(load("kv-exhaustion"), wall=lambda at: 1.7e9 + at)
    made.advance(90.0)
    return made


def page(name: str) -> tuple[EngineSnapshot, str]:
    """Return what is true, and the page that a version shows of it."""
    truth = facts.snapshot(server(), taken_at=1.0)
    return truth, render.page(server(), truth, dialect(name))


def rebinned(value: Any, like: Any) -> Any:
    """Return what two histograms have in common: count, sum, and the counts of shared bounds."""
    if not isinstance(value, Histogram):
        return value
    shared = set(value.bounds) & set(like.bounds)
    return value.count, pytest.approx(value.sum), {b: c for b, c in zip(value.bounds, value.counts) if b in shared}


@pytest.mark.parametrize("name", VERSIONS)
def test_every_dialect_gives_the_same_facts(name: str) -> None:
    """A fact that a version shows has the true value; there is no fact that it makes up."""
    truth, text = page(name)
    version = dialect(name).text
    snapshot = PageReader().read(text, taken_at=1.0, wall_time=2.0, version=version)
    (engine,), (true,) = snapshot.engines, truth.engines
    assert (engine.model_name, engine.engine) == (true.model_name, "0")
    seen = 0
    for fact in FACTS:
        value, expected = getattr(engine, fact), getattr(true, fact)
        if value is None or (not value and value != 0):
            continue
        if fact in ("swapped", "cpu_kv_cache_usage"):
            assert value == 0  # V0 only, and the simulator swaps nothing
            continue
        if fact == "prefix_hit_rate_lifetime":
            assert value == pytest.approx(true.prefix_hits / true.prefix_queries)  # type: ignore[operator]
            continue
        if fact in ("prefix_queries", "prefix_hits") and true.kv_cache_block_size:
            size = true.kv_cache_block_size if engine.prefix_cache_unit == "blocks" else 1
            # Old names count whole blocks.
            assert value * size == pytest.approx(expected, abs=true.kv_cache_block_size)
        elif isinstance(value, Histogram):
            assert rebinned(value, expected) == rebinned(expected, value), fact
        elif isinstance(value, dict):
            # Ray shows a counter once it has moved; vLLM does not know some of the keys that /stats has.
            assert value == pytest.approx({k: expected.get(k, 0) for k in value})
        else:
            assert value == pytest.approx(expected), fact
        seen += 1
    assert seen >= len(ALWAYS)
    for fact in ALWAYS:
        assert getattr(engine, fact) not in (None, {}), f"{fact} is missing"


@pytest.mark.parametrize("name", VERSIONS)
def test_no_series_of_vllm_is_unmapped(name: str) -> None:
    """Every family of every version is either read or known not to be needed."""
    _, text = page(name)
    assert PageReader().read(text, taken_at=1.0, wall_time=2.0, version=None).unmapped_series == 0


@pytest.mark.parametrize(
    ("fact", "first"),
    [
        ("preemptions", "0.5.0"), ("queue_time", "0.6.6"), ("step_tokens", "0.6.6"), ("prefix_hits", "0.7.3-v1"),
        ("sleep_state", "0.11.2"), ("external_queries", "0.11.2"), ("prompt_tokens_by_source", "0.16.0"),
        ("waiting_by_reason", "0.20.0"), ("cached_tokens_by_tier", "0.32.0"), ("preemptions_per_request", "0.32.0"),
    ],
)  # fmt: skip
def test_a_fact_is_absent_in_the_versions_before_it(fact: str, first: str) -> None:
    """What a version does not show is absent, not 0; from the first version on it is there."""
    plain = [v for v in VERSIONS if "ray" not in v and "multiprocess" not in v]
    for name in plain:
        engine = one(page(name)[1], version=dialect(name).text)
        there = getattr(engine, fact) not in (None, {})
        if fact == "preemptions" and name == "0.7.3-v1":
            assert not there  # V1 counts them from 0.8.0
        elif fact == "prefix_hits" and name in ("0.7.3-v0",):
            assert not there
        else:
            assert there == (plain.index(name) >= plain.index(first)), name


def test_blocks_of_0_8_are_the_tokens_of_later_versions() -> None:
    """0.8.5 counts the prefix cache in blocks, 0.9.2 shows two names, 0.12 one: the contract's tokens are the same."""
    old, both, new = (one(page(v)[1], version=v) for v in ("0.8.5", "0.9.2", "0.12.0"))
    assert (both.prefix_queries, both.prefix_hits) == (new.prefix_queries, new.prefix_hits)
    assert old.prefix_cache_unit == new.prefix_cache_unit == "tokens"
    assert old.prefix_queries == pytest.approx(new.prefix_queries, abs=16)
    assert old.prefix_hits == pytest.approx(new.prefix_hits, abs=16)


@pytest.mark.parametrize("change", [":→_", "no _total"])
def test_spelling_makes_no_difference(change: str) -> None:
    """Names with `_` for `:`, as collectors rewrite them, or without `_total` give the same facts."""
    text = page("0.32.0")[1]
    changed = text.replace("vllm:", "vllm_") if change == ":→_" else re.sub(r"(vllm:\w+)_total\{", r"\1{", text)
    assert changed != text
    if change == "no _total":
        changed = changed.replace("vllm:iteration_tokens{", "vllm:iteration_tokens_total{")
    assert read(changed, version="0.32.0").engines == read(text, version="0.32.0").engines


def test_words_for_the_dialects() -> None:
    """A person is told which generation and spelling was read."""
    words = {name: read(page(name)[1]).dialect for name in ("0.6.6", "0.32.0", "0.32.0-ray", "0.9.2-multiprocess")}
    assert words == {
        "0.6.6": "vllm-v0",
        "0.32.0": "vllm-v1",
        "0.32.0-ray": "vllm-v1-ray",
        "0.9.2-multiprocess": "vllm-v1-multiprocess",
    }
    assert read(page("0.32.0")[1].replace("vllm:", "vllm_")).dialect == "vllm-v1-underscore"


def test_the_contract_is_the_same_whatever_version_speaks() -> None:
    """Published names and label names of a new version include those of every older one, V0's own aside."""
    published = {name: _published(name) for name in VERSIONS if "ray" not in name and "multiprocess" not in name}
    newest = published["0.33.0"]
    v0_only = {"vllm_num_swapped_requests", "vllm_cpu_kv_cache_usage_ratio"}
    for name, found in published.items():
        assert found - newest <= v0_only, name


def _published(name: str) -> set[str]:
    snapshot = read(page(name)[1], version=dialect(name).text)
    state = begin(0.0)
    for at in (1.0, 2.0):
        now = dataclasses.replace(snapshot, taken_at=at)
        state = advance(state, Reading(taken_at=at, wall_time=at, snapshot=now, health=200), Evidence(), Limits())
    return {s.metric for s in samples(state, "t", Limits())[0]}


def test_data_parallel_ranks_have_their_own_series() -> None:
    """Each rank of a data-parallel server is an engine with its own figures."""
    made = SimulatedVllm(load("data-parallel-imbalance"), wall=lambda at: 1.7e9 + at)
    made.advance(60.0)
    truth = facts.snapshot(made, taken_at=1.0)
    found = read(render.page(made, truth, dialect("0.32.0")), version="0.32.0")
    assert len(truth.engines) > 1
    assert [(e.engine, e.running, e.generation_tokens) for e in found.engines if e.engine] == [
        (e.engine, e.running, e.generation_tokens) for e in truth.engines
    ]


def _families() -> list[tuple[str, str]]:
    return [(n, k) for n, k in (line.split() for line in (PAGES / "families.txt").read_text().splitlines())]


@pytest.mark.parametrize(("family", "kind"), _families())
def test_every_family_of_every_version_is_mapped_or_known(family: str, kind: str) -> None:
    """No family that vLLM's source can show counts as unmapped, with `:`, with `_`, or behind Ray."""
    bare = family.removeprefix("vllm:")
    labels = 'model_name="m",engine="0",' + "".join(f'{f.label}="x",' for f in dialects.FAMILIES if f.label)
    if kind == "histogram":
        names = [f'{bare}_bucket{{{labels}le="+Inf"}}', f"{bare}_sum{{{labels}}}", f"{bare}_count{{{labels}}}"]
    elif kind == "info":
        names = [f"{bare}_info{{{labels}}}"]
    else:
        names = [f"{bare}{{{labels}}}", *([f"{bare}_created{{{labels}}}"] if kind == "counter" else [])]
    for prefix in ("vllm:", "vllm_", "ray_vllm_"):
        page = "".join(f"{prefix}{name} 1\n" for name in [*names, f"num_requests_running{{{labels}}}"])
        assert read(page).unmapped_series == 0
