"""Whatever a target does, one reading ends in time, in bounded memory, with a reason."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import resource
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from llmobs.config import TargetSettings, TlsSettings, complete
from llmobs.engine.target import TargetReader
from llmobs.snapshot import Reading
from llmobs.stats import SCHEMA, decode
from tests.engine import hostile
from tests.engine.hostile import FAULTS, GOOD_PAGE, Servers, answer, page, says

DEADLINE = 0.6
SECRET = "sk-planted-secret"


@pytest.fixture(scope="module")
def peers() -> Iterator[Servers]:
    with hostile.servers() as made:
        yield made


def target(url: str, **settings: object) -> TargetSettings:
    made = TargetSettings(url=url, **{"timeout_seconds": DEADLINE, "health_timeout_seconds": 0.3, **settings})  # type: ignore[arg-type]
    return complete(made, "targets[0]")


def readings(settings: TargetSettings, count: int = 1) -> list[Reading]:
    async def read() -> list[Reading]:
        reader = TargetReader(settings)
        try:
            return [await reader.read() for _ in range(count)]
        finally:
            await reader.close()

    return asyncio.run(read())


def reason(settings: TargetSettings) -> str | None:
    return readings(settings)[0].error_reason


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_ends_in_time_with_its_reason(peers: Servers, name: str) -> None:
    """One reading of a misbehaving server takes no longer than its deadline, little memory, and tells why it failed."""
    handler, expected = FAULTS[name]
    url = peers.start(name, handler)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    # A flood ends by its size; on a busy machine that takes a while.
    deadline = DEADLINE if expected == "timeout" else 10.0
    (found,) = readings(target(url, source="metrics", timeout_seconds=deadline))
    assert time.monotonic() - started < deadline + 1.0
    assert found.snapshot is None
    assert found.error_reason == expected or expected == "any"
    assert found.error_message
    assert "\n" not in found.error_message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024


def test_nothing_listens() -> None:
    """A closed port is refused."""
    assert reason(target("http://127.0.0.1:1")) == "refused"
    assert reason(target("unix:/nonexistent/socket")) == "refused"


def test_connecting_hangs() -> None:
    """A server that does not accept is a timeout."""
    with hostile.full_backlog() as url:
        assert reason(target(url)) == "timeout"


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".invalid"])
def test_a_name_that_does_not_exist(host: str) -> None:
    """A name that cannot be resolved is dns, also one that cannot be a name."""
    assert reason(target(f"http://{host}:1", timeout_seconds=5.0)) in ("dns", "network")


def test_a_hanging_stats_does_not_hide_a_good_page(peers: Servers) -> None:
    """When /stats alone hangs, the next cycle reads /metrics."""
    found = readings(target(peers.start("x", hostile.only_stats_hangs())), 2)
    assert [r.error_reason for r in found] == ["timeout", None]


def test_the_next_page_of_a_recovered_server_is_read(peers: Servers) -> None:
    """A failure leaves nothing behind."""
    answers = iter([answer(b"x", "500 No"), answer(GOOD_PAGE.encode()), answer(b"<html>"), answer(GOOD_PAGE.encode())])

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        del reader
        writer.write(next(answers) if path == "/metrics" else answer(status="404 No"))

    found = readings(target(peers.start("x", handle), source="metrics"), 4)
    assert [r.error_reason for r in found] == ["http", None, "parse", None]


def test_a_key_is_not_sent_to_another_host(peers: Servers, tmp_path: Path) -> None:
    """A redirect to another host is refused, and that host never sees the API key."""
    key = tmp_path / "key"
    key.write_text(SECRET + "\n")
    other = peers.start("other", page(GOOD_PAGE))
    url = peers.start("redirects", says(answer(b"", "302 Found", Location=f"{other}/metrics")))
    (found,) = readings(target(url, source="metrics", api_key_file=str(key)))
    assert found.error_reason == "redirect"
    assert not [head for name, head in peers.requests if name == "other"]
    assert any(f"Bearer {SECRET}" in head for name, head in peers.requests if name == "redirects")
    assert SECRET not in found.error_message


def test_a_redirect_on_the_same_host_is_followed(peers: Servers) -> None:
    """A path that moved is found."""
    good = page(GOOD_PAGE)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/metrics":
            writer.write(answer(b"", "307 Moved", Location="/moved"))
        else:
            await good(reader, writer, path)

    assert reason(target(peers.start("moved", handle), source="metrics")) is None


def test_a_key_file_is_read_again_when_it_changes(peers: Servers, tmp_path: Path) -> None:
    """Rotating a key needs no restart."""
    key = tmp_path / "key"
    url = peers.start("keys", page(GOOD_PAGE))

    async def read() -> None:
        reader = TargetReader(target(url, source="metrics", api_key_file=str(key)))
        for text in ("first", "second"):
            key.write_text(text)
            await reader.read()
            await asyncio.sleep(0.02)
        await reader.close()

    asyncio.run(read())
    heads = [head for name, head in peers.requests if name == "keys" and " /metrics " in head]
    assert ["first" in heads[0], "second" in heads[-1]] == [True, True]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"two\nlines", b"bad\x00key", "schlüssel".encode()])
def test_a_key_that_is_none_is_an_auth_error(peers: Servers, tmp_path: Path, content: bytes | None) -> None:
    """A missing file, or one that does not hold a key, is said so, without its content."""
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    (found,) = readings(target(peers.start("x", page(GOOD_PAGE)), api_key_file=str(key)))
    assert found.error_reason == "auth"
    assert "lines" not in found.error_message


def test_a_key_file_that_is_a_folder_is_an_auth_error(peers: Servers, tmp_path: Path) -> None:
    """What is not a file is never waited for."""
    assert reason(target(peers.start("x", page(GOOD_PAGE)), api_key_file=str(tmp_path))) == "auth"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def _tls(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def test_tls(peers: Servers, authority: trustme.CA, tmp_path: Path) -> None:
    """An unknown authority is a TLS error; with the CA file the page is read."""
    url = peers.start("tls", page(GOOD_PAGE), _tls(authority, "127.0.0.1"))
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    assert reason(target(url, source="metrics")) == "tls"
    assert reason(target(url, source="metrics", tls=TlsSettings(ca_file=str(ca)))) is None
    assert reason(target(url, source="metrics", tls=TlsSettings(insecure_skip_verify=True))) is None
    assert reason(target(url, tls=TlsSettings(ca_file=str(tmp_path / "none")))) == "tls"


def test_the_servers_name_can_be_given(peers: Servers, authority: trustme.CA, tmp_path: Path) -> None:
    """A certificate for another name is refused, unless that name is what is expected."""
    url = peers.start("name", page(GOOD_PAGE), _tls(authority, "vllm.example"))
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    assert reason(target(url, source="metrics", tls=TlsSettings(ca_file=str(ca)))) == "tls"
    named = TlsSettings(ca_file=str(ca), server_name="vllm.example")
    assert reason(target(url, source="metrics", tls=named)) is None


def test_http_spoken_to_a_tls_port_says_so(peers: Servers, authority: trustme.CA) -> None:
    """http:// where https:// is meant ends in a reason, not in a hang."""
    url = peers.start("tls-only", page(GOOD_PAGE), _tls(authority, "127.0.0.1"))
    assert reason(target(url.replace("https:", "http:"))) in ("network", "parse")


def test_a_client_certificate_is_shown(peers: Servers, authority: trustme.CA, tmp_path: Path) -> None:
    """A server that asks for a client certificate gets the configured one."""
    context = _tls(authority, "127.0.0.1")
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    url = peers.start("mutual", page(GOOD_PAGE), context)
    ca, both = tmp_path / "ca.pem", tmp_path / "client.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("client@example").private_key_and_cert_chain_pem.write_to_path(str(both))
    mine = TlsSettings(ca_file=str(ca), cert_file=str(both))
    assert reason(target(url, source="metrics", tls=mine)) is None
    assert reason(target(url, source="metrics", tls=TlsSettings(ca_file=str(ca)))) in ("tls", "network")


GOOD_STATS = {"schema": SCHEMA, "engines": [{"model_name": "m", "running": 1}]}


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b"{", b'{"schema": "other"}', b"[" * 100_000, b"\xff\xfe", b'{"schema":"llmobs.stats/v1"}',
     b'{"schema":"llmobs.stats/v1","engines":{}}',
     b'{"schema":"llmobs.stats/v1","engines":[' + b"{}," * 2000 + b"{}]}"],
)  # fmt: skip
def test_a_hostile_stats_document_is_a_parse_error(peers: Servers, raw: bytes) -> None:
    """What is not our document ends in a reason."""
    assert reason(target(peers.start("x", hostile.stats(None, raw)), source="stats")) == "parse"


@pytest.mark.parametrize(
    "value",
    ["x", [], {}, True, -1, 10**400, float("inf"), float("nan"), {"bounds": [1], "counts": [1], "sum": 1},
     {"bounds": ["+Inf"], "counts": [10**400], "sum": 1}, {"bounds": [2, 1, "+Inf"], "counts": [1, 1, 1], "sum": 1},
     {"bounds": [1, "+Inf"], "counts": [2, 1], "sum": 1}, {str(i): 1 for i in range(2000)}],
)  # fmt: skip
def test_one_malformed_fact_costs_only_itself(value: object) -> None:
    """A fact that is none is absent, whichever it is; the others are read."""
    from llmobs.snapshot import FACTS

    for name, fact in FACTS.items():
        if name == "running" or (fact.by and isinstance(value, dict) and not value):
            continue
        document = {"schema": SCHEMA, "engines": [{"model_name": "m", "running": 1, name: value}]}
        (engine,) = decode(json.loads(json.dumps(document)), taken_at=0, wall_time=0).engines
        assert engine.running == 1
        found = getattr(engine, name)
        assert found is None or found == {} or all(v == 1 for v in found.values() if fact.kind != "histogram")


def test_stats_win_over_metrics_and_are_remembered(peers: Servers) -> None:
    """Where /stats answers, /metrics is never asked."""
    found = readings(target(peers.start("stats", hostile.stats(GOOD_STATS))), 3)
    assert {r.snapshot.source for r in found if r.snapshot} == {"stats"}
    assert not [head for name, head in peers.requests if name == "stats" and "/metrics" in head]


def test_a_new_process_is_asked_for_its_version(peers: Servers) -> None:
    """A deployment between two cycles shows its version with the first page."""
    made = {"start": 1.0, "version": "0.31.0"}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        del reader
        if path == "/version":
            writer.write(answer(json.dumps({"version": made["version"]}).encode(), Content_Type="application/json"))
        elif path == "/metrics":
            writer.write(answer(f"process_start_time_seconds {made['start']}\n{GOOD_PAGE}".encode()))
        else:
            writer.write(answer(status="404 No"))

    async def read() -> list[str | None]:
        reader = TargetReader(target(peers.start("x", handle)))
        versions = []
        for start, version in ((1.0, "0.31.0"), (2.0, "0.32.0")):
            made.update(start=start, version=version)
            snapshot = (await reader.read()).snapshot
            versions.append(snapshot.version if snapshot else None)
        await reader.close()
        return versions

    assert asyncio.run(read()) == ["0.31.0", "0.32.0"]


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_jump_of_the_wall_clock_is_no_restart_and_no_stall(jump: float) -> None:
    """Nothing but the time stamp depends on the wall clock."""
    from llmobs.derive.target import Limits, advance, begin
    from llmobs.snapshot import Evidence
    from tests.derive.conftest import engine, reading

    state = begin(0.0)
    for at in range(1, 5):
        found = reading(at, engine(running=1.0, generation_tokens=float(at)), start_time=5.0)
        wall = found.wall_time + (jump if at > 2 else 0)
        state = advance(state, dataclasses.replace(found, wall_time=wall), Evidence(), Limits())
    assert (state.word, state.restarts) == ("ready", 0)
