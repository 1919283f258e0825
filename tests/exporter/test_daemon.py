"""The daemon as a process among targets that misbehave: all of them get a reason, and the healthy one is not hurt."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon, wait_for
from tests.engine import hostile
from tests.engine.hostile import FAULTS, GOOD_PAGE, Servers

SECRET = "sk-planted-secret-7f3a"
HOSTILE_NAMES = 'evil" \\ {} # é'
FAST = {"interval_seconds": 0.2, "timeout_seconds": 0.5, "health_timeout_seconds": 0.2}


def target(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "url": url, **FAST, **more}


@pytest.fixture(scope="module")
def peers() -> Iterator[Servers]:
    with hostile.servers() as made:
        yield made


def labels_page() -> str:
    """A page whose labels are hostile: long, many, quoted."""
    running = 'vllm:num_requests_running{engine="0",model_name="%s"} 1\n'
    finished = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="r%d"} 1\n'
    escaped = HOSTILE_NAMES.replace("\\", r"\\").replace('"', r"\"") + r"\n"
    return running % escaped + running % ("x" * 10_000) + "".join(finished % i for i in range(3000))


@pytest.fixture(scope="module")
def among_faults(peers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that watches every kind of broken server, and a healthy one with an API key."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "key").write_text(SECRET)
    with hostile.full_backlog() as hangs:
        targets = [
            *(
                target(name, peers.start(name, handler), source="metrics", interval_seconds=1, timeout_seconds=1)
                for name, (handler, _) in FAULTS.items()
            ),
            target("refuses", "http://127.0.0.1:1"),
            target("no_dns", "http://nowhere.invalid:1", timeout_seconds=3),
            target("hangs_in_connect", hangs),
            target("no_key", "http://127.0.0.1:1", api_key_file=str(folder / "none")),
            target("labels", peers.start("labels", hostile.page(labels_page()))),
            target("healthy", peers.start("healthy", hostile.page(GOOD_PAGE)), api_key_file=str(folder / "key")),
            target(
                "refuses_key", peers.start("refuses_key", FAULTS["status_401"][0]), api_key_file=str(folder / "key")
            ),
        ]
        with Daemon(folder, {"targets": targets, "gpu": {"enabled": False}}) as daemon:
            wait_for(
                "reading of every target",
                lambda: all(t["error"] or t["engines"] for t in daemon.state()["targets"]),
                20,
            )
            yield daemon


def test_every_broken_target_has_its_reason_and_the_healthy_one_its_figures(among_faults: Daemon) -> None:
    """Each broken target is down with the right reason in the metrics; the healthy one is published as if alone."""
    expected = {name: reason for name, (_, reason) in FAULTS.items() if reason != "any"}
    expected |= {"refuses": "refused", "no_dns": "dns", "hangs_in_connect": "timeout"}
    expected |= {"no_key": "auth", "refuses_key": "auth"}
    # On a busy machine a flood may last until the deadline.
    floods = {name for name, reason in expected.items() if reason == "too_large" or name == "gzip_that_goes_on"}

    def as_expected() -> bool:
        errors = {t["name"]: t["error"] and t["error"]["reason"] for t in among_faults.state()["targets"]}
        wrong = {name: errors.get(name) for name, reason in expected.items() if errors.get(name) != reason}
        return {name for name, reason in wrong.items() if not (name in floods and reason == "timeout")} == set()

    wait_for("state of every target as expected", as_expected, 20)
    found = among_faults.series()
    assert found["vllm_target_error", frozenset({("target", "refuses"), ("reason", "refused")})] == 1
    for name in expected:
        assert found["vllm_up", frozenset({("target", name)})] == 0
        about = {k for k, _ in found if k == "vllm_num_running_requests"}
        assert about
        assert not [k for k in found if k[0] == "vllm_num_running_requests" and ("target", name) in k[1]]
    assert among_faults.value("vllm_up", target="healthy") == 1
    assert among_faults.value("vllm_request_waiting_queue_length", target="healthy") == 2
    assert among_faults.value("llmobs_nvml_error", reason="disabled") == 1


def test_the_healthy_target_is_read_on_time(among_faults: Daemon, peers: Servers) -> None:
    """Two dozen hanging, flooding and lying neighbours do not slow its cycles down."""

    def readings() -> int:
        return sum(name == "healthy" and " /metrics " in head for name, head in peers.requests)

    before = readings()
    wait_for("eight readings", lambda: readings() >= before + 8, 4.0)


def test_hostile_labels_are_escaped_cut_capped_and_counted(among_faults: Daemon) -> None:
    """Quotes and newlines survive the round trip, ten kilobytes are cut, and three thousand values are 64."""
    series = among_faults.series()
    models = {dict(labels)["model_name"] for name, labels in series if name == "vllm_num_running_requests"}
    assert HOSTILE_NAMES + "\n" in models
    assert max(len(model) for model in models) == 256
    finished = [k for k in series if k[0] == "vllm_request_finished_total" and ("target", "labels") in k[1]]
    assert len(finished) == 64
    first = among_faults.value("llmobs_dropped_label_sets_total", target="labels")
    assert first is not None
    assert first >= 3000 - 64
    wait_for(
        "more of them", lambda: (among_faults.value("llmobs_dropped_label_sets_total", target="labels") or 0) > first
    )


def test_openmetrics_of_a_hostile_neighbourhood_parses(among_faults: Daemon) -> None:
    """The strict parser reads the page."""
    assert among_faults.series(openmetrics=True)


def test_no_output_holds_the_api_key(among_faults: Daemon) -> None:
    """Neither metrics, state, page, probe, errors nor the log show the key that is sent with each request."""
    paths = [
        "/metrics",
        "/api/v1/state",
        "/",
        "/probe?target=healthy",
        "/probe?target=refuses_key",
        f"/{SECRET}",
        "/-/ready",
    ]
    for path in paths:
        for accept in ("text/plain", "application/openmetrics-text"):
            assert SECRET.encode() not in among_faults.get(path, {"Accept": accept})[1], path
    assert SECRET not in among_faults.log.read_text()
    shown = subprocess.run(
        [sys.executable, "-m", "llmobs", "config", "show", "--config", str(among_faults.config)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert SECRET not in shown.stdout + shown.stderr


def test_the_log_is_json_and_does_not_repeat_itself(among_faults: Daemon) -> None:
    """A dead target is said once, not each cycle; no traceback was ever needed."""
    events = among_faults.events()
    per_target = [e for e in events if e.get("target") == "refuses"]
    assert 1 <= len(per_target) <= 3
    assert not [e for e in events if e["event"] in ("cycle_failed", "task_failed")]
    assert "Traceback" not in among_faults.log.read_text()


def test_a_daemon_whose_targets_are_down_is_ready(among_faults: Daemon) -> None:
    """Ready is a finished cycle, also one that found a target down."""
    assert among_faults.get("/-/ready")[0] == 200


def test_sigterm_while_targets_hang(peers: Servers, tmp_path: Path) -> None:
    """The daemon ends within two seconds with 0, in the middle of cycles that hang."""
    with hostile.full_backlog() as hangs:
        slow = [target("a", hangs, timeout_seconds=60), target("b", peers.start("x", hostile.hang), timeout_seconds=60)]
        with Daemon(tmp_path, {"targets": slow, "gpu": {"enabled": False}}) as daemon:
            time.sleep(1.2)  # both are in a cycle now
            code, seconds = daemon.stop()
    assert code == 0
    assert seconds < 2
    assert "Traceback" not in daemon.log.read_text()


def test_sigterm_while_a_name_server_hangs(tmp_path: Path) -> None:
    """A look-up that never returns in its thread does not keep the process alive."""
    patched = (
        "import socket, sys, time\n"
        "real = socket.getaddrinfo\n"
        "socket.getaddrinfo = lambda host, *a, **k: time.sleep(60) if 'hangs' in str(host) else real(host, *a, **k)\n"
        "from llmobs.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    arguments = ["run", "--listen", f"127.0.0.1:{port}", "--target", "http://hangs.invalid:1", "--no-collector.gpu"]
    process = subprocess.Popen([sys.executable, "-c", patched, *arguments], stderr=subprocess.PIPE)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    try:
        wait_for("listening", answers)
        time.sleep(1.2)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - started < 2
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def changing(peers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon with one configured target and one found in a file."""
    folder = tmp_path_factory.mktemp("changing")
    sd = folder / "sd.json"
    url = peers.start("found", hostile.page(GOOD_PAGE))
    sd.write_text(json.dumps([{"targets": [url.removeprefix("http://")], "labels": {"team": "x", "__meta_y": "z"}}]))
    config = {
        "targets": [target("fixed", peers.start("fixed", hostile.page(GOOD_PAGE)))],
        "discovery": {"files": [str(folder / "sd*.json")], "refresh_seconds": 0.2},
        "gpu": {"enabled": False},
    }
    with Daemon(folder, config) as daemon:
        wait_for("both targets", lambda: daemon.value("llmobs_targets", discovery="file") == 1)
        yield daemon, sd


def up(daemon: Daemon) -> dict[str, float]:
    return {dict(labels)["target"]: value for (name, labels), value in daemon.series().items() if name == "vllm_up"}


def test_targets_of_a_file_come_and_go(changing: tuple[Daemon, Path]) -> None:
    """A target added to the file is watched with its labels; a broken file keeps it; a removed one leaves nothing."""
    daemon, sd = changing
    text = sd.read_text()
    name = json.loads(text)[0]["targets"][0]
    wait_for("the target", lambda: up(daemon).get(name) == 1)
    labels = [dict(labels) for series, labels in daemon.series() if series == "vllm_up"]
    assert [found for found in labels if found["target"] == name] == [{"target": name, "team": "x"}]
    for broken in ("{", '[{"targets": ["a:1"], "labels": ["x"]}]', '[{"targets": 5}]'):
        sd.write_text(broken)
        time.sleep(0.5)
        assert name in up(daemon), broken
    sd.write_text("[]")
    wait_for("its end", lambda: name not in up(daemon))
    assert not [labels for _, labels in daemon.series() if ("target", name) in labels]
    sd.write_text(text)
    wait_for("its return", lambda: name in up(daemon))


@pytest.mark.parametrize("how", ["request", "SIGHUP"])
def test_a_bad_reload_keeps_the_old_configuration(changing: tuple[Daemon, Path], how: str) -> None:
    """A mistake in the file changes nothing but the metric, and the next good reload is taken."""
    daemon, _ = changing
    good = daemon.config.read_text()

    def reload() -> int:
        if how == "request":
            return daemon.get("/-/reload", method="POST")[0]
        daemon.process.send_signal(signal.SIGHUP)
        return 0

    daemon.config.write_text('{"targets": [{"url": "http://a", "nonsense": 1}]}')
    assert reload() in (500, 0)
    wait_for("the metric", lambda: daemon.value("llmobs_config_last_reload_successful") == 0)
    assert up(daemon)["fixed"] == 1
    document = json.loads(good)
    document["targets"][0]["labels"] = {"canary": how}
    daemon.config.write_text(json.dumps(document))
    assert reload() in (200, 0)
    wait_for("the new label", lambda: daemon.value("vllm_up", target="fixed", canary=how) == 1)
    assert daemon.value("llmobs_config_last_reload_successful") == 1
    daemon.config.write_text(good)
    reload()


def test_counters_survive_a_changed_setting(changing: tuple[Daemon, Path]) -> None:
    """What is known about a target is kept when only its settings change."""
    daemon, _ = changing
    document = json.loads(daemon.config.read_text())
    age = daemon.value("vllm_decode_tokens_total", target="fixed")
    document["targets"][0]["timeout_seconds"] = 0.6
    daemon.config.write_text(json.dumps(document))
    assert daemon.get("/-/reload", method="POST")[0] == 200
    assert daemon.value("vllm_decode_tokens_total", target="fixed") == age


def llmobs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmobs", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_port_that_is_taken_ends_with_one_line(changing: tuple[Daemon, Path]) -> None:
    """The second daemon says what to do, and exits with 1."""
    daemon, _ = changing
    found = llmobs("run", "--target", "http://a", "--listen", f"127.0.0.1:{daemon.port}")
    assert found.returncode == 1
    assert "choose another with --listen" in found.stderr
    assert "Traceback" not in found.stderr


def test_probe_shows_what_is_there_and_what_is_missing(peers: Servers) -> None:
    """The table names source, dialect and figures, and says why others are missing; --json says the same."""
    from tests.engine.conftest import captured

    url = peers.start("probe", hostile.page(captured("vllm-0.32-single-small-load")))
    table = llmobs("probe", url)
    assert table.returncode == 0
    for word in ("vllm-v1", "metrics", "vllm_num_running_requests", "missing", "without speculative decoding"):
        assert word in table.stdout
    document = json.loads(llmobs("probe", url, "--json").stdout)
    values = {m["metric"]: m["value"] for m in document["metrics"]}
    assert values["vllm_prompt_tokens_total"] == 102
    assert document["unmapped_series"] == 0
    assert not set(values) & set(document["missing"])


def test_probe_of_what_cannot_be_read_says_why(peers: Servers) -> None:
    """Exit code 1 and the reason."""
    for url, reason in (("127.0.0.1:1", "refused"), (peers.start("h", FAULTS["html"][0]), "parse")):
        found = llmobs("probe", url)
        assert (found.returncode, reason in found.stdout) == (1, True)
        assert "Traceback" not in found.stderr
