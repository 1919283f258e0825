"""The command line: parse, call one function, print, exit code.

Exit codes: 0 good, 1 a run that failed, 2 bad input. A user's mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from llmobs import __version__
from llmobs.cli.generate import add_generate
from llmobs.cli.inside import add_instrument, add_plugin
from llmobs.cli.sidecar import add_config, add_pods, add_probe, add_run, add_simulate
from llmobs.errors import LlmobsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run `llmobs` with `argv` (default: the process's own) and return its exit code."""
    arguments = parser().parse_args(argv)
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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(prog="llmobs", description="Observability for vLLM, from the GPU to the alert.")
    top.add_argument("--version", action="version", version=f"llmobs {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_run(commands)
    add_probe(commands)
    add_config(commands)
    add_pods(commands)
    add_plugin(commands)
    add_generate(commands)
    add_simulate(commands)
    add_instrument(commands)
    return top
