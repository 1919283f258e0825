"""The alerts, by what they are about. `ALERTS` maps a name to its `Alert`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llmobs.alerts.model import Alert
from llmobs.alerts.rules.budgets import BUDGETS
from llmobs.alerts.rules.canary import CANARY
from llmobs.alerts.rules.causes import CAUSES
from llmobs.alerts.rules.clients import CLIENTS
from llmobs.alerts.rules.down import DOWN
from llmobs.alerts.rules.gpu import GPUS
from llmobs.alerts.rules.memory import MEMORY
from llmobs.alerts.rules.own import OWN
from llmobs.alerts.rules.published import PUBLISHED

__all__ = ["ALERTS"]

ALERTS: Mapping[str, Alert] = MappingProxyType(
    {a.name: a for a in (*DOWN, *PUBLISHED, *CAUSES, *CLIENTS, *MEMORY, *GPUS, *BUDGETS, *CANARY, *OWN)}
)
