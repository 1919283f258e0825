"""Cases of the alerts on error budgets and canaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmobs.alerts.cases.model import FOREVER, Case, Cases, Knobs, Series, flat, grow, histogram
from llmobs.alerts.slo import WINDOWS


def _bad_share(k: Knobs, slo: str, share: float, rate: float, turn: float, until: float = FOREVER) -> list[Series]:
    """Traffic whose share of bad events is `share` between `turn` and `until`, else 0."""
    parts = ((0.0, turn), (share, until - turn), (0.0, FOREVER)) if until < FOREVER else ((0.0, turn), (share, FOREVER))
    if slo == "availability":
        good = (
            f'vllm_request_finished_total{{{k.replica},finished_reason="stop"}}',
            tuple(grow(rate * (1 - s), t) for s, t in parts),
        )
        bad = (f'vllm_request_failed_total{{{k.replica},reason="error"}}', tuple(grow(rate * s, t) for s, t in parts))
        return [k.seen(), good, bad]
    name, bound = _HISTOGRAMS[slo]
    return histogram(name, k.replica, *((rate, {bound: 1 - s, "+Inf": 1.0}, 1.0, t) for s, t in parts))


#: Objective → its histogram and boundary; the generator replaces the boundary by the one in effect.
_HISTOGRAMS = {
    "ttft": ("vllm_time_to_first_token_seconds", "<ttft>"),
    "inter_token": ("vllm_inter_token_latency_seconds", "<inter_token>"),
    "e2e": ("vllm_e2e_request_latency_seconds", "<e2e>"),
}


def _burn(slo: str, budget: float) -> Cases:
    def cases(k: Knobs) -> Iterator[Case]:
        def labels(window: str, severity: str) -> dict[str, str]:
            own = severity if k.effective.severity == "critical" else k.effective.severity
            return {**k.fires(slo=slo), "window": window, "severity": own}

        def for_of(i: int) -> str:
            return WINDOWS[i][3] if k.effective.for_ == k.effective.alert.for_ else k.effective.for_

        rate = max(10.0, k.p("min_bad"))
        fast = min(0.95, 16 * budget * k.t)
        begun = 7200.0
        yield k.case(
            "a burn of 16 pages within the hour", _bad_share(k, slo, fast, rate, begun), begun + 3600,
            *_sorted(labels("1h", "critical")), interval=60, for_="2m",
        )  # fmt: skip
        slow = 1.1 * budget * k.t
        yield k.case(
            "a burn of 1.1 does not page",
            _bad_share(k, slo, slow, rate, begun),
            begun + 3600,
            interval=60,
            for_=for_of(1),
        )
        yield k.case(
            "a burst of five minutes is over",
            _bad_share(k, slo, fast, rate, begun, begun + 300),
            begun + 1500,
            interval=60,
            for_="2m",
        )
        few = k.p("min_bad") / 3600 * 0.5
        yield k.case(
            "all of a handful of requests", _bad_share(k, slo, 1.0, few, begun), begun + 3600, interval=60, for_="2m"
        )
        yield k.case("no traffic", [k.seen()], begun, interval=60)

    return cases


def _sorted(*labels: dict[str, str]) -> tuple[dict[str, str], ...]:
    return labels


def budget_exhausted(k: Knobs) -> Iterator[Case]:
    yield k.case(
        "twice the budget was spent",
        _bad_share(k, "availability", 0.01 * (1 - min(k.t, 0.9)), 10, 600),
        7200,
        k.fires(slo="availability"),
        interval=60,
    )
    yield k.case("a little was spent", _bad_share(k, "availability", 0.0005, 10, 600), 7200, interval=60)


def boundary_missing(k: Knobs) -> Iterator[Case]:
    other = histogram("vllm_time_to_first_token_seconds", k.replica, (2.0, {"123.0": 1.0, "+Inf": 1.0}, 1.0, FOREVER))
    yield k.case("the boundary is no bucket bound", other, 600, k.fires(slo="ttft"), interval=60)
    good = histogram("vllm_time_to_first_token_seconds", k.replica, (2.0, {"<ttft>": 1.0, "+Inf": 1.0}, 1.0, FOREVER))
    yield k.case("it is one", good, 600, interval=60)


def _both(k: Knobs, name: str, canary: float, stable: float, more: str = "") -> list[Series]:
    replica = 'instance="{0}:9401",target="t",model_name="{1}",engine="0"'
    return [
        (f"{name}{{{replica.format('a', k.model)},<canary>{more}}}", (grow(canary),)),
        (f"{name}{{{replica.format('b', k.model)},<stable>{more}}}", (grow(stable),)),
    ]


def _e2e(k: Knobs, canary: float, stable: float, rate: float) -> list[Series]:
    bounds = [0.5 * 1.2**i for i in range(40)]
    made: list[Series] = []
    for n, label, p95 in (("a", "<canary>", canary), ("b", "<stable>", stable)):
        labels = f'instance="{n}:9401",target="t",model_name="{k.model}",engine="0",{label}'
        # A steep distribution that ends at p95.
        shares = {f"{b:.4f}": min(1.0, (b / p95) ** 2) for b in bounds}
        made += histogram("vllm_e2e_request_latency_seconds", labels, (rate, {**shares, "+Inf": 1.0}, p95 / 2, FOREVER))
    return made


def canary_oom(k: Knobs) -> Iterator[Case]:
    base = [k.seen("<canary>")]
    name = f'vllm_oom_total{{{k.target},<canary>,kind="cuda"}}'
    yield k.case("the canary runs out of memory", [*base, (name, (flat(0, 300), flat(k.t + 1)))], 330, k.fires())
    stable = name.replace("<canary>", "<stable>")
    yield k.case("one of the others does", [k.seen("<stable>"), (stable, (flat(0, 300), flat(k.t + 1)))], 330)
    lost = f'vllm_request_failed_total{{{k.replica},<canary>,reason="oom"}}'
    yield k.case("requests of the canary failed for it", [*base, (lost, (flat(0, 300), flat(k.t + 2)))], 330, k.fires())


def canary_tokens(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4

    def pair(canary: float, per_second: float = rate) -> list[Series]:
        running = [(n, (flat(10),)) for n, _ in _both(k, "vllm_num_running_requests", 0, 0)]
        return [*_both(k, "vllm_decode_tokens_total", canary * 300, 300), *running, *_e2e(k, 10, 10, per_second)]

    yield k.case("slower beyond the limit", pair(1 - k.t * 2), 1200, k.fires())
    yield k.case("a little slower", pair(1 - k.t * 0.5), 1200)
    yield k.case("too few requests to judge", pair(1 - k.t * 2, rate / 8), 1200)


def canary_latency(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4
    yield k.case("p95 is worse", _e2e(k, 10 * k.t * 1.4, 10, rate), 1200, k.fires())
    yield k.case("p95 is alike", _e2e(k, 10, 10, rate), 1200)
    yield k.case("too few requests to judge", _e2e(k, 10 * k.t * 1.4, 10, rate / 8), 1200)


def canary_failures(k: Knobs) -> Iterator[Case]:
    rate = k.p("min_requests") / 900 * 4

    def pair(canary: float, per_second: float = rate) -> list[Series]:
        failed = _both(k, "vllm_request_failed_total", per_second * canary, per_second * 0.001, ',reason="error"')
        good = _both(k, "vllm_request_finished_total", per_second * (1 - canary), per_second, ',finished_reason="stop"')
        return [*failed, *good, *_e2e(k, 10, 10, per_second)]

    yield k.case("more failures", pair(k.t * 3 + 0.01), 1200, k.fires())
    yield k.case("about as many", pair(k.t * 0.5), 1200)
    yield k.case("too few requests to judge", pair(k.t * 3 + 0.01, rate / 8), 1200)


def with_boundaries(case: Case, boundaries: dict[str, str], canary: dict[str, str]) -> Case:
    """Return the case with the objectives' boundaries and the canary's label in effect."""
    words = {**{f'"<{slo}>"': f'"{bound}"' for slo, bound in boundaries.items()}, **canary}

    def put(name: str) -> str:
        for word, value in words.items():
            name = name.replace(word, value)
        return name

    return replace(case, series=tuple((put(name), parts) for name, parts in case.series))


def budgets(share: dict[str, float]) -> dict[str, Cases]:
    """Return the cases by alert; `share` is objective → 1 − target."""
    return {
        "VllmAvailabilityBudgetBurn": _burn("availability", share["availability"]),
        "VllmTTFTBudgetBurn": _burn("ttft", share["ttft"]),
        "VllmInterTokenBudgetBurn": _burn("inter_token", share["inter_token"]),
        "VllmE2EBudgetBurn": _burn("e2e", share["e2e"]),
        "VllmErrorBudgetExhausted": budget_exhausted,
        "VllmSLOBoundaryMissing": boundary_missing,
        "CanaryOutOfMemory": canary_oom,
        "CanaryTokensSlower": canary_tokens,
        "CanaryLatencyWorse": canary_latency,
        "CanaryFailuresUp": canary_failures,
    }
