"""The generated configuration files."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from llmobs.catalog import METRICS, series_names
from llmobs.collector import collectors, files, prometheus
from llmobs.collector.components import KINDS, type_name
from llmobs.collector.parts import CONTENT_KEYS, CREDENTIAL_KEYS
from llmobs.collector.settings import Settings, load
from llmobs.collector.text import plain
from llmobs.errors import ConfigError
from llmobs.generate import Options, check

ROOT = Path(__file__).resolve().parents[2]
_FILES = files(Options())
_COLLECTORS = [f"collector/{name}.yaml" for name in collectors(Settings())]


def test_the_committed_files_are_current() -> None:
    """What is committed below collector/ is what the generator makes."""
    check(_FILES, ROOT)


def test_nothing_else_lies_among_the_generated_files() -> None:
    """Every file below collector/ is generated, so that none is left over from an older version."""
    there = {str(p.relative_to(ROOT)) for p in (ROOT / "collector").rglob("*") if p.is_file()}
    assert there == set(_FILES)


@pytest.mark.parametrize("name", _COLLECTORS)
def test_each_collector_file_is_complete(name: str) -> None:
    """Everything a pipeline names is configured in the file, under the same name."""
    document = yaml.safe_load(_FILES[name])
    connectors = document.get("connectors", {})
    for pipeline in document["service"]["pipelines"].values():
        for section in ("receivers", "processors", "exporters"):
            assert set(pipeline[section]) <= {*document[section], *connectors}
    assert set(document["service"]["extensions"]) == set(document["extensions"])


def test_the_agent_leaves_scraping_to_prometheus_when_told(tmp_path: Path) -> None:
    """Without scraping the agent has no Prometheus receiver, and the configuration stays sound."""
    config = tmp_path / "llmobs.yaml"
    config.write_text("collector: {scrape: false}\n")
    document = yaml.safe_load(files(Options(config=config))["collector/agent.yaml"])
    assert "prometheus" in yaml.safe_load(_FILES["collector/agent.yaml"])["receivers"]
    assert "prometheus" not in document["receivers"]
    assert document["service"]["pipelines"]["metrics"]["receivers"] == ["otlp"]


@pytest.mark.parametrize("version", ["0.117.0", "0.157.0"])
def test_component_names_fit_the_collector_version(version: str) -> None:
    """An older Collector gets only the names it knows, a newer one only today's."""
    settings = Settings(version=version)
    for collector in collectors(settings).values():
        document = collector.document(settings.release)
        for section in ("receivers", "processors", "exporters", "connectors", "extensions"):
            for component in document.get(section, {}):
                kind = component.partition("/")[0]
                new = {name for name, known in KINDS.items() if known.old}
                old = {known.old for known in KINDS.values() if known.old}
                # "otlp" is today's receiver and the old name of an exporter.
                wrong = new if version == "0.117.0" else old - {"otlp"} if section == "receivers" else old
                assert kind not in wrong


def test_an_older_collector_batches_in_a_processor() -> None:
    """A queue that cannot batch gets no such setting; the batch processor stands last in what is exported instead."""
    settings = Settings(version="0.117.0")
    for collector in collectors(settings).values():
        document = collector.document(settings.release)
        for exporter in document["exporters"].values():
            assert not {"sizer", "batch"} & set(plain(exporter).get("sending_queue", {}))
        for name, pipeline in document["service"]["pipelines"].items():
            processors = plain(pipeline)["processors"]
            assert ("batch" in processors) == (name != "traces/in")
            assert "batch" not in processors[:-1]


def test_the_queue_storage_keeps_its_reference_in_every_version() -> None:
    """The storage that a queue names exists in the same file."""
    for version in ("0.117.0", "0.157.0"):
        settings = Settings(version=version)
        document = collectors(settings)["gateway"].document(settings.release)
        exporter = document["exporters"][f"{type_name('otlp_grpc', settings.release)}/tempo"]
        assert exporter["sending_queue"]["storage"] in document["extensions"]


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.prompt.0.content",
        "gen_ai.completion.0.content", "gen_ai.tool.call.arguments", "llm.prompts", "input.value", "output.value",
        "traceloop.entity.input", "http.request.header.authorization", "http.request.body.content",
    ],
)  # fmt: skip
def test_redaction_removes_content_and_credentials(key: str) -> None:
    """Every known key that can hold what a user wrote, or a credential, is matched by a redaction pattern."""
    assert any(re.search(pattern, key) for pattern in (*CONTENT_KEYS, CREDENTIAL_KEYS))


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llmobs.input_length",
        "gen_ai.latency.time_to_first_token", "http.request.method", "gen_ai.tool.name", "gen_ai.output.type",
    ],
)  # fmt: skip
def test_redaction_keeps_what_explains_latency(key: str) -> None:
    """Attributes without content stay."""
    assert not any(re.search(pattern, key) for pattern in (*CONTENT_KEYS, CREDENTIAL_KEYS))


def test_sampling_keeps_what_people_look_for() -> None:
    """Errors, OOM, slow, preempted and canary requests, token detail, and a share of the rest each have a policy."""
    policies = yaml.safe_load(_FILES["collector/gateway.yaml"])["processors"]["tail_sampling"]["policies"]
    names = [p["name"] for p in policies]
    assert names == ["errors", "oom", "slow", "preempted", "canary", "token detail", "a share of the rest"]
    assert all(p["type"] in p for p in policies)


def test_latency_limits_per_model_replace_the_default(tmp_path: Path) -> None:
    """A model with limits of its own has its own policy and is left out of the default one."""
    config = tmp_path / "llmobs.yaml"
    config.write_text('collector:\n  slow_by_model:\n    big "one":\n      time_to_first_token: 9.5\n')
    made = files(Options(config=config))["collector/gateway.yaml"]
    policies = {p["name"]: p for p in yaml.safe_load(made)["processors"]["tail_sampling"]["policies"]}
    (default,) = policies["slow"]["ottl_condition"]["span"]
    (own,) = policies['slow big "one"']["ottl_condition"]["span"]
    assert 'attributes["gen_ai.request.model"] != "big \\"one\\""' in default
    assert 'attributes["gen_ai.request.model"] == "big \\"one\\""' in own
    assert "> 9.5" in own


def test_tempo_has_no_block_that_version_3_refuses() -> None:
    """The blocks, processors and flat overrides of Tempo 2 are gone, and each path lies on the one volume."""
    document = yaml.safe_load(_FILES["collector/tempo.yaml"])
    assert not {"ingester", "ingester_client", "compactor", "metrics_generator_client"} & set(document)
    assert set(document["overrides"]) == {"defaults"}
    assert "local-blocks" not in _FILES["collector/tempo.yaml"]
    paths = re.findall(r"(?:path|dir): (\S+)", _FILES["collector/tempo.yaml"])
    assert paths
    assert all(p.startswith("/var/tempo/") for p in paths)


def test_tempo_keeps_traces_as_long_in_scheduler_and_worker(tmp_path: Path) -> None:
    """The knob for retention reaches both components that apply it."""
    config = tmp_path / "llmobs.yaml"
    config.write_text("collector:\n  trace_days: 3\n")
    document = yaml.safe_load(files(Options(config=config))["collector/tempo.yaml"])
    worker = document["backend_worker"]["compaction"]["block_retention"]
    scheduler = document["backend_scheduler"]["provider"]["compaction"]["compaction"]["block_retention"]
    assert worker == scheduler == "72h"


@pytest.mark.needs("promtool")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """``promtool`` finds nothing wrong with prometheus.yaml and the rules it loads."""
    path = tmp_path / "prometheus.yaml"
    path.write_text(_FILES["collector/prometheus.yaml"])
    for folder in ("rules", "targets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "targets" / "vllm.yaml").write_text("- targets: [localhost:9401]\n")
    for rules in (ROOT / "alerts").glob("*.rules.yaml"):
        shutil.copy(rules, tmp_path / "rules")
    done = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@pytest.mark.needs("prometheus")
def test_prometheus_starts_with_these_flags(tmp_path: Path) -> None:
    """The real server becomes ready with the shipped configuration and flags, and keeps exemplars."""
    path = tmp_path / "prometheus.yaml"
    path.write_text(_FILES["collector/prometheus.yaml"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    replaced = {"--config.file": path, "--storage.tsdb.path": tmp_path / "data"}
    flags = [f"{name}={replaced.get(name, value)}" if value else name for name, _, value in
             (flag.partition("=") for flag in prometheus.flags(Settings()))]  # fmt: skip
    server = subprocess.Popen(
        ["prometheus", *flags, f"--web.listen-address={address}"], stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 30
        while server.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                ready = urllib.request.urlopen(f"http://{address}/-/ready", timeout=1)
                assert ready.status == 200
                break
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://{address}/api/v1/status/config", timeout=5) as answer:
            assert b"max_exemplars: 200000" in answer.read()
    finally:
        server.terminate()
        server.communicate(timeout=20)


def test_prometheus_scrapes_only_what_we_ship() -> None:
    """Prometheus never scrapes vLLM itself."""
    document = yaml.safe_load(_FILES["collector/prometheus.yaml"])
    targets = [t for job in document["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    assert targets == ["llmobs:9401", "localhost:9090", "alertmanager:9093", "collector:8888", "tempo:3200"]


def test_exemplars_open_traces_under_both_names() -> None:
    """Grafana follows trace_id (ours) and traceID (Tempo's generator) to the Tempo data source."""
    sources = yaml.safe_load(_FILES["collector/grafana/provisioning/datasources/llmobs.yaml"])["datasources"]
    by_uid = {s["uid"]: s for s in sources}
    assert set(by_uid) == {"prometheus", "tempo", "loki"}
    destinations = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destinations == [
        {"name": "trace_id", "datasourceUid": "tempo"},
        {"name": "traceID", "datasourceUid": "tempo"},
    ]
    assert by_uid["tempo"]["jsonData"]["tracesToLogsV2"]["datasourceUid"] == "loki"
    assert by_uid["tempo"]["jsonData"]["tracesToMetrics"]["datasourceUid"] == "prometheus"


def test_queries_of_the_data_sources_name_the_contract() -> None:
    """Each metric that a trace links to exists in the contract."""
    known = {name for metric in METRICS.values() for name in series_names(metric)}
    text = _FILES["collector/grafana/provisioning/datasources/llmobs.yaml"]
    used = set(re.findall(r"\b(vllm_\w+|llmobs_\w+|nvidia_gpu_\w+)\b", text))
    assert used
    assert used <= known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("collector: {longest_reqest: 3}", "did you mean 'longest_request'"),
        ("collector: {slow: {inter_tokn: 3}}", "did you mean 'inter_token'"),
        ("collector: {content: maybe}", "redact, keep"),
        ("collector: {keep_percent: 200}", "more than 100"),
        ("collector: {longest_request: -1}", "longest_request"),
        ("collector: {kubernetes: 1}", "kubernetes"),
        ("collector: [1]", "must be a mapping"),
        ("collector: {version: latest}", "0.157.0"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_knob_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """An unknown or unusable knob is one line that says what would be right."""
    config = tmp_path / "llmobs.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(config)
    assert "\n" not in str(caught.value)


_OTELCOL = next((p for p in ("otelcol-contrib", "otelcol") if shutil.which(p)), None)
_TEMPO = shutil.which("tempo")

# These two exist only where the binary is there: no package manager installs them, so that requiring every component
# must not mean requiring these.
if _OTELCOL:

    @pytest.mark.parametrize("name", _COLLECTORS)
    def test_the_collector_takes_its_configuration(name: str) -> None:
        """``otelcol validate`` accepts each file."""
        command = [str(_OTELCOL), "validate", f"--config={ROOT / name}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


if _TEMPO:

    def test_tempo_takes_its_configuration() -> None:
        """``tempo -config.verify`` accepts the file."""
        command = [str(_TEMPO), "-config.verify", f"-config.file={ROOT / 'collector/tempo.yaml'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
