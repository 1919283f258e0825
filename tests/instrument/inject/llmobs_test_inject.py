"""A plugin of vLLM that makes things fail, for tests only. It is found through PYTHONPATH, in every process.

INJECT_HOOKS=FILE     while FILE exists, the hooks of llmobs named in it raise, all of them for *
INJECT_LOAD=KIND      loading the model raises this
INJECT_STEP=FILE      once FILE exists, the worker's step raises what is named in it: oom, host_oom, nccl
"""

import os
from pathlib import Path


def install() -> None:
    if os.environ.get("INJECT_HOOKS"):
        _break_hooks(Path(os.environ["INJECT_HOOKS"]))
    if os.environ.get("INJECT_STEP") or os.environ.get("INJECT_LOAD"):
        _break_worker(Path(os.environ.get("INJECT_STEP", "/nonexistent")), os.environ.get("INJECT_LOAD"))


def _break_hooks(switch: Path) -> None:
    from llmobs.instrument.guard import Guard

    if hasattr(Guard, "broken"):
        return
    Guard.broken = True
    run = Guard.run

    def raising(self, body, *args):
        names = switch.read_text().split() if switch.exists() else ()
        if self.name not in names and "*" not in names:
            return run(self, body, *args)

        def boom(*_args):
            raise RuntimeError(f"injected into {self.name}")

        return run(self, boom, *args)

    Guard.run = raising


def _break_worker(switch: Path, load: str | None) -> None:
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    if hasattr(Worker, "broken"):
        return
    Worker.broken = True
    original = Worker.execute_model
    errors = {
        "oom": lambda: torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.06 GiB "
            "is free."
        ),
        "host_oom": lambda: MemoryError(),
        "nccl": lambda: RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:2027, unhandled system error"),
    }

    def execute_model(self, scheduler_output):
        if scheduler_output.total_num_scheduled_tokens and switch.exists():
            error = errors[switch.read_text().strip()]
            raise error()
        return original(self, scheduler_output)

    def load_model(self, *args, **kwargs):
        if load:
            error = errors[load]
            raise error()
        return original_load(self, *args, **kwargs)

    Worker.execute_model = execute_model
    original_load, Worker.load_model = Worker.load_model, load_model
