"""`docs/runbooks/`: one page per alert, for the person who was woken by it."""

from __future__ import annotations

from llmobs.alerts import advice
from llmobs.alerts.model import Alert, Knob
from llmobs.alerts.render import number, plain
from llmobs.alerts.rules import ALERTS
from llmobs.alerts.settings import AlertSettings, Effective

_PAGE = """\
# {name}

{question} **{severity}**{off}

{summary}

## What it means for users

{impact}

## Is it real?

Open the board `{dashboard}`, last hour, with the same time yesterday laid over it. Then ask Prometheus:

{confirm}

It is real when the figure stays beyond the limit{limit}, and the board shows the same. {single}

## Stop the bleeding

{stop}

## Find the cause

In the order of likelihood:

{causes}

First command:

```sh
{first}
```

{evidence}

## Prevent it

{prevent}

## When to tune it

{tune}

{knobs}
"""

_EVIDENCE = """\
Narrow it down by phase (`vllm_phase_ratio`): prefill grew → the input side (prompts, cache); decode grew → the model or
GPU side; queue grew → capacity. Then by failure (`vllm_request_failed_total` by `reason`): with `oom`, look at GPU memory
at once. The failure journal in the state directory of the replica has the events to the second.{trace}"""


def runbook_files(settings: AlertSettings) -> dict[str, str]:
    """Return the pages below ``docs/runbooks/``, and their list."""
    pages = {f"docs/runbooks/{name}.md": _page(settings.rules[name].general) for name in ALERTS}
    rows = "".join(
        f"| [{a.name}]({a.name}.md) | {settings.rules[a.name].general.severity}{'' if a.enabled else ' (off)'} | {a.question} |\n"
        for a in ALERTS.values()
    )
    pages["docs/runbooks/README.md"] = (
        f"# Runbooks\n\nOne page per alert.\n\n| alert | severity | question |\n|---|---|---|\n{rows}"
    )
    return pages


def _page(effective: Effective) -> str:
    alert = effective.alert
    return _PAGE.format(
        name=alert.name, question=alert.question, severity=effective.severity,
        off="" if alert.enabled else f" Off by default: {alert.off_because}.",
        summary=f"> {plain(alert.summary).replace('<factor>', '14.4').replace('<long>', '1h')}", impact=alert.impact, dashboard=alert.dashboard,
        confirm="\n".join(f"- `{query}`" for query in alert.confirm),
        limit=_limit(effective), single=_single(alert),
        stop=advice.STOP[alert.stop], causes="\n".join(f"{i}. {cause}" for i, cause in enumerate(alert.causes, 1)),
        first=alert.first, evidence=_EVIDENCE.format(trace=_trace(alert)) if alert.group not in ("gpu", "llmobs", "memory") else _plain_evidence(alert),
        prevent="\n\n".join(advice.PREVENT[key] for key in alert.prevent), tune=alert.tune, knobs=_knobs(alert, effective),
    )  # fmt: skip


def _limit(effective: Effective) -> str:
    knob = effective.alert.threshold
    if knob is None or effective.threshold is None:
        return ""
    return f" ({number(effective.threshold)} {knob.unit})"


def _single(alert: Alert) -> str:
    if "target" in alert.scope or "uuid" in alert.scope:
        return "Look whether it is this one alone (the hardware or the replica) or all of them (the traffic or the release)."
    return "Look whether one replica causes it or all."


def _trace(alert: Alert) -> str:
    if not alert.trace:
        return ""
    query = alert.trace.replace("<model>", "MODEL").replace("<threshold>", "LIMIT ")
    return f" In Tempo: `{query}`."


def _plain_evidence(alert: Alert) -> str:
    if alert.group == "llmobs":
        return "The sidecar's own log names what it could not do; `llmobs probe URL` reads one server once and says what is missing."
    return (
        "Keep the evidence before a reset or restart: `nvidia-smi -q`, `nvidia-bug-report.sh`, the kernel log, and the "
        "board's picture of memory, clocks and Xids of the hour before."
    )


def _knobs(alert: Alert, effective: Effective) -> str:
    knobs: dict[str, tuple[Knob, float | None]] = {}
    if alert.threshold is not None:
        knobs["threshold"] = (alert.threshold, effective.threshold)
    knobs.update({name: (knob, effective.params[name]) for name, knob in alert.params.items()})
    rows = "".join(f"| `{n}` | {number(v or 0)} {knob.unit} | {knob.why} |\n" for n, (knob, v) in knobs.items())
    table = f"| knob | value | why |\n|---|---|---|\n{rows}| `for` | {effective.for_} | |\n"
    example = f"\n```yaml\nalerts:\n  rules:\n    {alert.name}:\n      {_example(alert, effective)}\n```\n"
    silenced = ", ".join(f"[{n}]({n}.md)" for n in alert.inhibited_by)
    return (
        table + example + (f"\nSilenced while one of these fires for the same thing: {silenced}." if silenced else "")
    )


def _example(alert: Alert, effective: Effective) -> str:
    if alert.threshold is None:
        return "enabled: false"
    if "model_name" in alert.scope:
        return f"models:\n        MODEL: {{threshold: {number(effective.threshold or 0)}}}"
    return f"threshold: {number(effective.threshold or 0)}"
