"""Commands around the inside of vLLM: instrument, plugin."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def add_instrument(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs instrument`."""
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


def add_plugin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs plugin`."""
    command = commands.add_parser("plugin", help="copy the plugin for vLLM into a folder for its PYTHONPATH")
    command.add_argument("--to", required=True, type=Path, metavar="DIR")
    command.set_defaults(run=_plugin)


def _plugin(arguments: argparse.Namespace) -> int:
    from llmobs.deploy.plugin import install

    install(arguments.to)
    print(arguments.to)
    return 0
