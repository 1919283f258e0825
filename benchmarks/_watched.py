"""A simulated vLLM with its GPUs and the daemon beside it, in one process: `python -m benchmarks._watched JSON`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from llmobs import log
from llmobs.config import (
    DeriveSettings,
    GpuSettings,
    LogSettings,
    Settings,
    TargetSettings,
    WebSettings,
    complete,
)
from llmobs.exporter.daemon import Daemon
from llmobs.simulate import SimulatedServer


async def watch(given: dict[str, Any]) -> None:
    """Run until told to stop. Every time of the daemon is shortened by the speed of the simulation."""
    speed, folder = given["speed"], Path(given["folder"])
    server = SimulatedServer(
        given["scenario"], port=given["engine_port"], speed=speed, state_dir=folder, log_file=folder / "vllm.log"
    )
    async with server:
        target = TargetSettings(
            url=server.url,
            name="vllm",
            labels=given["labels"],
            interval_seconds=max(0.2, 5 / speed),
            timeout_seconds=2.0,
            state_dir=str(folder),
            log_file=str(folder / "vllm.log"),
            cgroup=str(folder),
        )
        settings = Settings(
            targets=(complete(target, "targets[0]"),),
            derive=DeriveSettings(
                window_seconds=max(1.0, 60 / speed),
                peak_seconds=max(1.0, 60 / speed),
                stall_seconds=max(1.0, 30 / speed),
                start_budget_seconds=1800 / speed,
            ),
            gpu=GpuSettings(interval_seconds=max(0.3, 5 / speed)),
            web=WebSettings(listen=(f"127.0.0.1:{given['port']}",)),
            log=LogSettings(level="error", format="json"),
        )
        daemon = Daemon(settings, gpu_source=server.gpus, gpus_simulated=True, log_limit=log.configure(settings.log))
        await daemon.run(ready=lambda _: print("ready", flush=True))


if __name__ == "__main__":
    asyncio.run(watch(json.loads(sys.argv[1])))
