"""Add the sidecar to a user's Deployment or StatefulSet, changing nothing else in the file.

Lines are inserted and none is rewritten, so that the diff consists of additions only and comments, order and style of
the file stay. What was inserted is then checked by reading both texts as YAML.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llmobs.collector.text import Value, lines_of, plain
from llmobs.deploy import sidecar
from llmobs.deploy.settings import Settings, load
from llmobs.errors import ConfigError, GenerateError

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod")
_NONROOT = 65532


@dataclasses.dataclass(frozen=True, slots=True)
class _Workload:
    """One workload in the file: its pod template as node (where it stands) and as plain value (what it says)."""

    node: yaml.MappingNode
    spec: Mapping[str, Any]
    title: str


def patch(path: Path, extra: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return (new text, unified diff) for the workload in `path`.

    Raises ConfigError when the file cannot be read or holds no vLLM workload, GenerateError when it is written in a
    way that lines cannot be inserted into.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    flags = dict(extra)
    new = patched(text, load(None, extra), str(path), named=flags.get("container"), plugin="plugin" in flags)
    diff = difflib.unified_diff(
        text.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path.name}", f"b/{path.name}"
    )
    return new, "".join(diff)


def patched(text: str, settings: Settings, where: str, *, named: str | None = None, plugin: bool = False) -> str:
    """Return `text` with the sidecar inserted into its vLLM workload, and with `plugin` the plugin inside vLLM.

    `named` is the container that runs vLLM, if the user said so.
    """
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        hint = "; render the template first (helm template …)" if "{{" in text else ""
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}{hint}") from error
    workload, index = _find(nodes, documents, where, named)
    engine = workload.spec["containers"][index]
    if plugin and any(isinstance(e, dict) and e.get("name") == "PYTHONPATH" for e in engine.get("env") or []):
        raise ConfigError(
            f"{where}: vLLM's container sets PYTHONPATH itself; install llmobs in its image instead of --with-plugin"
        )
    inserts = _inserts(workload, index, settings, where, plugin=plugin)
    lines = text.splitlines()
    for at, new in sorted(inserts, key=lambda pair: -pair[0]):
        lines[at:at] = new
    result = "\n".join(lines) + "\n"
    _verify(documents, list(yaml.safe_load_all(result)), where)
    return result


def _find(nodes: list[Any], documents: list[Any], where: str, named: str | None) -> tuple[_Workload, int]:
    seen = []
    for node, document in zip(nodes, documents):
        if not isinstance(document, dict) or document.get("kind") not in _WORKLOADS:
            continue
        path = ("spec",) if document["kind"] == "Pod" else ("spec", "template", "spec")
        spec_node: Any = node
        spec: Any = document
        for key in path:
            spec_node, spec = _child(spec_node, key), spec.get(key) if isinstance(spec, dict) else None
        title = f"{document['kind']} {(document.get('metadata') or {}).get('name', '')!r}"
        containers = spec.get("containers") if isinstance(spec, dict) else None
        if not isinstance(spec_node, yaml.MappingNode) or not isinstance(containers, list):
            continue
        others = [*containers, *(spec.get("initContainers") or [])]
        if any(isinstance(c, dict) and c.get("name") == sidecar.NAME for c in others):
            raise ConfigError(f"{where}: {title} already has a container {sidecar.NAME!r}; nothing to do")
        seen.append(title)
        for index, item in enumerate(containers):
            if isinstance(item, dict) and (item.get("name") == named if named else _runs_vllm(item)):
                return _Workload(spec_node, spec, title), index
    if not seen:
        raise ConfigError(f"{where}: no {', '.join(_WORKLOADS[:-1])} or Pod in this file")
    wanted = f"container {named!r}" if named else "container that runs vLLM (name it with --container)"
    raise ConfigError(f"{where}: no {wanted} in {', '.join(seen)}")


def _runs_vllm(container: Mapping[str, Any]) -> bool:
    return "vllm" in " ".join([str(container.get("image", "")), *_words(container)])


def _words(container: Mapping[str, Any]) -> list[str]:
    """Return command and arguments as words, also those inside a shell's -c string."""
    words: list[str] = []
    for part in [*(container.get("command") or []), *(container.get("args") or [])]:
        words += _split(str(part))
    return words


def _split(text: str) -> list[str]:
    if not re.search(r"\s", text):
        return [text]
    try:
        return shlex.split(text)
    except ValueError:  # an open quotation mark
        return text.split()


def _inserts(
    workload: _Workload, index: int, settings: Settings, where: str, *, plugin: bool
) -> list[tuple[int, list[str]]]:
    spec = workload.node
    engine = workload.spec["containers"][index]
    key_env, key_name = _api_key(engine)
    user = _user(workload.spec, engine)
    made = sidecar.container(
        settings,
        _url(engine),
        user=user,
        extra_environment=key_env,
        api_key_env=key_name,
    )
    containers = _child(spec, "containers")
    assert isinstance(containers, yaml.SequenceNode)
    container = containers.value[index]
    if not isinstance(container, yaml.MappingNode) or container.flow_style:
        raise _flow(container, "containers", where)
    beside: list[Value] = [made, *([sidecar.plugin_container(settings, user=user)] if plugin else [])]
    volumes: list[Value] = [sidecar.volume(), *([sidecar.plugin_volume()] if plugin else [])]
    return [
        _items(spec, "initContainers", beside, where, before="containers"),
        _items(spec, "volumes", volumes, where, before="containers"),
        _items(container, "env", sidecar.engine_environment(plugin=plugin), where, after="image"),
        _items(container, "volumeMounts", sidecar.engine_mounts(plugin=plugin), where, after="image"),
    ]


def _items(
    parent: yaml.MappingNode, key: str, items: list[Value], where: str, *, before: str = "", after: str = ""
) -> tuple[int, list[str]]:
    """Return where to insert `items` into the list `key` of `parent`, and the lines; the list is made when missing."""
    found = _child(parent, key)
    if isinstance(found, yaml.SequenceNode) and found.value:
        if found.flow_style:
            raise _flow(found, key, where)
        indent = " " * found.start_mark.column
        return found.start_mark.line, lines_of(items, indent)
    if found is not None:
        raise GenerateError(
            f"{where}:{found.start_mark.line + 1}: {key!r} is empty; remove that line, so that it can be written anew"
        )
    indent = " " * parent.value[0][0].start_mark.column
    for name, value in parent.value:
        if name.value == (before or after):
            line = name.start_mark.line if before else value.end_mark.line + 1
            return line, [f"{indent}{key}:", *lines_of(items, indent + "  ")]
    raise GenerateError(
        f"{where}:{parent.start_mark.line + 1}: no {before or after!r} in this container; llmobs inserts beside it"
    )


def _flow(node: Any, key: str, where: str) -> GenerateError:
    return GenerateError(
        f"{where}:{node.start_mark.line + 1}: {key!r} is written in one line ([…] or {{…}}); write it in block style "
        "(kubectl get -o yaml does), so that lines can be inserted"
    )


def _child(node: Any, key: str) -> Any:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _url(engine: Mapping[str, Any]) -> str:
    """Return where the server listens, from its own arguments, else from the container's first port."""
    words = _words(engine)
    port = next((w.partition("=")[2] for w in words if w.startswith("--port=")), None)
    if port is None and "--port" in words[:-1]:
        port = words[words.index("--port") + 1]
    if port is None or not port.isdigit():
        ports = engine.get("ports") or []
        http = [p for p in ports if isinstance(p, dict) and "http" in str(p.get("name", ""))]
        port = str((http or ports)[0]["containerPort"]) if ports else "8000"
    scheme = "https" if any(w.startswith("--ssl-certfile") for w in words) else "http"
    return f"{scheme}://localhost:{port}"


def _user(spec: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the uid and gid that the sidecar needs said, or None when the image's own are right.

    A server with a uid of its own writes files that only the same uid can be sure to read. Root the sidecar is never.
    """
    pod, own = spec.get("securityContext") or {}, engine.get("securityContext") or {}
    if own.get("runAsUser"):
        return int(own["runAsUser"]), int(own.get("runAsGroup", pod.get("runAsGroup", 0)))
    return (_NONROOT, 0) if pod.get("runAsUser") == 0 else None


def _api_key(engine: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Value], ...], str | None]:
    """Return the variable that carries vLLM's API key, as vLLM's own container has it, and its name."""
    for entry in engine.get("env") or []:
        if isinstance(entry, dict) and entry.get("name") == "VLLM_API_KEY":
            return (entry,), "VLLM_API_KEY"
    return (), None


def _verify(before: list[Any], after: list[Any], where: str) -> None:
    """Raise GenerateError unless `after` is `before` with additions only."""

    def within(old: Any, new: Any) -> bool:
        if isinstance(old, dict) and isinstance(new, dict):
            return all(key in new and within(value, new[key]) for key, value in old.items())
        if isinstance(old, list) and isinstance(new, list):
            # Items are only ever put in front.
            return len(new) >= len(old) and all(map(within, old, new[len(new) - len(old) :]))
        return bool(old == new)

    if len(before) != len(after) or not within(plain(before), plain(after)):
        raise GenerateError(
            f"{where}: the sidecar cannot be inserted safely here; use deploy/kubernetes/components/sidecar"
        )
