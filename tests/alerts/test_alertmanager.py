"""One incident is one page: our routing and inhibition in the real Alertmanager."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from llmobs.alerts.routing import alertmanager_file, inhibit_rules
from llmobs.alerts.rules import ALERTS
from llmobs.alerts.settings import AlertSettings, load
from tests.alerts.chain import Receiver, alertmanager, fire, inhibited, receiver
from tests.daemon import wait_for

_M = {"namespace": "llm", "model_name": "m"}
_T = {**_M, "instance": "a:9401", "target": "t"}
_R = {**_T, "engine": "0"}
_G = {**_M, "instance": "a:9401", "uuid": "GPU-1"}


def _alert(name: str, labels: Mapping[str, str], severity: str | None = None) -> dict[str, str]:
    return {"alertname": name, "severity": severity or ALERTS[name].severity, "group": ALERTS[name].group, **labels}


def _settle(sink: Receiver) -> None:
    """Wait for the first notification, and then as long again as every group needs for its own."""
    wait_for("notification", lambda: sink.notified, 20)
    time.sleep(2)


@pytest.fixture(scope="module")
def settings() -> AlertSettings:
    """The defaults, a hundred times faster: 0.3 s of group_wait."""
    return replace(load(None), time_scale=0.01)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file as it is shipped."""
    path = tmp_path_factory.mktemp("am") / "alertmanager.yaml"
    path.write_text(alertmanager_file(load(None))["alerts/alertmanager.yaml"], encoding="utf-8")
    return path


@pytest.mark.needs("amtool")
def test_amtool_accepts_it(config: Path) -> None:
    """`amtool check-config` finds no fault."""
    done = subprocess.run(["amtool", "check-config", str(config)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("amtool")
@pytest.mark.parametrize(
    ("labels", "receiver_name"),
    [
        ("alertname=VllmModelDown severity=critical model_name=m", "pager"),
        ("alertname=GpuLost severity=critical uuid=GPU-1", "pager"),
        ("alertname=VllmQueueLong severity=warning model_name=m", "tickets"),
        ("alertname=VllmRestarted severity=info model_name=m", "context"),
        ("alertname=LlmobsWatchdog severity=info", "dead-man"),
    ],
)
def test_routes(config: Path, labels: str, receiver_name: str) -> None:
    """Critical pages, warnings are tickets, info is context, the watchdog goes to the dead-man's switch."""
    command = ["amtool", "config", "routes", "test", f"--config.file={config}", f"--verify.receivers={receiver_name}"]
    done = subprocess.run([*command, *labels.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


#: Incident → the alerts it raises, and the one a person is told of.
_INCIDENTS = [
    (
        "the GPU falls off the bus and the only replica with it",
        [
            _alert("GpuXidNode", {**_G, "xid": "79"}),
            _alert("GpuLost", {**_G, "reason": "lost"}),
            _alert("GpuXidReset", {**_G, "xid": "119"}),
            _alert("VllmModelDown", _M),
            _alert("VllmTargetDown", _T),
            _alert("VllmEngineStalled", _R),
            _alert("VllmAvailabilityBudgetBurn", {**_M, "slo": "availability", "window": "1h"}),
        ],
        "GpuXidNode",
    ),
    (
        "out of memory, and the restart it causes",
        [
            _alert("VllmOutOfMemory", _T),
            _alert("VllmTargetDown", _T),
            _alert("VllmModelDown", _M),
            _alert("VllmRestarted", _T),
            _alert("VllmRestartLoop", _T),
            _alert("VllmErrorRatio", _M),
            _alert("VllmQueueLong", _R),
        ],
        "VllmOutOfMemory",
    ),
    (
        "every replica of a model is down",
        [
            _alert("VllmModelDown", _M),
            _alert("VllmTargetDown", _T),
            _alert("VllmTargetDown", {**_T, "instance": "b:9401"}),
            _alert("VllmTTFTBudgetBurn", {**_M, "slo": "ttft", "window": "1h"}),
            _alert("VllmErrorRatio", _M),
        ],
        "VllmModelDown",
    ),
    (
        "the KV cache is full",
        [
            _alert("VllmKVCacheExhausted", _R),
            _alert("VllmKVCacheHigh", _R),
            _alert("VllmQueueLong", _R),
            _alert("VllmPreemptionStorm", _M),
            _alert("VllmTTFTBudgetBurn", {**_M, "slo": "ttft", "window": "1h"}),
        ],
        "VllmKVCacheExhausted",
    ),
    (
        "overload: requests fail, start late and take long",
        [
            _alert("VllmAvailabilityBudgetBurn", {**_M, "slo": "availability", "window": "1h"}),
            _alert("VllmTTFTBudgetBurn", {**_M, "slo": "ttft", "window": "1h"}),
            _alert("VllmE2EBudgetBurn", {**_M, "slo": "e2e", "window": "6h"}),
            _alert("VllmTTFTP95High", _M),
        ],
        "VllmAvailabilityBudgetBurn",
    ),
    (
        "all monitoring is gone",
        [
            _alert("VllmMetricsAbsent", {}),
            _alert("VllmModelVanished", _M),
            _alert("LlmobsDown", {"namespace": "llm", "instance": "a:9401"}),
        ],
        "VllmMetricsAbsent",
    ),
]


@pytest.mark.needs("alertmanager")
@pytest.mark.parametrize(("incident", "alerts", "told"), _INCIDENTS, ids=[i[0] for i in _INCIDENTS])
def test_one_incident_is_one_page(
    tmp_path: Path, settings: AlertSettings, incident: str, alerts: list[dict[str, str]], told: str
) -> None:
    """Only the cause reaches a person, and it does so once."""
    with receiver() as sink, alertmanager(tmp_path, settings, sink) as url:
        fire(url, alerts)
        _settle(sink)
        names = [name for n in ("pager", "tickets", "context") for name in sink.names(n)]
    assert set(names) == {told}, incident
    assert len(names) == 1, incident


@pytest.mark.needs("alertmanager")
def test_without_inhibition_it_would_be_many(tmp_path: Path, settings: AlertSettings) -> None:
    """The same incident without our inhibition rules reaches people several times: the test above can fail."""
    with receiver() as sink, alertmanager(tmp_path, settings, sink, inhibit=False) as url:
        fire(url, _INCIDENTS[0][1])
        _settle(sink)
        names = [name for n in ("pager", "tickets", "context") for name in sink.names(n)]
    assert len(names) == 7


@pytest.mark.needs("alertmanager")
def test_what_must_not_be_silenced(tmp_path: Path, settings: AlertSettings) -> None:
    """Another model, another host, and anything more urgent than the source are still told."""
    other = {**_R, "model_name": "other"}
    elsewhere = {**_R, "instance": "b:9401"}
    alerts = [
        _alert("VllmModelDown", _M),
        _alert("VllmEngineStalled", other),
        _alert("GpuXidNode", {**_G, "xid": "79"}),
        _alert("GpuXidReset", {**_G, "instance": "b:9401", "uuid": "GPU-9", "xid": "95"}),
        # A ticket about one replica does not swallow the page about the same replica.
        _alert("VllmTargetDown", {**_T, "model_name": "third", "instance": "c:9401"}),
        _alert("VllmEngineStalled", {**_R, "model_name": "third", "instance": "c:9401"}),
        _alert("VllmQueueLong", {**elsewhere, "model_name": "fourth"}),
    ]
    with receiver() as sink, alertmanager(tmp_path, settings, sink) as url:
        fire(url, alerts)
        _settle(sink)
        told = {(a["alertname"], a.get("model_name", "")) for n in sink.notified for a in n.alerts}
        silenced = inhibited(url)
    assert ("VllmEngineStalled", "other") in told
    assert ("GpuXidReset", "m") in told
    assert ("VllmEngineStalled", "third") in told
    assert ("VllmQueueLong", "fourth") in told
    assert silenced["VllmModelDown"], "the GPU fault explains it"


def test_sources_come_from_the_alerts() -> None:
    """Every `inhibited_by` is in the file, and nothing else."""
    pairs = set()
    for rule in inhibit_rules(load(None)):
        source = rule["source_matchers"][0].split('"')[1]
        pairs |= {(source, target) for target in rule["target_matchers"][0].split('"')[1].split("|")}
    assert pairs == {(source, a.name) for a in ALERTS.values() for source in a.inhibited_by}
