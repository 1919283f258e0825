"""Tokens per second of the real vLLM: plain, with llmobs inside, and with vLLM's own tracing, side by side.

Four servers are up all the time; only one has load at a time, and the order changes from round to round:

    off        vLLM alone
    observed   with llmobs: logs, `/stats` read every second, one request in ten traced
    traced     the same with every request traced
    vllm       vLLM alone with its own `--otlp-traces-endpoint`

Spans go to a receiver in a process of its own that reads and forgets them. The tiny model's steps take a few
milliseconds, several times less than production's, so this is the hard case. Each figure is a server's tokens per
second divided by those of `off` in the same round; the CPU time of the API server process, where our code runs, is
shown beside, because neighbours disturb it less than the clock. Two servers that are the same differ by up to 5 % for
as long as they live (where their memory happens to lie), so all four are started anew several times. Run it alone on
the machine; LAUNCHES=12, ROUNDS=10, REQUESTS=96, STREAM=1, PROTOCOL=http/protobuf in the environment change it:

    python -m benchmarks instrument_pairs
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks._completions import measure, receiver, spread
from tests.instrument.conftest import Instrumented
from tests.real.server import VllmServer

ARMS = ("off", "observed", "traced", "vllm")


class _Figures:
    """What was measured so far, over all launches."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.costs: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.against: list[float] = []

    def show(self) -> None:
        """Print the medians of the ratios with their quartiles."""
        for arm in ARMS:
            cost = statistics.median(self.costs[arm])
            print(f"{arm:9} {spread(self.ratios[arm])} of off; API server CPU {cost:.2f} ms a request")
        print(f"traced is {spread(self.against)} of vllm", flush=True)


def main() -> None:
    """Run the launches; print each round, and the figures so far after each launch."""
    figures = _Figures()
    for _ in range(int(os.environ.get("LAUNCHES", "12"))):
        _launch(figures)
        figures.show()


def _launch(figures: _Figures) -> None:
    rounds, requests = int(os.environ.get("ROUNDS", "10")), int(os.environ.get("REQUESTS", "96"))
    stream = os.environ.get("STREAM") == "1"
    protocol = os.environ.get("PROTOCOL", "grpc")
    over_grpc = protocol == "grpc"
    with tempfile.TemporaryDirectory() as name, receiver(over_grpc) as collector:
        folder = Path(name)
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        with contextlib.ExitStack() as stack:
            own = ("--otlp-traces-endpoint", collector if over_grpc else f"{collector}/v1/traces")
            environment = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}
            observed = Instrumented(folder / "observed", launcher=(), OTEL_TRACES_SAMPLER_ARG="0.1", **otlp)
            traced = Instrumented(folder / "traced", launcher=(), **otlp)
            servers = {
                "off": VllmServer(folder / "off.log"),
                "observed": observed.server,
                "traced": traced.server,
                "vllm": VllmServer(folder / "vllm.log", *own, environment=environment),
            }
            for server in servers.values():  # they start at the same time, so that none has the machine's best memory
                stack.callback(server.stop)
            for server in servers.values():
                server.wait_ready()
            _measure(figures, servers, rounds, requests, stream)
            for arm, made in (("observed", observed), ("traced", traced)):
                document = made.stats()
                print(f"{arm}: {sum(document['hook_errors'].values()):.0f} hook errors, dropped {document['dropped']}")


def _measure(figures: _Figures, servers: dict[str, VllmServer], rounds: int, requests: int, stream: bool) -> None:
    for arm in ARMS:
        measure(servers[arm].port, servers[arm].process.pid, requests, stream=stream, poll=False)  # warm
    for number in range(rounds):
        turn = ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]
        speed: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for arm in turn if number % 2 else reversed(turn):
            server, poll = servers[arm], arm in ("observed", "traced")
            speed[arm], cpu[arm] = measure(server.port, server.process.pid, requests, stream=stream, poll=poll)
        for arm in ARMS:
            figures.ratios[arm].append(speed[arm] / speed["off"])
            figures.costs[arm].append(cpu[arm])
        figures.against.append(speed["traced"] / speed["vllm"])
        print(
            f"round {number:2}: off {speed['off']:5.0f} tokens/s, "
            + ", ".join(f"{arm} {figures.ratios[arm][-1]:.3f}" for arm in ARMS[1:]),
            flush=True,
        )


if __name__ == "__main__":
    main()
