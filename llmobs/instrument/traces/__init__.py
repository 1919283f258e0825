"""Traces: one per request, to an OTLP endpoint. Off, and without any cost, until an endpoint is named.

`observer` is what the start-up calls; it imports the OpenTelemetry SDK only when spans are wanted.
"""

from __future__ import annotations

from typing import Any

from llmobs.instrument.guard import logger
from llmobs.instrument.observer import Observer
from llmobs.instrument.runtime import Runtime
from llmobs.instrument.traces.settings import load


def observer(runtime: Runtime, vllm_config: Any) -> Observer | None:
    """Return what follows requests and makes their spans, or None when spans are off or cannot be made."""
    config = getattr(vllm_config, "observability_config", None)
    endpoint = getattr(config, "otlp_traces_endpoint", None)
    settings, problems = load(endpoint=endpoint)
    if runtime.client_index == 0:
        for problem in problems:
            logger.warning("llmobs: %s", problem)
    if settings is None:
        return None
    try:
        from llmobs.instrument.traces.observe import Traces
    except ImportError as error:
        logger.warning("llmobs: no spans: %s; pip install 'llmobs[otlp]'", error)
        return None
    return Traces(runtime, settings, vllm_config, vllm_traces=endpoint is not None)
