"""`docs/configuration.md`: every setting of the daemon and every variable of the part inside vLLM."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from typing import Any

from llmobs.collector.settings import Settings as CollectorSettings
from llmobs.config import DnsSettings, Settings, TargetSettings, leaves
from llmobs.deploy.settings import Settings as DeploySettings
from llmobs.instrument.settings import VARIABLES

#: Settings that are lists of groups; each group has a table of its own.
_LISTS = ("targets", "discovery.dns")

_INTRO = """\
# Settings

Generated from the code by `llmobs generate guides`; a test holds it complete.

`llmobs run` takes its settings from, the later winning over the earlier: defaults, a YAML file (`--config FILE` or
`LLMOBS_CONFIG`), the environment, flags. A key `a.b` is `a:` with `b:` below it in the file, `LLMOBS_A_B` in the
environment, and `--set a.b=…` on the command line. An unknown key is an error that names the nearest one.

```yaml
targets:
  - url: http://localhost:8000
    labels: {model_id: chat-8b}
    state_dir: /var/lib/llmobs
derive:
  window_seconds: 60
```

`llmobs config check` says whether settings can be used, `llmobs config show` prints what is in force. `SIGHUP` or
`POST /-/reload` reads the file again; one that cannot be used changes nothing and shows in
`llmobs_config_last_reload_successful`.
"""

_TARGETS = """
## Each target

`targets` is a list. In the environment `LLMOBS_TARGETS` is a comma-separated list of URLs; on the command line
`--target URL` can be given several times, and `--label NAME=VALUE`, `--state-dir DIR` and `--api-key-env NAME` then
hold for all of them.
"""

_DNS = """
## Each DNS name

`discovery.dns` is a list.
"""

_INSIDE = """
## Inside vLLM

The part that runs in vLLM's processes (`pip install llmobs` beside it) has variables only, because vLLM owns the
command line. Traces follow the standard `OTEL_*` variables.

| variable | what it does |
|---|---|
"""

_OTLP = """
## OTLP export of metrics

With `otlp.enabled` (or `--otlp`) the daemon also pushes. Where to is said by OpenTelemetry's own variables:

| variable | what it does |
|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` | address of the Collector; default `http://localhost:4317` |
| `OTEL_EXPORTER_OTLP_PROTOCOL`, `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL` | `grpc` (default) or `http/protobuf` |
| `OTEL_EXPORTER_OTLP_HEADERS` | headers, such as a token |
| `OTEL_EXPORTER_OTLP_CERTIFICATE` | authority of the Collector's certificate |
| `OTEL_EXPORTER_OTLP_TIMEOUT` | seconds after which one push is given up; default 10 |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | resource attributes; the service is `llmobs` by default |

Metrics keep the names, labels and exemplars of the contract. Three are sent also under the names of the GenAI
conventions: `gen_ai.server.request.duration`, `gen_ai.server.time_to_first_token`, `gen_ai.server.time_per_output_token`.
`llmobs_otlp_pushes_total` counts what became of the pushes.
"""  # noqa: E501 (one table row a line)

_GENERATORS = """
## What the generators take

`llmobs generate --config FILE` reads the same YAML file for all kinds; each reads its own part. Alerts and dashboards
describe theirs in their own guides.
"""


def text() -> str:
    """Return the page."""
    return "".join(
        (
            _INTRO,
            "\n## The daemon\n\n",
            *_table((key, hint, field) for key, field, hint in leaves(Settings) if key not in _LISTS),
            _TARGETS,
            "\n",
            *_table((key, hint, field) for key, field, hint in leaves(TargetSettings)),
            _DNS,
            "\n",
            *_table((key, hint, field) for key, field, hint in leaves(DnsSettings)),
            _INSIDE,
            *(f"| `{name}` | {what} |\n" for name, what in VARIABLES.items()),
            _OTLP,
            _GENERATORS,
            *_knobs("collector", CollectorSettings),
            *_knobs("deploy", DeploySettings),
        )
    )  # fmt: skip


def _table(rows: Any) -> Iterator[str]:
    yield "| key | type | default | what it is |\n|---|---|---|---|\n"
    for key, hint, field in rows:
        yield f"| `{key}` | {_type(hint)} | {_default(field)} | {field.metadata['doc']} |\n"


def _knobs(part: str, cls: type[Any]) -> Iterator[str]:
    """Yield the knobs of one part; what they mean is taken from the comment above each field."""
    hints, comments = typing.get_type_hints(cls), _comments(cls)
    yield f"\n### `{part}:`\n\n| key | type | default | what it is |\n|---|---|---|---|\n"
    for field in dataclasses.fields(cls):
        what = comments[field.name].replace("``", "`")
        yield f"| `{part}.{field.name}` | {_type(hints[field.name])} | {_default(field)} | {what} |\n"


def _comments(cls: type[Any]) -> dict[str, str]:
    """Return the `#:` comment above each field; a field without one shares that of the field before."""
    found: dict[str, str] = {}
    comment: list[str] = []
    fresh = False
    for line in inspect.getsource(cls).splitlines():
        stripped = line.strip()
        if stripped.startswith("#:"):
            comment = [*(comment if fresh else []), stripped[2:].strip()]
            fresh = True
        elif (name := stripped.partition(":")[0]).isidentifier() and ": " in stripped:
            found[name] = " ".join(comment)
            fresh = False
    return found


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        return _type(next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, typing.Mapping):
        return "names and values"
    return {str: "text", float: "number", int: "whole number", bool: "true or false"}.get(hint, "group")


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else None
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(value).items())
    if value is None or value == "" or (not isinstance(value, (bool, int, float)) and not value):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{v}`" for v in value)
    return f"`{value}`" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
