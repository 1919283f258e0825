"""Recording rules of the alerts, as the dashboards may query them."""

from __future__ import annotations

from llmobs.alerts.recording import recorded_labels
from llmobs.alerts.settings import load


def labels_of_recorded() -> dict[str, tuple[str, ...]]:
    """Name of a recorded series → its labels, those of the alerts' scope included."""
    scope = load(None).scope
    return {name: (*labels, *scope) for name, labels in recorded_labels().items()}
