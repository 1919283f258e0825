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
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmobs", description="Observability for vLLM, from the GPU to the alert.")
    parser.add_argument("--version", action="version", version=f"llmobs {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_probe(commands)
    _add_config(commands)
    _add_generate(commands)
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
    command.add_argument("--listen", "--web.listen-address", action="append", metavar="ADDRESS", help="default :9401")
    command.add_argument("--web.config.file", dest="web_config", metavar="FILE", help="TLS and basic auth")
    command.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    command.add_argument("--no-collector.gpu", dest="no_gpu", action="store_true", help="do not read NVML")
    command.add_argument("--otlp", action="store_true", help="also push the metrics by OTLP (OTEL_EXPORTER_OTLP_*)")


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
        flags["targets"] = [{"url": url} for url in arguments.target]
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


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from llmobs.generate import GENERATORS

    command = commands.add_parser("generate", help="write dashboards, alerts, and all other generated files")
    command.add_argument("kind", nargs="?", choices=list(GENERATORS), help="one kind of file (default: all)")
    command.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder to write below (default: .)")
    command.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    command.add_argument("--config", type=Path, metavar="FILE", help="YAML with your thresholds and names")
    command.add_argument("--format", metavar="FORMAT", help="another output format of this kind")
    command.add_argument("--without", action="append", default=[], metavar="PART", help="leave a part out")
    command.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    from llmobs.generate import GENERATORS, Options, check, generate, write

    options = Options(config=arguments.config, format=arguments.format, without=tuple(arguments.without))
    for kind in [arguments.kind] if arguments.kind else GENERATORS:
        files = generate(kind, options)
        if arguments.check:
            check(files, arguments.out)
        else:
            for path in write(files, arguments.out):
                print(path)
    return 0
