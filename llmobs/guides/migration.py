"""`docs/guides/migrate-dashboards.md`: vLLM's own names, version by version, and the names here."""

from __future__ import annotations

from collections.abc import Iterator

from llmobs.catalog import METRICS, Metric
from llmobs.engine.dialect import FAMILIES, UNUSED, Family

_INTRO = """\
# Migrating dashboards from vLLM's own names

vLLM has renamed its metrics in most releases, and each rename breaks dashboards. llmobs publishes one set of names for
all of them, vLLM 0.5 to 0.33, with and without Ray's `ray_` prefix. This page is generated from the tables that the
reader itself works by (`llmobs generate guides`).

## How to rewrite a query

1. Replace the name by the table below.
2. Replace the selector: scrape the sidecar instead of vLLM (`job="llmobs"`). `model_name` and `engine` mean the same;
   `target` is new and names the server; the `pid` label of several API server processes is gone (they are merged).
3. Buckets stay as vLLM has them, so that quantiles and objectives give the same numbers. With the plugin inside vLLM
   there are more of them; every bound of vLLM's is still there.
4. What you computed from counters may be there already, over a sliding window and safe against restarts.

| before | after |
|---|---|
| `rate(vllm:generation_tokens_total[5m])` | `rate(vllm_decode_tokens_total[5m])`, or `vllm_decode_throughput_tokens_per_second` |
| `vllm:gpu_cache_usage_perc` or `vllm:kv_cache_usage_perc` | `vllm_kv_cache_usage_ratio`, and `vllm_kv_cache_usage_ratio_peak` for spikes between scrapes |
| `rate(vllm:gpu_prefix_cache_hits_total[5m]) / rate(vllm:gpu_prefix_cache_queries_total[5m])` | `vllm_gpu_cache_hit_rate` |
| `histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))` | the same with `vllm_time_to_first_token_seconds_bucket` |
| `vllm:num_requests_waiting > 10` | `vllm_request_waiting_queue_length > 10` |
| `sum(rate(vllm:request_success_total[5m]))` | `sum(rate(vllm_request_finished_total[5m]))`; failures, which vLLM does not count, are `vllm_request_failed_total` |

## Every name

The families are written without their prefix (`vllm:`, `vllm_` or `ray_vllm_`) and without `_total`. Where a family is
one part of a metric here, its label value is given.

| vLLM | here | type |
|---|---|---|
"""  # noqa: E501 (one table row a line)

_UNUSED = """
## Names without a counterpart

These repeat another one, have no meaning an operator acts on, or are part of a sum above. They are known and not
counted in `llmobs_target_unmapped_series`. A `*` stands for any ending.

"""


def text() -> str:
    """Return the page."""
    return "".join((_INTRO, *_rows(), _UNUSED, ", ".join(f"`{name}`" for name in UNUSED), "\n"))


def _rows() -> Iterator[str]:
    by_fact: dict[str, list[Metric]] = {}
    for metric in METRICS.values():
        # GPU facts have the same mechanism and other names.
        if metric.fact and metric.name.startswith("vllm_"):
            by_fact.setdefault(metric.fact, []).append(metric)
    for family in sorted(FAMILIES, key=lambda f: f.name):
        metrics = by_fact.get(family.fact, [])
        if metrics:
            names = ", ".join(f"[`{m.name}`](../contract.md#{m.name})" + _part(family, m) for m in metrics)
            yield f"| `{family.name}` | {names} | {metrics[0].kind} |\n"
        else:
            yield f"| `{family.name}` | read, and part of what is derived ({family.fact.replace('_', ' ')}) | – |\n"


def _part(family: Family, metric: Metric) -> str:
    if family.key is None:
        return ""
    label = next((label for label in metric.labels if label not in ("target", "model_name", "engine")), "kind")
    return f' `{{{label}="{family.key}"}}`'
