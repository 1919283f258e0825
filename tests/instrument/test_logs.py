"""The log writer: queue, files, what is dropped, and the document that describes the lines."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llmobs.instrument import events
from llmobs.instrument.assemble import assemble
from llmobs.instrument.clients import Clients
from llmobs.instrument.logs import LogWriter, _File
from llmobs.instrument.outcome import COMPLETED
from llmobs.instrument.record import Load, RequestFacts, RequestRecord
from llmobs.instrument.settings import VARIABLES, InstrumentSettings

DOCS = Path(__file__).resolve().parents[2] / "docs"

ISSUE_FIELDS = {
    *("event", "timestamp", "level", "request_id", "trace_id", "span_id", "model", "lora", "endpoint", "stream"),
    *("http_status", "finish_reason", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
    *("latency_ms", "queue_ms", "ttft_ms", "prefill_latency_ms", "decode_latency_ms"),
    *("num_prompt_tokens_per_sec", "num_generation_tokens_per_sec", "kv_cache_usage_ratio"),
    *("num_requests_waiting", "num_requests_running", "num_preemptions", "spec_acceptance_rate"),
    *("error_code", "error_msg"),
}


def _facts() -> RequestFacts:
    record = RequestRecord("id", "/v1/completions")
    record.left_at = record.started + 1
    return assemble(record, COMPLETED, model="m", load_at_arrival=Load(), load=Load(1, 2, 0.5), max_prompt=900,
                    offset=0.0, clients=Clients(4))  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_the_documented_fields_in_one_json_object(tmp_path: Path) -> None:
    """Every field that is promised is in the line of a request, and docs/logs.md lists exactly the fields there are."""
    writer = LogWriter(InstrumentSettings(log_stderr=False, log_file=tmp_path / "log"))
    writer.put("info", "request_completed", events.fields(_facts()), 0.0)
    writer.close()
    line = _lines(tmp_path / "log")[0]
    assert set(line) >= ISSUE_FIELDS
    assert (line["timestamp"], line["level"], line["error_code"]) == ("1970-01-01T00:00:00.000Z", "info", None)
    documented = re.findall(r"^\| `(\w+)` \|", (DOCS / "logs.md").read_text().split("## Other events")[0], re.MULTILINE)
    assert set(documented) - {"prompt", "completion"} == set(line)


def test_the_document_names_every_variable_and_event() -> None:
    """docs/logs.md describes each LLMOBS_ variable and each event."""
    text = (DOCS / "logs.md").read_text()
    for name in VARIABLES:
        assert f"`{name}`" in text, name
    for event in ("request_completed", "request_failed", "request_rejected", "engine_started", "engine_config",
                  "engine_stats", "engine_died", "prompt_near_limit", "prompt_outlier"):  # fmt: skip
        assert f"`{event}`" in text, event


def test_a_full_queue_drops_and_counts_and_never_blocks(tmp_path: Path) -> None:
    """With the destination stuck, putting stays quick and what does not fit is counted."""
    release = threading.Event()

    def stuck(_text: str) -> None:
        release.wait(10)

    writer = LogWriter(InstrumentSettings(log_queue=10), stderr=stuck)
    started = time.monotonic()
    for number in range(1000):
        writer.put("info", "x", {"n": number}, 0.0)
    assert time.monotonic() - started < 1.0
    assert 700 < writer.dropped <= 1000
    release.set()
    writer.close()


def test_a_line_without_room_is_not_rendered() -> None:
    """What is dropped costs a comparison."""
    release = threading.Event()
    rendered = []
    writer = LogWriter(InstrumentSettings(log_queue=10), stderr=lambda _text: bool(release.wait(10)))

    def fields() -> dict[str, Any]:
        rendered.append(1)
        return {}

    for _ in range(100):
        writer.put("info", "x", fields, 0.0)
    assert len(rendered) + writer.dropped == 100
    assert writer.dropped > 70
    release.set()
    writer.close()


def test_the_total_size_of_the_files_is_capped(tmp_path: Path) -> None:
    """Rotation keeps the configured number of files, each near the configured size."""
    settings = InstrumentSettings(log_stderr=False, log_file=tmp_path / "log", log_max_bytes=20_000, log_files=3)
    writer = LogWriter(settings)
    for number in range(4000):
        writer.put("info", "x", {"n": number, "text": "y" * 50}, 0.0)
        if number % 100 == 0:
            time.sleep(0.01)  # smaller batches, as in life
    writer.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert sum(f.stat().st_size for f in files) < 3 * 20_000 + 60_000
    assert writer.dropped == 0


def test_a_full_disk_is_counted_and_said_once(caplog: Any) -> None:
    """Every write fails: lines are counted as dropped, and one warning says so."""
    writer = LogWriter(InstrumentSettings(log_stderr=False, log_file=Path("/dev/full")))
    for number in range(50):
        writer.put("info", "x", {"n": number}, 0.0)
        time.sleep(0.001)
    writer.close()
    assert writer.dropped == 50
    assert len([r for r in caplog.records if "dropped" in r.getMessage()]) == 1


def test_lines_that_were_counted_as_dropped_do_not_come_later(tmp_path: Path) -> None:
    """When there is room again, writing goes on with the next line; half a line stays on a line of its own."""
    path = tmp_path / "log"
    path.write_text('{"half": "a li')
    (tmp_path / "full").symlink_to("/dev/full")
    sink = _File(tmp_path / "full", 1 << 20, 2)
    with pytest.raises(OSError, match="space"):
        sink.write("lost\n")
    (tmp_path / "full").unlink()
    (tmp_path / "full").symlink_to(path)
    sink.write("first\n")
    sink.write("second\n")
    sink.close()
    assert path.read_text().splitlines() == ['{"half": "a li', "first", "second"]


def test_a_missing_folder_is_counted(tmp_path: Path) -> None:
    """A log file in a folder that does not exist costs lines, not the server."""
    writer = LogWriter(InstrumentSettings(log_stderr=False, log_file=tmp_path / "no" / "log"))
    writer.put("info", "x", {}, 0.0)
    writer.close()
    assert writer.dropped == 1


def test_an_event_that_cannot_be_rendered_costs_only_itself(tmp_path: Path) -> None:
    """Fields that raise when they are computed drop one line; the next is written."""
    writer = LogWriter(InstrumentSettings(log_stderr=False, log_file=tmp_path / "log"))

    def broken() -> dict[str, Any]:
        raise ValueError("no")

    writer.put("info", "bad", broken, 0.0)
    writer.put("info", "good", {}, 0.0)
    writer.close()
    assert [line["event"] for line in _lines(tmp_path / "log")] == ["good"]
    assert writer.dropped == 1
