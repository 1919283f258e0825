"""The command line: parse, call one function, print, exit code.

Exit codes: 0 good, 1 a run that failed, 2 bad input. A user's mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmobs import __version__
from llmobs.errors import LlmobsError


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
    _add_generate(commands)
    return parser


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
