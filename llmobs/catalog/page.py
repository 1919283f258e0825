"""The contract as a page: `docs/contract.md`."""

from __future__ import annotations

from llmobs.catalog import series_names
from llmobs.catalog.engine import CACHE, JOINED, LATENCY, QUEUE, REQUESTS, SPECULATION, STATUS, TOKENS, WORKERS
from llmobs.catalog.gpu import GPU_METRICS
from llmobs.catalog.model import Metric
from llmobs.catalog.own import OWN_METRICS
from llmobs.generate import Files, Options

_SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Is it up, is it moving", STATUS),
    ("Queue and batch", QUEUE),
    ("KV cache and prefix cache", CACHE),
    ("Tokens", TOKENS),
    ("Latency and lengths", LATENCY),
    ("Requests and failures", REQUESTS),
    ("Speculative decoding", SPECULATION),
    ("LoRA and worker memory", WORKERS),
    ("Engine and GPU joined", JOINED),
    ("GPU", GPU_METRICS),
    ("llmobs itself", OWN_METRICS),
)

_INTRO = """\
# The contract

Every metric llmobs publishes, under names that stay the same whatever vLLM calls them. Generated from
`llmobs/catalog`; `llmobs generate contract` rewrites it.

- **Unknown is absent.** What was not measured is not published: never 0, never the last value. When a target stops
  answering, its series end with the next cycle; `vllm_up` is 0.
- **Windowed** values cover the sliding window (`llmobs_window_seconds`, 60 s by default). A ratio without events in
  the window is absent.
- **Counters never go down** while llmobs lives, also across restarts of vLLM.
- **`_peak`** metrics are the maximum over the peak interval, so that spikes between two scrapes are not lost.
- **Requests** are counted as sequences, as vLLM does: `n=4` counts four.
- Labels: `target` is the configured name of the watched server, `engine` the data-parallel rank; the constant labels
  configured for a target (such as `version` or `canary`) are added to each of its series.
"""


def files(options: Options) -> Files:
    """Return `docs/contract.md`."""
    del options
    parts = [_INTRO]
    for title, metrics in _SECTIONS:
        parts.append(f"\n## {title}\n\n| metric | type | unit | labels | what it is |\n|---|---|---|---|---|\n")
        parts.extend(_row(m) for m in metrics)
    return {"docs/contract.md": "".join(parts)}


def _row(m: Metric) -> str:
    what = m.help + (f" *{m.meaning}*" if m.meaning else "") + (f" Source: {m.source}." if m.source else "")
    labels = ", ".join(_label(m, label) for label in m.labels) or "–"
    name = f'<a id="{m.name}"></a>`{m.name}`'
    if m.kind == "histogram":
        name += " (" + ", ".join(f"`{n.removeprefix(m.name)}`" for n in series_names(m)) + ")"
    return f"| {name} | {m.kind} | {m.unit} | {labels} | {what.replace('|', chr(92) + '|')} |\n"


def _label(m: Metric, label: str) -> str:
    values = m.values.get(label)
    return f"`{label}`" + (f" ({' '.join(values)})" if values else "")
