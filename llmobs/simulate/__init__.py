"""An honest stand-in for a vLLM server: same endpoints, driven by scenarios; for demonstrations and tests.

`SimulatedServer` is the whole thing behind a port; `SimulatedVllm` the model of it, without clock and I/O. What it
models, and what it does not, is written at `llmobs.simulate.engine`.
"""

from llmobs.simulate.files import load, names
from llmobs.simulate.gpus import SimulatedGpus
from llmobs.simulate.http import SimulatedServer
from llmobs.simulate.scenario import Scenario
from llmobs.simulate.server import SimulatedVllm

__all__ = ["Scenario", "SimulatedGpus", "SimulatedServer", "SimulatedVllm", "load", "names"]
