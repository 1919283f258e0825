"""Settings: where they come from, what is refused, and what is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from llmobs.cli import main
from llmobs.config import Settings, TargetSettings, complete, leaves, load, mask_url, to_dict
from llmobs.errors import ConfigError

SECRET = "planted-secret"


def write(folder: Path, text: str) -> Path:
    path = folder / "llmobs.yaml"
    path.write_text(text)
    return path


def test_defaults_file_environment_flags(tmp_path: Path) -> None:
    """Each source wins over the ones before it."""
    file = write(tmp_path, "derive: {window_seconds: 10, peak_seconds: 11, stall_seconds: 12}\n")
    environment = {"LLMOBS_DERIVE_PEAK_SECONDS": "21", "LLMOBS_DERIVE_STALL_SECONDS": "22"}
    derive = load(file, environment=environment, flags={"derive.stall_seconds": "32"}).derive
    assert (derive.window_seconds, derive.peak_seconds, derive.stall_seconds) == (10, 21, 32)
    assert derive.max_label_values == 64


def test_every_setting_can_be_given_by_its_variable() -> None:
    """For each key there is a variable, and its default's text is taken."""
    for key, _, hint in leaves():
        default: object = Settings()
        for part in key.split("."):
            default = getattr(default, part)
        if isinstance(default, (bool, int, float, str)):
            load(environment={"LLMOBS_" + key.replace(".", "_").upper(): str(default)})
        assert hint is not None


def test_targets_and_lists_from_the_environment() -> None:
    """URLs and addresses are separated by commas."""
    settings = load(environment={"LLMOBS_TARGETS": "http://a:1, http://b:2", "LLMOBS_WEB_LISTEN": "[::1]:1,:2"})
    assert [t.name for t in settings.targets] == ["a:1", "b:2"]
    assert settings.web.listen == ("[::1]:1", ":2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dervie: {}", r"dervie: unknown key; did you mean 'derive'\?"),
        ("derive: {window_second: 1}", r"derive\.window_second: unknown key; did you mean 'window_seconds'\?"),
        ("targets: [{url: 'http://a', intervall_seconds: 1}]", r"targets\[0\]\.intervall_seconds.*interval_seconds"),
        ("targets: [{url: 'http://a', tls: {cafile: x}}]", r"targets\[0\]\.tls\.cafile.*ca_file"),
        ("derive: {window_seconds: soon}", r"derive\.window_seconds: expected a number, not 'soon'"),
        ("derive: {window_seconds: .inf}", "expected a finite number"),
        ("derive: {window_seconds: 1" + "0" * 400 + "}", "expected a number"),
        ("derive: {window_seconds: 0}", "must be above 0"),
        ("derive: {max_label_values: 1.5}", "expected a whole number"),
        ("derive: {max_label_values: true}", "expected a number"),
        ("derive: 5", "expected keys"),
        ("web: {max_requests: 0}", "must be above 0"),
        ("gpu: {reserve_ratio: 1}", "below 1"),
        ("gpu: {enabled: maybe}", "expected true or false"),
        ("log: {level: loud}", "not one of debug"),
        ("targets: http://a", "expected a list"),
        ("targets: [http://a]", r"targets\[0\]: expected keys"),
        ("targets: [{url: 'ftp://a'}]", "not usable"),
        ("targets: [{url: a}]", "not usable"),
        ("targets: [{url: 'http://a:99999'}]", "not a URL"),
        ("targets: [{url: 'http://a:0'}]", "port 0"),
        ("targets: [{url: 'http://a/?x=1'}]", "leave"),
        ("targets: [{url: 'http://a'}, {url: 'http://a:80/'}]", "there twice"),
        ("targets: [{url: 'http://a', labels: {engine: x}}]", "label of the contract"),
        ("targets: [{url: 'http://a', labels: {1a: x}}]", "not a label name"),
        ("targets: [{url: 'http://a', labels: {__a: x}}]", "not a label name"),
        ("targets: [{url: 'http://a', source: all}]", "not one of auto"),
        ("targets: [{url: 'http://a', interval_seconds: 0.01}]", "below 0.1"),
        ("targets: [{url: 'http://a', timeout_seconds: 0}]", "above 0"),
        ("targets: [{url: 'http://a', api_key_file: x, api_key_env: y}]", "exclude each other"),
        ("discovery: {dns: [{name: a, type: MX}]}", "not one of SRV"),
        ("discovery: {dns: [{type: A}]}", "give the name"),
        ("- a", "top level"),
        ("a: [", r"llmobs\.yaml:\d+:\d+: not valid YAML"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, expected: str) -> None:
    """The message names the key, what is wrong, and the nearest valid key; one line."""
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, text), environment={})
    assert re.search(expected, str(raised.value))
    assert "\n" not in str(raised.value)


def test_an_empty_file_and_empty_values_are_defaults(tmp_path: Path) -> None:
    """A key without a value is as if it were not there; so is a label."""
    assert load(write(tmp_path, ""), environment={}) == Settings()
    settings = load(write(tmp_path, "derive:\ntargets: [{url: 'http://a', labels: {canary: }}]"), environment={})
    assert dict(settings.targets[0].labels) == {}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, and something huge are refused with a reason."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path, environment={})
    big = tmp_path / "big"
    big.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load(big, environment={})


@pytest.mark.parametrize(
    "url",
    [f"http://user:{SECRET}@host:1", f"http://u:a/{SECRET}@host:1", f"http://u:a@{SECRET}@host:1", f"http://h/?key={SECRET}",
     f"http://h:1/#{SECRET}@x", f"ftp://u:{SECRET}@h", f"http://u:{SECRET}@h:99999"],
)  # fmt: skip
def test_no_secret_of_a_url_is_shown(tmp_path: Path, url: str) -> None:
    """A URL with a password or token is refused, and the message does not repeat it."""
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, json.dumps({"targets": [{"url": url}]})), environment={})
    assert SECRET not in str(raised.value)


def test_masking() -> None:
    """User, password and the values of a query are masked, the rest is kept."""
    assert mask_url("http://h:1/a") == "http://h:1/a"
    assert mask_url(f"http://u:{SECRET}@h:1/a?b={SECRET}&c={SECRET}#d") == "http://***@h:1/a?b=***&c=***#d"


@pytest.mark.parametrize(
    ("url", "name"),
    [("http://a:8000/", "a:8000"), ("https://a", "a:443"), ("http://[::1]:8000", "[::1]:8000"),
     ("unix:/run/v.sock", "/run/v.sock")],
)  # fmt: skip
def test_the_default_name_of_a_target(url: str, name: str) -> None:
    """Host and port, IPv6 in brackets, or the socket's path."""
    assert complete(TargetSettings(url=url), "targets[0]").name == name


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_config_show_can_be_read_again_and_holds_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `config show` prints is a configuration that means the same; keys are only named."""
    (tmp_path / "key").write_text(SECRET)
    file = write(
        tmp_path, f"targets: [{{url: 'http://a:1', api_key_file: '{tmp_path}/key', labels: {{canary: 'true'}}}}]\n"
    )
    code, out, _ = run(capsys, "config", "show", "--config", str(file))
    assert code == 0
    assert SECRET not in out
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert load(again, environment={}) == load(file, environment={})
    assert yaml.safe_load(out) == to_dict(load(file, environment={}))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("config", "check", "--target", "http://a:1"), 0, ""),
        (("config", "check", "--set", "derive.windw_seconds=1"), 2, "window_seconds"),
        (("config", "check", "--set", "nonsense"), 2, "KEY=VALUE"),
        (("config", "check", "--set", "=1"), 2, "unknown key"),
        (("config", "check", "--config", "/nonexistent"), 2, "cannot be read"),
        (("config", "check", "--listen", "::1:9401"), 2, "needs brackets"),
        (("config", "check", "--listen", "host"), 2, "host:port"),
        (("config", "check", "--listen", ":99999"), 2, "65535"),
        (("config", "check", "--web.config.file", "/nonexistent"), 2, "cannot be read"),
        (("config", "check", "--target", "http://a", "--label", "x"), 2, "NAME=VALUE"),
        (("run",), 2, "nothing to watch"),
        (("probe", "ftp://x"), 2, "not usable"),
        (("probe", "http://127.0.0.1:1", "--timeout", "0"), 2, "above 0"),
        (("nonsense",), 2, "invalid choice"),
    ],
)
def test_a_users_mistake_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    """Exit code 2 for bad input, with a sentence and no traceback."""
    monkeypatch.delenv("LLMOBS_CONFIG", raising=False)
    found, _, err = run(capsys, *arguments)
    assert found == code
    assert message in err
    assert "Traceback" not in err


def test_config_check_reads_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Key files, file_sd files and the web configuration are tried, too."""
    file = write(tmp_path, "targets: [{url: 'http://a:1', api_key_file: /nonexistent}]")
    assert run(capsys, "config", "check", "--config", str(file))[0] == 2
    (tmp_path / "sd.json").write_text('[{"targets": ["a:1"], "labels": ["x"]}]')
    file = write(tmp_path, f"discovery: {{files: ['{tmp_path}/sd.json']}}")
    code, _, err = run(capsys, "config", "check", "--config", str(file))
    assert (code, "labels" in err) == (2, True)
