"""One page after another of one server → its facts, and only what the present page says."""

from __future__ import annotations

import math

import pytest

from llmobs.engine.page import MAX_LABEL
from llmobs.errors import TargetError
from tests.engine.conftest import captured, one, read

M = 'model_name="m",engine="0"'


def test_the_capture_with_a_small_load_gives_its_known_figures() -> None:
    """Four requests, all finished, 102 prompt tokens: the page of a real server says just that."""
    snapshot = read(captured("vllm-0.32-single-small-load"), version="0.32.0")
    (engine,) = snapshot.engines
    assert (engine.model_name, engine.engine, snapshot.dialect) == ("tiny", "0", "vllm-v1")
    assert engine.finished == {"stop": 0, "length": 4, "abort": 0, "error": 0, "repetition": 0}
    assert engine.prompt_tokens == engine.prefix_queries == 102
    assert (engine.running, engine.waiting, engine.kv_cache_usage) == (0, 0, 0)
    assert engine.time_to_first_token is not None
    assert engine.time_to_first_token.count == 4
    assert engine.kv_cache_block_size == 128
    assert engine.config["prefix_caching"] == "True"
    assert snapshot.http_responses == {"2xx": 4}
    assert snapshot.consistent
    assert snapshot.start_time is not None
    assert snapshot.unmapped_series == 0


def test_foreign_series_are_counted_as_unmapped() -> None:
    """The capture's two gauges of a test plugin are unmapped, and nothing else is."""
    assert read(captured("vllm-0.32-single")).unmapped_series == 2


def test_the_multiprocess_capture_is_not_taken_for_one_instant() -> None:
    """In multi-process mode counters are whole and gauges of different ages, so nothing may be subtracted."""
    snapshot = read(captured("vllm-0.32-multiprocess"))
    (engine,) = snapshot.engines
    assert engine.finished["length"] == 12
    assert engine.prompt_tokens == 36
    assert not snapshot.consistent
    assert snapshot.start_time is None


def test_gauges_of_several_processes_take_the_maximum_and_counters_add_up() -> None:
    """With `pid` labels each process repeats the scheduler's gauge, and holds its share of a counter."""
    engine = one(
        f'vllm:kv_cache_usage_perc{{{M},pid="1"}} 0.2\nvllm:kv_cache_usage_perc{{{M},pid="2"}} 0.5\n'
        f'vllm:prompt_tokens_total{{{M},pid="1"}} 10\nvllm:prompt_tokens_total{{{M},pid="2"}} 5\n'
    )
    assert engine.kv_cache_usage == 0.5
    assert engine.prompt_tokens == 15


def test_counters_are_found_without_total() -> None:
    """A page whose counters lack `_total` gives the same facts."""
    engine = one(f'vllm:prompt_tokens{{{M}}} 3\nvllm:request_success{{{M},finished_reason="stop"}} 2\n')
    assert engine.prompt_tokens == 3
    assert engine.finished == {"stop": 2}


def test_an_old_and_a_new_name_on_one_page_are_read_once() -> None:
    """The versions that show both names of a value do not count it twice, in whatever order they stand."""
    lines = [f"vllm:kv_cache_usage_perc{{{M}}} 0.25\n", f"vllm:gpu_cache_usage_perc{{{M}}} 0.75\n"]
    for page in ("".join(lines), "".join(reversed(lines))):
        assert one(page).kv_cache_usage == 0.25


def test_engines_and_models_are_kept_apart() -> None:
    """Two ranks of one model and one of another are three engines."""
    page = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="{model}"}} {n}\n'
        for n, (model, engine) in enumerate([("a", "0"), ("a", "1"), ("b", "0")])
    )
    assert [(e.model_name, e.engine, e.running) for e in read(page).engines] == [
        ("a", "0", 0),
        ("a", "1", 1),
        ("b", "0", 2),
    ]


def test_replicas_behind_ray_are_kept_apart() -> None:
    """Ray shows all replicas of a node on one page; ReplicaId tells them apart, and one alone is engine 0."""
    line = 'ray_vllm_num_requests_running{{engine="0",model_name="m",ReplicaId="{}"}} {}\n'
    assert one(line.format("x", 1)).engine == "0"
    both = read(line.format("x", 1) + line.format("y", 2))
    assert [(e.engine, e.running) for e in both.engines] == [("x/0", 1), ("y/0", 2)]
    assert both.dialect == "vllm-v1-ray"


def test_a_count_per_model_belongs_to_the_only_engine() -> None:
    """A family without the `engine` label is given to the model's engine, or kept apart when there are several."""
    rejected = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 4\n'
    running = 'vllm:num_requests_running{{engine="{}",model_name="m"}} 1\n'
    assert one(rejected + running.format(0)).admission_rejections == {"max_num_queued_reqs": 4}
    several = read(rejected + running.format(0) + running.format(1))
    assert [(e.engine, e.admission_rejections) for e in several.engines] == [
        ("", {"max_num_queued_reqs": 4}),
        ("0", {}),
        ("1", {}),
    ]


def test_a_series_that_vanishes_is_absent() -> None:
    """What the present page does not say is not filled in from the last one."""
    both = f"vllm:num_requests_running{{{M}}} 1\nvllm:num_requests_waiting{{{M}}} 2\n"
    engine = one(both, f"vllm:num_requests_running{{{M}}} 3\n")
    assert engine.running == 3
    assert engine.waiting is None


@pytest.mark.parametrize("page", ["", "\n", "# HELP x y\n", "python_info 1\n"])
def test_a_page_that_lost_all_of_vllm_is_empty(page: str) -> None:
    """A server that shows no vLLM series any more is not "up without facts"."""
    first = f"python_info 1\nvllm:num_requests_running{{{M}}} 1\n"
    with pytest.raises(TargetError, match="no vLLM series") as raised:
        one(first, page)
    assert raised.value.reason == "empty"


def test_an_engine_that_vanishes_is_gone() -> None:
    """One rank that disappears from the page takes its facts with it and leaves the other."""
    line = 'vllm:num_requests_running{{engine="{}",model_name="m"}} 1\n'
    assert [e.engine for e in read(line.format(0) + line.format(1), line.format(1)).engines] == ["1"]


def test_responses_of_a_status_that_vanished_are_absent() -> None:
    """A status class that is not on this page any more is absent, not 0."""
    http = 'http_requests_total{handler="/v1/completions",method="POST",status="%s"} 5\n'
    running = f"vllm:num_requests_running{{{M}}} 1\n"
    assert read(running + http % "2xx" + http % "5xx", running + http % "2xx").http_responses == {"2xx": 5}


def test_settings_that_changed_replace_the_old_ones() -> None:
    """After a restart with another block size the old settings are not shown beside the new ones."""
    config = 'vllm:cache_config_info{{block_size="{}",num_gpu_blocks="100",engine="0"}} 1\n'
    running = f"vllm:num_requests_running{{{M}}} 1\n"
    engine = one(running + config.format(16), running + config.format(32), running + config.format(16))
    assert engine.kv_cache_tokens == 1600
    assert engine.config == {"block_size": "16"}


def test_with_several_engines_the_sum_of_blocks_is_not_one_engines() -> None:
    """VLLM repeats the sum over all ranks on each; it is left out, the size in tokens (0.24+) is kept."""
    page = "".join(
        f'vllm:num_requests_running{{engine="{e}",model_name="m"}} 0\n'
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="200",kv_cache_size_tokens="1600",engine="{e}"}} 1\n'
        for e in "01"
    )
    for engine in read(page).engines:
        assert engine.kv_cache_blocks is None
        assert engine.kv_cache_tokens == 1600


@pytest.mark.parametrize(
    ("version", "unit", "queries"),
    [("0.8.5", "tokens", 160), ("0.9.1", "tokens", 10), (None, None, 10), ("0.1.dev1+gabc", None, 10)],
)
def test_blocks_become_tokens_where_the_version_is_known(version: str | None, unit: str | None, queries: float) -> None:
    """The old names count blocks up to 0.8.5 and tokens from 0.9.0; without a version the unit is unknown."""
    page = (
        f"vllm:gpu_prefix_cache_queries_total{{{M}}} 10\nvllm:gpu_prefix_cache_hits_total{{{M}}} 5\n"
        'vllm:cache_config_info{block_size="16",engine="0"} 1\n'
    )
    engine = one(page, version=version)
    assert (engine.prefix_cache_unit, engine.prefix_queries) == (unit, queries)


def test_minus_one_of_v0_means_off() -> None:
    """V0 says −1 when prefix caching is off: absent."""
    page = 'vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0\nvllm:num_requests_running{model_name="m"} 1\n'
    assert one(page).prefix_hit_rate_lifetime is None


HISTOGRAM = "vllm:time_to_first_token_seconds"


@pytest.mark.parametrize(
    "lines",
    [
        [("le", "0.5", 5), ("le", "+Inf", 3), ("sum", "", 1)],
        [("le", "0.5", 2), ("sum", "", 1)],
        [("le", "0.5", 2), ("le", "+Inf", 3)],
        [("le", "x", 2), ("sum", "", 1)],
        [("le", "0.5", math.nan), ("le", "+Inf", 3), ("sum", "", 1)],
        [("le", "0.5", 2), ("le", "+Inf", math.inf), ("sum", "", 1)],
        [("sum", "", 1)],
    ],
)
def test_an_inconsistent_histogram_is_absent(lines: list[tuple[str, str, float]]) -> None:
    """Buckets that fall, lack their end or sum, or hold no number make the histogram absent, and only it."""
    page = f"vllm:num_requests_running{{{M}}} 1\n"
    for kind, le, value in lines:
        page += (
            f'{HISTOGRAM}_bucket{{{M},le="{le}"}} {value}\n' if kind == "le" else f"{HISTOGRAM}_sum{{{M}}} {value}\n"
        )
    engine = one(page)
    assert engine.time_to_first_token is None
    assert engine.running == 1


def test_buckets_stand_in_any_order() -> None:
    """Buckets are sorted by their bound, and the sum may stand before them, as in multi-process mode."""
    page = f"{HISTOGRAM}_sum{{{M}}} 9\n" + "".join(
        f'{HISTOGRAM}_bucket{{{M},le="{le}"}} {n}\n' for le, n in (("+Inf", 3), ("10.0", 2), ("2.5", 1))
    )
    histogram = one(page).time_to_first_token
    assert histogram is not None
    assert (histogram.bounds, histogram.counts, histogram.sum) == ((2.5, 10, math.inf), (1, 2, 3), 9)


def test_a_negative_sum_of_times_is_zero() -> None:
    """VLLM has observed negative queue times: the counts stay, the sum is not below 0."""
    name = "vllm:request_queue_time_seconds"
    histogram = one(f'{name}_bucket{{{M},le="+Inf"}} 3\n{name}_sum{{{M}}} -0.5\n').queue_time
    assert histogram is not None
    assert (histogram.count, histogram.sum) == (3, 0)


def test_html_and_binary_are_refused() -> None:
    """An error page or a file is no metrics page."""
    for page in ("<!DOCTYPE html><html></html>", "\n  <html>", "\x00\x01\x02"):
        with pytest.raises(TargetError) as raised:
            one(page)
        assert raised.value.reason == "parse"


def test_a_page_of_too_many_series_is_refused() -> None:
    """More than a hundred thousand series end the reading, and the next good page is read."""
    page = "".join(f'vllm:x{{a="{i}"}} 1\n' for i in range(100_001))
    with pytest.raises(TargetError) as raised:
        one(page)
    assert raised.value.reason == "too_large"


def test_a_page_of_too_many_engines_is_refused() -> None:
    """More than 1024 engines on one page end the reading."""
    with pytest.raises(TargetError, match="engines"):
        read("".join(f'vllm:num_requests_running{{engine="{i}",model_name="m"}} 1\n' for i in range(1025)))


def test_long_label_values_are_cut() -> None:
    """A label value of ten kilobytes does not travel on."""
    long = "x" * 10_000
    engine = one(
        f'vllm:num_requests_running{{engine="{long}",model_name="{long}"}} 1\n'
        f'vllm:request_success_total{{engine="{long}",model_name="{long}",finished_reason="{long}"}} 1\n'
    )
    assert {len(engine.model_name), len(engine.engine), *map(len, engine.finished)} == {MAX_LABEL}
