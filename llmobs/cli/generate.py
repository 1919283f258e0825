"""`llmobs generate`: write every generated file, render deployments, patch a workload."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmobs.cli.settings import pairs
from llmobs.errors import ConfigError

if TYPE_CHECKING:
    pass


def add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `llmobs generate`."""
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
    pairs("--label", arguments.label)
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
