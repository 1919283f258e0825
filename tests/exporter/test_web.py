"""The web server: what is asked for in which form, who may ask, and how much."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from llmobs.catalog import METRICS
from llmobs.derive.publish import Sample
from llmobs.exporter import web
from llmobs.exporter.render import OPENMETRICS, TEXT
from llmobs.exporter.watch import TargetWatch
from tests.derive.conftest import engine, reading, run
from tests.exporter.serving import EXEMPLAR, NASTY, Client, daemon, fetch, with_server

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        (PROMETHEUS, True),
        ("Application/OpenMetrics-Text; version=1.0.0; Q=1", True),
        ("application/openmetrics-text;q=0.5,*/*;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("text/plain;q=0.5,application/openmetrics-text;q=0.9", True),
        (",;;,q=,application/openmetrics-text;q=x", True),
        ("application/vnd.google.protobuf;q=1,text/plain;q=0.5", False),
    ],
)  # fmt: skip
def test_the_accept_header_decides(accept: str, openmetrics: bool) -> None:
    """Prometheus' own header, browsers' and odd ones get what they prefer."""
    assert web.accepts_openmetrics(accept) == openmetrics


def test_text_and_openmetrics_parse_and_say_the_same() -> None:
    """Prometheus' parsers read both pages; values, labels and escapes agree, exemplars are in the second."""

    async def test(get: Client) -> Any:
        return [await get("/metrics", headers={"Accept": a}) for a in ("text/plain", "application/openmetrics-text")]

    (_, plain_head, plain), (_, open_head, openm) = with_server(test)
    assert (plain_head["Content-Type"], open_head["Content-Type"]) == (TEXT, OPENMETRICS)

    def series(families: Any) -> dict[Any, float]:
        moving = ("process_", "llmobs_http_requests_total", "llmobs_log")
        return {
            (s.name, frozenset(s.labels.items())): s.value
            for f in families
            for s in f.samples
            if not s.name.startswith(moving)
        }

    first, second = series(parse_text(plain.decode())), series(parse_openmetrics(openm.decode()))
    assert first == second
    labels = next(dict(labels) for name, labels in first if name == "vllm_num_running_requests")
    assert labels == {"target": "a", "model_name": NASTY, "engine": "0", "canary": "yes", "version": NASTY}
    exemplars = [s.exemplar for f in parse_openmetrics(openm.decode()) for s in f.samples if s.exemplar]
    assert [(e.labels["trace_id"], e.value) for e in exemplars] == [(EXEMPLAR.trace_id, 0.5)] * 2
    assert b"trace_id" not in plain


def test_every_family_has_its_help_and_type_once() -> None:
    """HELP and TYPE come from the contract."""
    _, _, body = fetch("/metrics")
    names = [line.split(" ")[2] for line in body.decode().splitlines() if line.startswith("# HELP")]
    assert len(names) == len(set(names))
    assert set(names) <= set(METRICS)


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [("gzip", True), ("deflate, gzip;q=1.0, *;q=0.5", True), ("", False), ("identity", False), ("gzip;q=0", False)],
)
def test_gzip_on_request(encoding: str, compressed: bool) -> None:
    """Compressed when asked for, and the same page."""
    _, head, body = fetch("/metrics", headers={"Accept-Encoding": encoding})
    assert (head.get("Content-Encoding") == "gzip") == compressed
    assert b"vllm_num_running_requests" in (gzip.decompress(body) if compressed else body)


@pytest.mark.parametrize(
    ("query", "prefixes"),
    [
        ("?collect[]=engine", {"vllm"}),
        ("?collect[]=self", {"llmobs", "process"}),
        ("?exclude[]=self&exclude[]=gpu", {"vllm"}),
        ("?collect[]=engine&collect[]=self", {"vllm", "llmobs", "process"}),
        ("?collect[]=gpu", set()),
    ],
)
def test_collectors_can_be_chosen(query: str, prefixes: set[str]) -> None:
    """`collect[]` and `exclude[]` choose the collectors, as node_exporter's do."""
    status, _, body = fetch("/metrics" + query)
    assert status == 200
    found = {f.name.split("_")[0] for f in parse_text(body.decode()) if not f.name.startswith("llmobs_target")}
    assert found == prefixes


@pytest.mark.parametrize("query", ["?collect[]=nonsense", "?exclude[]=x", "?collect[]=engine&exclude[]=gpu"])
def test_a_wrong_choice_is_a_bad_request(query: str) -> None:
    """An unknown collector is an error with the known ones, never an empty page."""
    assert fetch("/metrics" + query)[0] == 400


def test_probe_takes_configured_targets_only() -> None:
    """By name or URL; anything else is not found, and nothing is asked."""

    async def test(get: Client) -> Any:
        paths = ("?target=a", "?target=http://127.0.0.1:1/a", "?target=b", "?target=http://evil:1", "?target=", "")
        return [await get(f"/probe{path}") for path in paths]

    found = with_server(test)
    assert [status for status, _, _ in found] == [200, 200, 200, 404, 404, 404]
    targets = {s.labels["target"] for f in parse_text(found[0][2].decode()) for s in f.samples if "target" in s.labels}
    assert targets == {"a"}
    assert b"llmobs_probe_success 0" in found[2][2]


def test_healthy_and_ready() -> None:
    """Alive at once; ready with a finished cycle younger than three intervals, also of a target that is down."""
    made = daemon()
    assert fetch("/-/healthy", made)[0] == 200
    assert fetch("/-/ready", made)[0] == 503
    made.watches["b"].finished_at = asyncio.new_event_loop().time()
    assert fetch("/-/ready", made)[0] == 200
    made.watches["b"].finished_at -= 3 * 5.0 + 2
    assert fetch("/-/ready", made)[0] == 503
    made.watches.clear()
    assert fetch("/-/ready", made)[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/nowhere", "/api/v1/state", "/-/healthy", "/probe"])
def test_security_headers_are_everywhere(path: str) -> None:
    """Also on errors."""
    _, head, _ = fetch(path)
    assert head["X-Content-Type-Options"] == "nosniff"
    assert head["X-Frame-Options"] == "DENY"
    assert head["Referrer-Policy"] == "no-referrer"


def test_methods_and_big_requests_are_refused() -> None:
    """Only GET reads; a reload is a POST; long lines are refused."""

    async def test(get: Client) -> Any:
        wrong = await get("/metrics", "DELETE")
        reload = await get("/-/reload", "GET")
        long = await get("/metrics?" + "x" * 20_000)
        field = await get("/metrics", headers={"X-Long": "y" * 20_000})
        return [found[0] for found in (wrong, reload, long, field)]

    assert with_server(test) == [405, 405, 400, 400]


def test_requests_are_counted_by_route_never_by_path() -> None:
    """A stranger's paths are no label values; refused ones are counted, too."""
    made = daemon()

    async def test(get: Client) -> Any:
        for path in ("/metrics", "/a", "/b", "/page/nothing"):
            await get(path)

    with_server(test, made)
    assert dict(made.requests) == {("/metrics", "200"): 1, ("other", "404"): 3}


def test_too_many_requests_at_once_are_turned_away() -> None:
    """Beyond the limit there is 503 with Retry-After, and the count shows it."""
    made = daemon(max_requests=1)
    gate = asyncio.Event()

    async def test(get: Client) -> Any:
        async def slow() -> str | None:
            await gate.wait()
            return None

        made.reload = slow  # type: ignore[method-assign]
        held = asyncio.ensure_future(get("/-/reload", "POST"))
        await asyncio.sleep(0.1)
        refused = await get("/metrics")
        gate.set()
        return refused, (await held)[0], (await get("/metrics"))[0]

    (status, head, _), held, after = with_server(test, made)
    assert (status, head["Retry-After"], held, after) == (503, "1", 200, 200)
    assert made.requests["/metrics", "503"] == 1


def test_state_is_json_without_a_cache() -> None:
    """Histories can be left out; there is no NaN in it."""
    _, head, body = fetch("/api/v1/state?history=")
    document = json.loads(body)
    assert head["Cache-Control"] == "no-store"
    assert [t["name"] for t in document["targets"]] == ["a", "b"]
    assert "history" not in document["targets"][0]["engines"][0]


@pytest.fixture
def watch() -> TargetWatch:
    made = daemon()
    return made.watches["a"]


def test_a_cycle_that_fails_leaves_no_old_figures(watch: TargetWatch) -> None:
    """A defect of ours makes the target unknown, not frozen."""
    assert any(s.metric == "vllm_num_running_requests" for s in watch.samples)
    watch._go_blind()
    assert watch.samples == [Sample("vllm_up", ("a",), 0.0)]
    assert list(watch.page) == ["vllm_up"]


def test_dropped_label_sets_are_a_counter(watch: TargetWatch) -> None:
    """What the cap leaves out adds up over the cycles."""
    watch._max_label_values = 1
    watch.state = run(reading(1.0, engine(lora_running={str(i): 1.0 for i in range(5)})))
    for _ in range(3):
        watch._publish(None)
    assert watch.cycles.dropped_label_sets == 12
