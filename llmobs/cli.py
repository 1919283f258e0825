"""The command line: parse, call one function, print, exit code.

Exit codes: 0 good, 1 a run that failed, 2 bad input. A user's mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmobs import __version__
from llmobs.errors import ConfigError, LlmobsError

if TYPE_CHECKING:
    from llmobs.config import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run `llmobs` with `argv` (default: the process's own) and return its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except LlmobsError as error:
        print(f"llmobs: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader left (`| head`); Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"llmobs: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmobs", description="Observability for vLLM, from the GPU to the alert.")
    parser.add_argument("--version", action="version", version=f"llmobs {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_probe(commands)
    _add_config(commands)
    _add_pods(commands)
    _add_plugin(commands)
    _add_generate(commands)
    _add_simulate(commands)
    _add_instrument(commands)
    return parser


def _settings_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings (LLMOBS_CONFIG)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, as in --set derive.window_seconds=30",
    )
    command.add_argument("--target", action="append", metavar="URL", help="a vLLM to watch; can be given several times")
    _add_target_extras(command)
    command.add_argument("--listen", "--web.listen-address", action="append", metavar="ADDRESS", help="default :9401")
    command.add_argument("--web.config.file", dest="web_config", metavar="FILE", help="TLS and basic auth")
    command.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    command.add_argument("--no-collector.gpu", dest="no_gpu", action="store_true", help="do not read NVML")
    command.add_argument("--otlp", action="store_true", help="also push the metrics by OTLP (OTEL_EXPORTER_OTLP_*)")


def _add_target_extras(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="constant label for the targets given with --target; an empty value is left out",
    )
    command.add_argument("--state-dir", metavar="DIR", help="LLMOBS_STATE_DIR of those targets")
    command.add_argument("--api-key-env", metavar="NAME", help="environment variable with those targets' API key")


def _target_extras(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say about every target given with --target: labels, state directory, API key."""
    labels = {name: value for name, value in _pairs("--label", arguments.label) if value}
    extras = {"labels": labels, "state_dir": arguments.state_dir, "api_key_env": arguments.api_key_env}
    return {key: value for key, value in extras.items() if value}


def _pairs(flag: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Return NAME=VALUE arguments as pairs. Raises ConfigError for anything else."""
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise ConfigError(f"{flag} {value}: expected NAME=VALUE, as in {flag} model_id=chat-8b")
    return [(v.partition("=")[0], v.partition("=")[2]) for v in values]


def _load(arguments: argparse.Namespace) -> Settings:
    """Return the settings that file, environment and flags give."""
    from llmobs.config import load

    flags: dict[str, Any] = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: expected KEY=VALUE, as in --set derive.window_seconds=30")
        flags[key] = value
    if arguments.target:
        flags["targets"] = [{"url": url, **_target_extras(arguments)} for url in arguments.target]
    if arguments.listen:
        flags["web.listen"] = arguments.listen
    if arguments.web_config:
        flags["web.config_file"] = arguments.web_config
    if arguments.log_level:
        flags["log.level"] = arguments.log_level
    if arguments.no_gpu:
        flags["gpu.enabled"] = False
    if arguments.otlp:
        flags["otlp.enabled"] = True
    file = arguments.config or (Path(os.environ["LLMOBS_CONFIG"]) if os.environ.get("LLMOBS_CONFIG") else None)
    return load(file, flags=flags)


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "run", help="run the daemon: watch vLLM and the GPUs, serve /metrics and the live page"
    )
    _settings_flags(command)
    command.add_argument(
        "--demo", action="store_true", help="without targets, watch http://localhost:8000, or a simulated engine"
    )
    command.add_argument("--scenario", metavar="NAME", help="with --demo: the simulated engine's scenario")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from llmobs.exporter.run import run

    settings = _load(arguments)
    if not (settings.targets or settings.discovery.files or settings.discovery.dns or arguments.demo):
        raise ConfigError("nothing to watch: give --target http://localhost:8000, a --config with targets, or --demo")
    run(settings, lambda: _load(arguments), demo=arguments.demo, scenario=arguments.scenario)
    return 0


def _add_probe(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("config", help="check or show the settings")
    command.add_argument("what", choices=["check", "show"])
    _settings_flags(command)
    command.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    from llmobs.config import to_dict
    from llmobs.engine.http import check_files
    from llmobs.exporter import discovery, listen, webconfig

    settings = _load(arguments)
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


def _add_pods(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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


def _add_plugin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("plugin", help="copy the plugin for vLLM into a folder for its PYTHONPATH")
    command.add_argument("--to", required=True, type=Path, metavar="DIR")
    command.set_defaults(run=_plugin)


def _plugin(arguments: argparse.Namespace) -> int:
    from llmobs.deploy.plugin import install

    install(arguments.to)
    print(arguments.to)
    return 0


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from llmobs.generate import GENERATORS

    command = commands.add_parser("generate", help="write dashboards, alerts, and all other generated files")
    command.add_argument("kind", nargs="?", choices=list(GENERATORS), help="one kind of file (default: all)")
    command.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder to write below (default: .)")
    command.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    command.add_argument("--config", type=Path, metavar="FILE", help="YAML with your thresholds and names")
    command.add_argument("--format", metavar="FORMAT", help="another output format of this kind")
    command.add_argument("--without", action="append", default=[], metavar="PART", help="leave a part out")
    _add_deploy_flags(command)
    command.set_defaults(run=_generate)


def _add_deploy_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("deploy", "only with `llmobs generate deploy`")
    group.add_argument("--for", dest="platform", choices=["compose", "k8s", "systemd"], help="render for one platform")
    group.add_argument("--target", action="append", default=[], metavar="URL", help="a vLLM to watch")
    group.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="constant label of the targets"
    )
    group.add_argument("--name", metavar="NAME", help="with --for k8s: name of your Deployment or StatefulSet")
    group.add_argument("--namespace", metavar="NAME", help="with --for k8s: its namespace")
    group.add_argument("--container", metavar="NAME", help="with --for k8s: name of the container that runs vLLM")
    group.add_argument("--image", metavar="IMAGE", help="the llmobs image")
    group.add_argument(
        "--with-plugin",
        action="store_true",
        help="with --patch: also the plugin inside vLLM, whose image stays as it is",
    )
    group.add_argument(
        "--patch",
        type=Path,
        metavar="FILE",
        help="with --for k8s: add the sidecar to the workload in FILE; prints the new YAML, and the diff on stderr",
    )


def _deploy_extra(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Return the deploy flags that were given, as options."""
    single = {"for": arguments.platform, "name": arguments.name, "namespace": arguments.namespace,
              "container": arguments.container, "image": arguments.image}  # fmt: skip
    given = [(key, value) for key, value in single.items() if value]
    given += [("target", url) for url in arguments.target]
    given += [("label", label) for label in arguments.label]
    given += [("plugin", "yes")] if arguments.with_plugin else []
    if (given or arguments.patch) and arguments.kind != "deploy":
        raise ConfigError("--for, --target, --label and --patch belong to `llmobs generate deploy`")
    _pairs("--label", arguments.label)
    return tuple(given)


def _patch(arguments: argparse.Namespace) -> int:
    """Print the workload with the sidecar, and what changed on stderr; on a terminal only what changed."""
    from llmobs.deploy import patch

    if arguments.platform not in (None, "k8s"):
        raise ConfigError(f"--patch is for Kubernetes; leave out --for {arguments.platform}")
    text, diff = patch(arguments.patch, _deploy_extra(arguments))
    if sys.stdout.isatty():
        print(diff, end="")
        print("Redirect stdout to a file to keep the new YAML.", file=sys.stderr)
    else:
        print(text, end="")
        print(diff, end="", file=sys.stderr)
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from llmobs.generate import GENERATORS, Options, check, generate, write

    if arguments.patch:
        return _patch(arguments)
    options = Options(
        config=arguments.config,
        format=arguments.format,
        without=tuple(arguments.without),
        extra=_deploy_extra(arguments),
    )
    for kind in [arguments.kind] if arguments.kind else GENERATORS:
        files = generate(kind, options)
        if arguments.check:
            check(files, arguments.out)
        else:
            for path in write(files, arguments.out):
                print(path)
    return 0


def _add_instrument(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "instrument",
        help="run vLLM with everything of llmobs inside it",
        usage="llmobs instrument [--check] [--engine-death-exit-code N] [--] vllm serve MODEL ...",
        description="Set what the installed vLLM needs, then become the given command: same exit code and signals.",
    )
    command.add_argument("--check", action="store_true", help="say which hooks this vLLM offers; start nothing")
    command.add_argument(
        "--engine-death-exit-code",
        type=int,
        metavar="N",
        help="exit with N when the engine died and vLLM would exit with 0, which restart managers take for success",
    )
    command.add_argument("command", nargs=argparse.REMAINDER, help="the command, usually vllm serve ...")
    command.set_defaults(run=_instrument)


def _instrument(arguments: argparse.Namespace) -> int:
    if arguments.check:
        from llmobs.instrument.check import check, report

        print(report(check()))
        return 0
    from llmobs.instrument.launch import launch

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return launch(command, engine_death_exit_code=arguments.engine_death_exit_code)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
