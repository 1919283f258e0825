"""Put the plugin for vLLM into a folder, for a vLLM whose image is not rebuilt.

The folder is mounted into vLLM's container and named in its ``PYTHONPATH``: Python finds the packages there, vLLM the
entry points. Only pure Python is copied, so that the versions of Python in the two images need not be the same; what
else the plugin uses, vLLM has.

vLLM loads endpoint plugins only when ``VLLM_PLUGINS`` names them. `llmobs instrument` sets that variable; here, where
the command is not ours to change, a ``sitecustomize`` does, in the manner of opentelemetry-instrument.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

from llmobs.errors import LlmobsError

#: Distributions that vLLM does not bring; each is one package of the same name.
DISTRIBUTIONS = ("llmobs", "structlog")
_METADATA = ("METADATA", "entry_points.txt")

_SITE = '''\
"""Run by Python before vLLM: lets vLLM load the plugin's endpoint. Made by `llmobs plugin`."""

import os
import sys

if any("vllm" in word for word in sys.orig_argv):
    try:
        from llmobs.instrument.launch import allowed_plugins

        plugins = allowed_plugins(os.environ.get("VLLM_PLUGINS"))
        if plugins is not None:
            os.environ["VLLM_PLUGINS"] = plugins
    except Exception as error:
        sys.stderr.write(f"llmobs: the endpoint /stats is off: {error}\\n")

# The image may have a sitecustomize of its own, which this one hides: run it too.
_here = os.path.dirname(os.path.abspath(__file__))
for _folder in sys.path:
    _other = os.path.join(_folder, "sitecustomize.py")
    if os.path.abspath(_folder) != _here and os.path.isfile(_other):
        with open(_other, "rb") as _file:
            exec(compile(_file.read(), _other, "exec"))
        break
'''


def install(to: Path) -> None:
    """Copy the plugin below `to`, replacing what is there. Raises LlmobsError when it cannot."""
    try:
        for name in DISTRIBUTIONS:
            _install(name, to)
        (to / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    except (OSError, shutil.Error, importlib.metadata.PackageNotFoundError) as error:
        raise LlmobsError(f"the plugin cannot be copied to {to}: {error}") from None


def _install(name: str, to: Path) -> None:
    """Copy one package, and of its metadata what vLLM finds plugins by."""
    found = importlib.metadata.distribution(name)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    _copy(Path(spec.origin).parent, to / name)
    info = to / f"{name}-{found.version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    for file in _METADATA:
        if (text := found.read_text(file)) is not None:
            (info / file).write_text(text, encoding="utf-8")


def _copy(package: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    # Byte code belongs to one version of Python; the web page and the simulator are the sidecar's.
    shutil.copytree(package, to, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "page", "simulate"))
