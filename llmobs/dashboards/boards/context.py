"""What every board module gets, and the questions that more than one board asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmobs.alerts.recording import recorded_labels
from llmobs.catalog.engine import STATES
from llmobs.dashboards.limits import Limits
from llmobs.dashboards.panels import GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Choice, Panel, Query, graph
from llmobs.dashboards.promql import Queries, ratio
from llmobs.dashboards.settings import Settings

#: Names of one replica: the sidecar's address and the configured name of the server it watches.
REPLICA = ("instance", "target")
REPLICA_LEGEND = "{{target}} · {{instance}}"
ENGINE_LEGEND = "{{target}} · {{instance}} · engine {{engine}}"

#: Failures that are the service's own, as VllmErrorRatio counts them, and sequences that ended well.
OUR_FAULT = 'reason=~"error|oom|engine_dead"'
GOOD = 'finished_reason!~"abort|error"'

#: Legends of dashed limits.
LIMIT = "^limit"

INTERPOLATED = (
    "Read from vLLM's own page, its first bucket ends at 0.3 s: a quantile below 0.3 s is interpolated. With the "
    "plugin inside vLLM the buckets are finer."
)

#: States from good to bad, so that the largest number is the worst replica.
STATE_WORDS: Mapping[float, tuple[str, str]] = {
    0: ("ready", GREEN), 1: ("sleeping", GREY), 2: ("starting", YELLOW), 3: ("livelock", PURPLE),
    4: ("stalled", ORANGE), 5: ("dead", "dark-red"), 6: ("unreachable", RED),
}  # fmt: skip

#: "Off" asks for a time of which there is no data: PromQL has no conditional, and an empty answer draws nothing.
COMPARE = Choice(
    name="compare",
    label="Overlay",
    choices=(("Off", "10y"), ("Same time yesterday", "1d"), ("Same time last week", "7d")),
    description="Draws the golden signals of then, dashed, over those of now.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Query forms, thresholds and settings for one run of the generator."""

    q: Queries
    limits: Limits
    settings: Settings

    @property
    def outside(self) -> str:
        """Matchers of the extra variables alone, for Prometheus' own series, which carry no job."""
        return "".join(f'{label}=~"${label}", ' for label in self.settings.variables)

    def board(self, uid: str) -> str:
        """Path of another board, for links."""
        return self.settings.path(uid)

    def recorded(self, name: str) -> str:
        """A series of the alerts' recording rules, which keep the model and the labels of the alerts' scope only."""
        labels = (*recorded_labels()[name], *self.limits.alerts.scope)
        names = {"model_name": "model", "slo": "slo", **{v: v for v in self.settings.variables}}
        return f"{name}{{{', '.join(f'{label}=~' + chr(34) + '$' + names[label] + chr(34) for label in labels if label in names)}}}"

    def requests(self, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """Finished sequences per second."""
        return self.q.per_second("vllm_request_finished_total", *more, by=by, offset=offset)

    def failed(self, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """Failed requests per second."""
        return self.q.per_second("vllm_request_failed_total", *more, by=by, offset=offset)

    def error_share(self) -> str:
        """Share of requests that failed by the service's own fault, of those that ended, well or badly."""
        return f"{self.failed(OUR_FAULT)} / ({self.requests(GOOD)} + {self.failed()} > 0)"

    def tiers(self, alert: str) -> tuple[Query, ...]:
        """Dashed lines at the thresholds that single models have of their own; shown where the model is selected."""
        return tuple(
            Query(
                text="0 * "
                + self.q.gauge("max", "vllm_num_running_requests", f'model_name="{model}"', by=("model_name",))
                + f" + {threshold:g}",
                legend="limit of {{model_name}}",
            )
            for model, threshold in self.limits.tiers(alert)
        )

    def hit_rate(self, *more: str, by: tuple[str, ...] = (), offset: str = "") -> str:
        """Prefix cache hits ÷ queries in tokens over all engines."""
        return ratio(
            self.q.per_second("vllm_prefix_cache_hits_total", *more, by=by, offset=offset),
            self.q.per_second("vllm_prefix_cache_queries_total", *more, by=by, offset=offset),
        )

    def phase_mean(self, offset: str = "") -> str:
        """Mean seconds per finished request by phase: its seconds ÷ finished requests."""
        seconds = self.q.per_second("vllm_phase_seconds_total", by=("phase",), offset=offset)
        count = self.q.per_second("vllm_e2e_request_latency_seconds_count", offset=offset)
        return f"{seconds} / on () group_left () ({count} > 0)"

    def phase_share(self) -> str:
        """Share of each phase in the time of finished requests."""
        seconds = self.q.per_second("vllm_phase_seconds_total", by=("phase",))
        return f"{seconds} / on () group_left () ({self.q.per_second('vllm_phase_seconds_total')} > 0)"

    def state(self) -> str:
        """The state of each replica as a number, see STATE_WORDS."""
        numbers = {word: number for number, (word, _) in STATE_WORDS.items()}
        series = "vllm_engine_state"
        parts = [f'{self.q.select(series, f"""state="{s}" """.strip())} * {numbers[s]}' for s in STATES]
        return f"sum by ({', '.join(REPLICA)}) ({' or '.join(parts)})"

    def latency(self, histogram: str, q: float) -> tuple[Query, Query]:
        """A quantile now, and at the time chosen to compare with."""
        return (
            Query(text=self.q.quantile(q, histogram), legend="now", exemplars=True),
            Query(text=self.q.quantile(q, histogram, offset="$compare"), legend="then"),
        )

    def quantiles(self, title: str, histogram: str, shows: str, act: str, alert: str = "") -> Panel:
        """p50, p95, p99 and mean of a histogram, with exemplars that open the trace."""
        return graph(
            f"{title}: p50, p95, p99, mean",
            shows,
            act,
            *(
                Query(text=self.q.quantile(share, histogram), legend=name, exemplars=name == "p99")
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            ),
            Query(text=self.q.mean(histogram), legend="mean"),
            *(self.tiers(alert) if alert else ()),
            unit="s",
            lines=self.limits.lines(alert) if alert else (),
            dashed=(LIMIT,),
            colors={"p50": "green", "p95": "yellow", "p99": "red", "mean": GREY},
            no_value="No traffic",
        )
