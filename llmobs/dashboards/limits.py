"""Thresholds of the alerts, as lines and colours: what is drawn here is what pages at night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmobs.alerts.settings import AlertSettings
from llmobs.alerts.slo import Objective
from llmobs.dashboards.panels import ORANGE, RED, YELLOW, Line
from llmobs.errors import GenerateError

_COLORS = {"critical": RED, "warning": ORANGE, "info": YELLOW}

#: Objectives by the histogram whose boundary they use; TPOT, a mean per request, is held to the inter-token objective.
_OBJECTIVES = {
    "vllm_time_to_first_token_seconds": "ttft",
    "vllm_time_per_output_token_seconds": "inter_token",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The alerts' thresholds in effect. An alert that is switched off draws no line."""

    alerts: AlertSettings

    def value(self, alert: str) -> float:
        """Return the threshold of an alert, also of one that is off. Raises GenerateError when it has none."""
        found = self.alerts.threshold(alert)
        if found is None:
            raise GenerateError(f"a dashboard draws the threshold of {alert}, which has none")
        return found

    def lines(self, *alerts: str) -> tuple[Line, ...]:
        """Return the lines of the alerts that are on, coloured by severity, the lowest first."""
        found: dict[float, Line] = {}
        for name in alerts:
            effective = self.alerts.effective(name)
            if effective.enabled:
                at = self.value(name)
                found[at] = Line(at=at, color=_COLORS[effective.severity])
        return tuple(found[at] for at in sorted(found))

    def tiers(self, alert: str) -> Iterator[tuple[str, float]]:
        """Yield the models that have a threshold of their own, and it."""
        for effective in self.alerts.rules[alert].overrides:
            if effective.enabled and effective.threshold is not None and len(effective.match) == 1:
                ((label, models),) = effective.match
                if label == "model_name":
                    yield from ((model, effective.threshold) for model in models)

    def boundary(self, histogram: str) -> str:
        """Return the objective's bucket boundary as Prometheus writes it in `le`."""
        return str(self.objective(_OBJECTIVES[histogram]).boundary)

    def objective(self, slo: str) -> Objective:
        """Return an objective by its name."""
        return next(o for o in self.alerts.objectives if o.slo == slo)
