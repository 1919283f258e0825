"""What a unit test of a rule is, and how its series are written down.

Cases are functions of an alert's knobs, so that they stay true when a user changes a threshold or a `for`: a positive
case lies just beyond the threshold, a negative one just short of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmobs.alerts.model import seconds
from llmobs.alerts.settings import Effective

#: One stretch of a series: ("=", value, seconds), ("+", growth per second, seconds), ("_", 0, seconds) for absent, or
#: ("stale", 0, seconds) for absent since a scrape that failed.
Stretch = tuple[str, float, float]
#: One series: name with labels, and its stretches; the last one goes on to the end.
Series = tuple[str, tuple[Stretch, ...]]

FOREVER = math.inf


def flat(value: float, for_seconds: float = FOREVER) -> Stretch:
    """Return a stretch of one value."""
    return ("=", value, for_seconds)


def grow(per_second: float, for_seconds: float = FOREVER) -> Stretch:
    """Return a stretch that grows steadily from where the series is."""
    return ("+", per_second, for_seconds)


def gone(for_seconds: float = FOREVER) -> Stretch:
    """Return a stretch without samples."""
    return ("_", 0.0, for_seconds)


def lost(for_seconds: float = FOREVER) -> Stretch:
    """Return a stretch without samples that begins with a failed scrape: the series ends at once, not 5 minutes on."""
    return ("stale", 0.0, for_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What must fire at one moment (seconds from the start); each mapping is one alert's labels."""

    at: float
    fires: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One unit test of one alert."""

    alert: str
    title: str
    series: tuple[Series, ...]
    checks: tuple[Check, ...]
    interval: float = 30.0

    @property
    def positive(self) -> bool:
        """Whether the alert fires in it."""
        return any(check.fires for check in self.checks)


def notation(stretches: Sequence[Stretch], interval: float, end: float) -> str:
    """Return the stretches in promtool's notation, up to `end` seconds."""
    parts: list[str] = []
    value, at = 0.0, 0.0
    for i, (kind, number, length) in enumerate(stretches):
        last = i == len(stretches) - 1
        # A stretch without an end that is not the last one is a single sample.
        until = end + interval if last else at + (interval if math.isinf(length) else length)
        count = max(1, round((until - at) / interval))
        at += count * interval
        if kind == "_":
            parts.append(f"_x{count}")
        elif kind == "stale":
            parts.append(f"stale _x{count - 1}" if count > 1 else "stale")
        elif kind == "=":
            value = number
            parts.append(f"{_number(value)}+0x{count - 1}")
        else:
            step = number * interval
            parts.append(f"{_number(value)}{step:+.10g}x{count - 1}")
            value += step * count
    return " ".join(parts)


def _number(value: float) -> str:
    return f"{value:.10g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """An alert's knobs under test, and the names used in its series."""

    effective: Effective
    model: str = "m"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def t(self) -> float:
        """The threshold."""
        assert self.effective.threshold is not None
        return self.effective.threshold

    def p(self, name: str) -> float:
        """A parameter."""
        return self.effective.params[name]

    @property
    def target(self) -> str:
        """Labels of a target."""
        return 'instance="a:9401",target="t"'

    @property
    def replica(self) -> str:
        """Labels of an engine."""
        return f'{self.target},model_name="{self.model}",engine="0"'

    @property
    def gpu(self) -> str:
        """Labels of a GPU."""
        return 'instance="a:9401",uuid="GPU-1"'

    def seen(self, *more: str) -> Series:
        """The series by which the model of a target is known."""
        return f'vllm_request_failed_total{{{",".join((self.replica, *more))},reason="engine_dead"}}', (flat(0),)

    def beside(self) -> tuple[Series, ...]:
        """What a sidecar with one model publishes besides."""
        return self.seen(), ('llmobs_watchdog{instance="a:9401"}', (flat(1),))

    def fires(self, **labels: str) -> Mapping[str, str]:
        """The labels of the alert: its scope's under test, what the rule adds, and `labels` on top; "" drops one."""
        alert = self.effective.alert
        names = {"instance": "a:9401", "target": "t", "model_name": self.model, "engine": "0", "uuid": "GPU-1"}
        found = {label: names[label] for label in alert.scope if label in names}
        found.update({"severity": self.effective.severity, "group": alert.group, **alert.also, **labels})
        return {label: value for label, value in found.items() if value}

    def case(
        self,
        title: str,
        series: Sequence[Series],
        after: float,
        *fires: Mapping[str, str],
        interval: float = 30.0,
        also: Sequence[Check] = (),
        for_: str | None = None,
    ) -> Case:
        """Return a case whose condition holds from `after` seconds on, checked once the alert's `for` has passed."""
        at = after + seconds(for_ or self.effective.for_) + 2 * interval
        return Case(
            alert=self.effective.alert.name, title=title, series=tuple(series),
            checks=(Check(at=at, fires=fires), *also), interval=interval,
        )  # fmt: skip


def histogram(name: str, labels: str, *parts: tuple[float, Mapping[str, float], float, float]) -> list[Series]:
    """Return the series of a histogram. Each part: observations per second, bound → share, mean, seconds."""
    bounds = list(parts[0][1])
    made: list[Series] = [
        (
            f'{name}_bucket{{{labels},le="{bound}"}}',
            tuple(grow(rate * shares[bound], s) for rate, shares, _, s in parts),
        )
        for bound in bounds
    ]
    made.append((f"{name}_count{{{labels}}}", tuple(grow(rate, s) for rate, _, _, s in parts)))
    made.append((f"{name}_sum{{{labels}}}", tuple(grow(rate * mean, s) for rate, _, mean, s in parts)))
    return made


#: The cases of one alert, from its knobs.
Cases = Callable[[Knobs], Iterator[Case]]
