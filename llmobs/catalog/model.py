"""What a metric of the contract is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram", "info"]

#: Labels of a fact about one engine of one model, about one target, and about one GPU.
ENGINE = ("target", "model_name", "engine")
TARGET = ("target",)
GPU = ("uuid",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of the contract.

    `help` is the HELP line: what the number is, exactly. `meaning` is for people: what it tells an operator.
    `source` is the fact or formula behind it. `fact` names the field of `EngineStats` (or of `GpuStats`) that is
    published unchanged; None when the value is derived. `values` lists closed label values; a counter with a closed
    label is published at 0 for every value its source can know.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str
    meaning: str = ""
    source: str = ""
    fact: str | None = None
    values: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
