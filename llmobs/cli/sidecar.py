"""Commands of the sidecar: run, probe, config, pods, simulate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from llmobs.cli.settings import load_settings, settings_flags
from llmobs.errors import ConfigError

if TYPE_CHECKING:
    pass


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs run`."""
    command = commands.add_parser(
        "run", help="run the daemon: watch vLLM and the GPUs, serve /metrics and the live page"
    )
    settings_flags(command)
    command.add_argument(
        "--demo", action="store_true", help="without targets, watch http://localhost:8000, or a simulated engine"
    )
    command.add_argument("--scenario", metavar="NAME", help="with --demo: the simulated engine's scenario")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from llmobs.exporter.run import run

    settings = load_settings(arguments)
    if not (settings.targets or settings.discovery.files or settings.discovery.dns or arguments.demo):
        raise ConfigError("nothing to watch: give --target http://localhost:8000, a --config with targets, or --demo")
    run(settings, lambda: load_settings(arguments), demo=arguments.demo, scenario=arguments.scenario)
    return 0


def add_probe(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs probe`."""
    command = commands.add_parser("probe", help="read one vLLM once and show what was found and what is missing")
    command.add_argument("url", help="http://host:port, or unix:/path/to.sock")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--source", choices=["auto", "stats", "metrics"], default="auto")
    command.add_argument("--api-key-file", metavar="FILE")
    command.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS")
    command.set_defaults(run=_probe)


def _probe(arguments: argparse.Namespace) -> int:
    from llmobs.config import TargetSettings, complete
    from llmobs.exporter.probe import probe

    url = arguments.url if "://" in arguments.url or arguments.url.startswith("unix:") else f"http://{arguments.url}"
    target = TargetSettings(
        url=url, source=arguments.source, api_key_file=arguments.api_key_file, timeout_seconds=arguments.timeout
    )
    text, readable = probe(complete(target, "URL"), as_json=arguments.json)
    print(text)
    return 0 if readable else 1


def add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs config`."""
    command = commands.add_parser("config", help="check or show the settings")
    command.add_argument("what", choices=["check", "show"])
    settings_flags(command)
    command.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    from llmobs.config import to_dict
    from llmobs.engine.http import check_files
    from llmobs.exporter import discovery, listen, webconfig

    settings = load_settings(arguments)
    if arguments.what == "show":
        import yaml

        print(yaml.safe_dump(to_dict(settings), sort_keys=False, allow_unicode=True), end="")
        return 0
    for target in settings.targets:
        check_files(target)
    discovery.read_files(settings.discovery)
    for address in settings.web.listen:
        listen.parse(address)
    if settings.web.config_file:
        webconfig.read(Path(settings.web.config_file))
    print(f"The settings can be used: {len(settings.targets)} targets, listening on {', '.join(settings.web.listen)}.")
    return 0


def add_pods(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs pods`."""
    command = commands.add_parser("pods", help="in Kubernetes: keep a file_sd file of a node's vLLM pods, for `run`")
    command.add_argument("--node", required=True, metavar="NAME", help="name of the node whose pods are watched")
    command.add_argument("--selector", default="app.kubernetes.io/name=vllm", metavar="SELECTOR", help="label selector")
    command.add_argument("--namespace", metavar="NAME", help="one namespace (default: all)")
    command.add_argument("--port", default="http", metavar="NAME|NUMBER", help="port of the API (default: http)")
    command.add_argument("--out", required=True, type=Path, metavar="FILE", help="file to write, ending in .json")
    command.add_argument("--interval", type=float, default=10.0, metavar="SECONDS")
    command.set_defaults(run=_pods)


def _pods(arguments: argparse.Namespace) -> int:
    from llmobs.deploy.pods import Cluster, Query, follow

    query = Query(node=arguments.node, selector=arguments.selector, namespace=arguments.namespace, port=arguments.port)
    follow(Cluster.from_pod(), query, arguments.out, arguments.interval)
    return 0


def add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs simulate`."""
    command = commands.add_parser("simulate", help="serve a simulated vLLM, for demonstrations and tests")
    command.add_argument("--scenario", default="demo", metavar="NAME|FILE", help="what happens (default: demo)")
    command.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--dialect", metavar="VERSION", help="vLLM version whose page to serve, as 0.10.2 or 0.7.3-v0")
    command.add_argument("--no-stats", action="store_true", help="serve /metrics only, as vLLM without llmobs")
    command.add_argument("--speed", type=float, default=1.0, help="simulated seconds per second (default: 1)")
    command.add_argument("--state-dir", type=Path, metavar="DIR", help="write the failure journal of crashes there")
    command.add_argument("--log-file", type=Path, metavar="FILE", help="write what vLLM would log of crashes there")
    command.add_argument("--list", action="store_true", help="list the scenarios and exit")
    command.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    import asyncio

    from llmobs.simulate import SimulatedServer, load, names
    from llmobs.simulate.http import serve

    if arguments.list:
        for name in names():
            print(f"{name:24} {load(name).description}")
        return 0

    def make(scenario: str, port: int) -> SimulatedServer:
        return SimulatedServer(
            scenario,
            host=arguments.host,
            port=port,
            dialect_name=arguments.dialect,
            serve_stats=not arguments.no_stats,
            speed=arguments.speed,
            state_dir=arguments.state_dir,
            log_file=arguments.log_file,
        )

    asyncio.run(serve(make, arguments.scenario, arguments.port, lambda line: print(line, flush=True)))
    return 0
