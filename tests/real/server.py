"""Start the real vLLM on CPU with a tiny model, and stop it without leaving anything behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.conftest import VLLM_ENV

START_SECONDS = 240


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def tiny_model() -> Path:
    """Return the folder of the tiny model, making it once per environment."""
    folder = VLLM_ENV / "tiny-model-1"
    if not (folder / "config.json").exists():
        script = Path(__file__).with_name("tiny_model.py")
        subprocess.run([VLLM_ENV / "bin" / "python", script, folder], check=True, timeout=120, capture_output=True)
    return folder


class VllmServer:
    """One `vllm serve` process group. `command` replaces the program, to start it through something else."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        port: int | None = None,
        environment: dict[str, str] | None = None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LLMOBS_", "OTEL_", "PYTHON"))}
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        env["OMP_NUM_THREADS"] = "1"
        env["PATH"] = f"{VLLM_ENV / 'bin'}:{env.get('PATH', '')}"
        env |= environment or {}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(command or (str(VLLM_ENV / "bin" / "vllm"),)),
                    *("serve", str(tiny_model()), "--served-model-name", "tiny"),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                    *("--max-model-len", "1024", "--enforce-eager", "--dtype", "bfloat16", *arguments),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                # A process group to signal as a whole, but no session of its own: the kernel's autogroup scheduling
                # gives each session one share of the CPUs, and a client in another session was starved for seconds.
                preexec_fn=os.setpgrp,
            )

    def wait_ready(self) -> VllmServer:
        """Wait until /health answers 200; AssertionError with the end of the log when it does not."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"{self.url}/health", timeout=2).status == 200:
                    return self
            time.sleep(0.25)
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def engine_core_pids(self) -> list[int]:
        """Return the pids of the engine core processes of this server."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    title = (entry / "cmdline").read_bytes()
                    if title.startswith(b"VLLM::EngineCore") and os.getpgid(int(entry.name)) == self.process.pid:
                        pids.append(int(entry.name))
        return pids

    def stop(self) -> int | None:
        """Stop the whole process group and return the exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        return self.process.returncode

    def post(self, path: str, body: dict[str, Any], timeout: float = 120) -> dict[str, Any]:
        """Return the JSON answer of one POST."""
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def complete(self, prompt: str, max_tokens: int, **more: Any) -> dict[str, Any]:
        """Return one completion of exactly `max_tokens` tokens."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        return self.post("/v1/completions", {**body, **more})
