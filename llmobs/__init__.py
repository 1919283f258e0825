"""llmobs: observability for vLLM, from the GPU to the alert."""

__version__ = "0.1.0"
