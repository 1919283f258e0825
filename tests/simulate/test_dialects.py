"""The page of each dialect: valid, true to the model, and with the families of its version."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmobs import stats
from llmobs.engine.page import PageReader
from llmobs.errors import ConfigError
from llmobs.simulate import facts
from llmobs.simulate.dialects import NAMES, dialect
from llmobs.simulate.render import number, page
from llmobs.snapshot import EngineSnapshot
from tests.simulate.runs import run


@lru_cache
def shown(name: str, scenario: str = "demo") -> str:
    """Return the page of a scenario's end in one dialect."""
    server = run(scenario, 120).server
    return page(server, facts.snapshot(server, taken_at=0.0), dialect(name))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the page's samples by name, read by Prometheus' own parser."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def read(name: str, scenario: str = "demo") -> EngineSnapshot:
    """Return what llmobs' own reader makes of the page."""
    return PageReader().read(shown(name, scenario), taken_at=0.0, wall_time=0.0, version=dialect(name).text)


@pytest.mark.parametrize("name", NAMES)
def test_page_is_valid(name: str) -> None:
    """Prometheus' parser takes it, no series comes twice, no family is declared twice."""
    text = shown(name)
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    assert samples(text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scenario", ["demo", "all-features"])
def test_reader_finds_the_truth(name: str, scenario: str) -> None:
    """What llmobs reads from the page is what the model knows, and nothing on it is unknown."""
    server = run(scenario, 120).server
    truth = {e.engine: e for e in facts.snapshot(server, taken_at=0.0).engines}
    found = read(name, scenario)
    assert found.unmapped_series == 0
    # Without the label, and in the versions that lost all ranks but the last, one engine is seen.
    assert {e.model_name for e in found.engines} == {"demo/chat-8b"}
    if scenario == "demo" or dialect(name).version >= (0, 10, 0):
        for engine in found.engines:
            if engine.engine not in truth:
                continue  # per server, without an engine
            true = truth[engine.engine]
            for fact in ("running", "waiting", "prompt_tokens", "generation_tokens", "kv_cache_usage"):
                assert getattr(engine, fact) == pytest.approx(getattr(true, fact)), fact
            for fact in ("time_to_first_token", "e2e_latency", "prompt_length"):
                assert getattr(engine, fact).count == getattr(true, fact).count, fact
                assert getattr(engine, fact).sum == pytest.approx(getattr(true, fact).sum), fact
            if engine.prefix_queries is not None and true.prefix_queries:
                rate = engine.prefix_hits / engine.prefix_queries
                assert rate == pytest.approx(true.prefix_hits / true.prefix_queries, rel=1e-3)


#: Dialect → sample names that must be there, and that must not.
WHAT = {
    "0.5.0": (("vllm:num_requests_swapped vllm:avg_prompt_throughput_toks_per_s vllm:cpu_cache_usage_perc "
              "vllm:request_params_best_of_count vllm:num_requests_running"),
              "vllm:iteration_tokens_total_count vllm:gpu_prefix_cache_hit_rate vllm:request_queue_time_seconds_count"),
    "0.6.6": (("vllm:gpu_prefix_cache_hit_rate vllm:time_in_queue_requests_count vllm:tokens_total "
              "vllm:iteration_tokens_total_count"),
              ("vllm:kv_cache_usage_perc vllm:prefix_cache_hits_total vllm:prompt_tokens_created "
              "process_start_time_seconds http_requests_total")),
    "0.7.3-v0": ("vllm:gpu_cache_usage_perc vllm:time_in_queue_requests_count",
                 "vllm:avg_prompt_throughput_toks_per_s vllm:gpu_prefix_cache_hits_total"),
    "0.7.3-v1": ("vllm:gpu_prefix_cache_hits_total vllm:gpu_cache_usage_perc",
                 ("vllm:num_preemptions_total vllm:gpu_prefix_cache_hit_rate vllm:request_params_n_count "
                 "vllm:cache_config_info")),
    "0.8.5": (("vllm:gpu_prefix_cache_queries_total vllm:time_per_output_token_seconds_count "
              "vllm:num_preemptions_total http_requests_total"),
              "vllm:prefix_cache_queries_total vllm:kv_cache_usage_perc"),
    "0.9.2": (("vllm:gpu_prefix_cache_queries_total vllm:prefix_cache_queries_total vllm:kv_cache_usage_perc "
              "vllm:gpu_cache_usage_perc"), "vllm:inter_token_latency_seconds_count"),
    "0.10.2": (("vllm:inter_token_latency_seconds_count vllm:time_per_output_token_seconds_count "
               "vllm:gpu_cache_usage_perc"), "vllm:request_time_per_output_token_seconds_count"),
    "0.11.2": ("vllm:request_time_per_output_token_seconds_count vllm:mm_cache_hits_total vllm:engine_sleep_state",
               "vllm:gpu_cache_usage_perc vllm:gpu_prefix_cache_hits_total vllm:prompt_tokens_by_source_total"),
    "0.16.0": ("vllm:prompt_tokens_by_source_total vllm:prompt_tokens_recomputed_total",
               ("vllm:time_per_output_token_seconds_count vllm:num_requests_waiting_by_reason "
               "vllm:estimated_flops_per_gpu_total")),
    "0.20.0": ("vllm:num_requests_waiting_by_reason vllm:estimated_flops_per_gpu_total",
               "vllm:prompt_tokens_recomputed_total vllm:request_num_preemptions_count"),
    "0.24.0": ("vllm:request_prefill_kv_computed_tokens_count", "vllm:admission_rejections_total"),
    "0.32.0": (("vllm:admission_rejections_total vllm:prompt_tokens_cached_by_source_total "
               "vllm:request_num_preemptions_count process_start_time_seconds vllm:prompt_tokens_created"),
               "vllm:gpu_cache_usage_perc vllm:time_per_output_token_seconds_count vllm:num_requests_swapped"),
    "0.33.0": ("vllm:admission_rejections_total", "vllm:prompt_tokens_recomputed_total"),
    "0.32.0-ray": ("ray_vllm_num_requests_running ray_vllm_prompt_tokens_total",
                   ("vllm:num_requests_running ray_vllm_num_preemptions_total http_requests_total "
                   "process_start_time_seconds ray_vllm_prompt_tokens_created")),
    "0.10.2-ray": ("ray_vllm:num_requests_running", "ray_vllm_num_requests_running"),
    "0.32.0-multiprocess": ("vllm:num_requests_running http_requests_total",
                            "process_start_time_seconds vllm:prompt_tokens_created python_info"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHAT)
def test_families_of_the_version(name: str) -> None:
    """The page has the families that this version shows, and none that it does not."""
    found = samples(shown(name))
    there, absent = (text.split() for text in WHAT[name])
    assert [n for n in there if n not in found] == []
    assert [n for n in absent if n in found] == []


def test_labels_by_version() -> None:
    """`engine` came with 0.8.3, Ray's replica with 0.12, pids with the multi-process mode of old versions."""
    assert set(samples(shown("0.7.3-v1"))["vllm:num_requests_running"][0][0]) == {"model_name"}
    assert set(samples(shown("0.8.5"))["vllm:num_requests_running"][0][0]) == {"model_name", "engine"}
    assert "ReplicaId" in samples(shown("0.32.0-ray"))["ray_vllm_num_requests_running"][0][0]
    assert "ReplicaId" not in samples(shown("0.10.2-ray"))["ray_vllm:num_requests_running"][0][0]
    old = samples(shown("0.9.2-multiprocess"))["vllm:kv_cache_usage_perc"]
    assert [labels["pid"] for labels, _ in old] == ["101", "102"]
    assert "pid" not in samples(shown("0.32.0-multiprocess"))["vllm:kv_cache_usage_perc"][0][0]


def test_blocks_became_tokens() -> None:
    """Up to 0.8.5 the prefix cache counts blocks, from 0.9 on tokens."""
    blocks = samples(shown("0.8.5"))["vllm:gpu_prefix_cache_queries_total"][0][1]
    tokens = samples(shown("0.9.2"))["vllm:gpu_prefix_cache_queries_total"][0][1]
    assert blocks == tokens // 16


def test_lost_ranks() -> None:
    """Before 0.10 only the last data-parallel rank was on the page; from then on all are."""
    one, all_ = (samples(shown(name, "all-features"))["vllm:num_requests_running"] for name in ("0.9.2", "0.10.2"))
    assert [labels["engine"] for labels, _ in one] == ["1"]
    assert [labels["engine"] for labels, _ in all_] == ["0", "1"]


def test_blocks_are_the_sum_over_ranks() -> None:
    """With data parallelism every rank shows the sum of all ranks' blocks, as vLLM does."""
    configs = samples(shown("0.32.0", "all-features"))["vllm:cache_config_info"]
    assert [labels["num_gpu_blocks"] for labels, _ in configs] == ["5200", "5200"]


def test_bounds_by_version() -> None:
    """Latencies got finer with 0.6.4 and longer with 0.8.4."""

    def edges(name: str) -> list[str]:
        return [labels["le"] for labels, _ in samples(shown(name))["vllm:e2e_request_latency_seconds_bucket"]]

    assert edges("0.5.0")[0] == "1.0"
    assert edges("0.6.6")[0] == "0.3"
    assert edges("0.7.3-v1")[-2] == "60.0"
    assert edges("0.8.5")[-2] == "7680.0"


def test_order_of_a_histogram() -> None:
    """Multi-process mode writes the sum first, single-process mode buckets first."""
    name = "vllm:time_to_first_token_seconds"
    for text, first in ((shown("0.32.0"), f"{name}_bucket"), (shown("0.32.0-multiprocess"), f"{name}_sum")):
        assert next(line for line in text.splitlines() if line.startswith(f"{name}_")).startswith(first)


def test_adapters_are_joined_in_a_label() -> None:
    """`lora_requests_info` has the adapters in its labels and a time as its value."""
    info = samples(shown("0.32.0", "all-features"))["vllm:lora_requests_info"]
    assert all(set(labels) == {"max_lora", "running_lora_adapters", "waiting_lora_adapters"} for labels, _ in info)
    assert all(value > 1e9 for _, value in info)


@pytest.mark.parametrize("scenario", ["demo", "all-features", "hang", "two-models"])
def test_stats_come_back_as_they_were(scenario: str) -> None:
    """`decode(encode(x))` is x, for every fact."""
    snapshot = facts.snapshot(run(scenario, 120).server, taken_at=5.0)
    document = json.loads(json.dumps(stats.encode(snapshot), allow_nan=False))
    assert stats.decode(document, taken_at=5.0, wall_time=snapshot.wall_time) == snapshot


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (1e6, "1e+06"), (1234567, "1.234567e+06"), (float("inf"), "+Inf"), (0.5, "0.5"), (123456, "123456.0")],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    """Large numbers get an exponent, as prometheus_client writes them."""
    assert number(value) == text


@pytest.mark.parametrize("name", ["0.4.2", "new", "0.32.0-v2", "0.12.0-v0"])
def test_impossible_dialects(name: str) -> None:
    """A version that never was is a mistake of the caller."""
    with pytest.raises(ConfigError, match=name):
        dialect(name)


@pytest.mark.parametrize(
    ("name", "status"),
    [("0.6.6", 500), ("0.8.5", 200), ("0.9.1", 200), ("0.9.2", 500), ("0.10.2", 500), ("0.11.2", 503), ("0.32.0", 503)],
)
def test_health_of_a_dead_engine(name: str, status: int) -> None:
    """What /health says of a dead engine changed three times."""
    assert dialect(name).dead_status == status
