"""Evidence beside the page: read once, bounded, and never text."""

from __future__ import annotations

import os
from pathlib import Path

from llmobs.config import TargetSettings
from llmobs.engine.evidence import EvidenceReader
from llmobs.journal import FILE_NAME, JournalEntry, to_line

OOM_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. secret prompt text\n"


def entry(id: str, event: str = "oom", time: float = 1e10, **fields: object) -> bytes:  # noqa: A002
    return to_line(JournalEntry(id=id, event=event, time=time, process="x", pid=1, **fields))  # type: ignore[arg-type]


def log_reader(path: Path) -> EvidenceReader:
    return EvidenceReader(TargetSettings(url="http://x", log_file=str(path)))


def journal_reader(folder: Path) -> EvidenceReader:
    return EvidenceReader(TargetSettings(url="http://x", state_dir=str(folder)))


def test_an_oom_in_the_log_is_an_event_without_its_text(tmp_path: Path) -> None:
    """A line that appears after the start becomes one event; what was there before is history."""
    log = tmp_path / "log"
    log.write_text(OOM_LINE)
    reader = log_reader(log)
    assert reader.read().ooms == ()
    with log.open("a") as stream:
        stream.write(OOM_LINE * 5)
    found = reader.read()
    assert [(e.kind, e.evidence, e.id) for e in found.ooms] == [("cuda", "log", None)]
    assert found.can_tell == {"cuda"}
    assert "secret" not in repr(found)
    assert reader.read().ooms == ()


def test_a_log_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    """A server that dies of memory while it starts writes the first line of its log."""
    log = tmp_path / "log"
    reader = log_reader(log)
    assert reader.read().can_tell == frozenset()
    assert "not there" in reader.problems["log"]
    log.write_text(OOM_LINE)
    assert len(reader.read().ooms) == 1
    assert not reader.problems


def test_a_rotated_and_a_truncated_log_are_followed(tmp_path: Path) -> None:
    """Rotation and truncation begin the file anew."""
    log = tmp_path / "log"
    log.write_text("x" * 500 + "\n")
    reader = log_reader(log)
    reader.read()
    log.rename(tmp_path / "log.old")
    log.write_text(OOM_LINE)
    assert len(reader.read().ooms) == 1
    os.truncate(log, 0)
    reader.read()
    log.write_text(OOM_LINE)
    assert len(reader.read().ooms) == 1


def test_a_line_written_in_two_pieces_is_one_line(tmp_path: Path) -> None:
    """A line is looked at when it is complete."""
    log = tmp_path / "log"
    log.write_text("")
    reader = log_reader(log)
    reader.read()
    with log.open("a") as stream:
        stream.write(OOM_LINE[:12])
        stream.flush()
        assert reader.read().ooms == ()
        stream.write(OOM_LINE[12:])
    assert len(reader.read().ooms) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A log that is a pipe is a problem, not a hang."""
    os.mkfifo(tmp_path / "log")
    reader = log_reader(tmp_path / "log")
    assert reader.read().can_tell == frozenset()
    assert "log" in reader.problems


def test_the_journal_tells_of_ooms_and_losses_after_the_start(tmp_path: Path) -> None:
    """Entries before the daemon's start are history, cut and foreign lines are skipped."""
    (tmp_path / FILE_NAME).write_bytes(
        entry("old", time=1.0)
        + entry("a", kind="host")
        + b'{"cut": \n\xff\xfe\n'
        + entry("b", "requests_failed", count=3, total=4, reason="oom", instance="i", model_name="m", engine="0")
        + entry("c", "engine_dead")
    )
    reader = journal_reader(tmp_path)
    found = reader.read()
    assert [(e.kind, e.evidence, e.id) for e in found.ooms] == [("host", "in_process", "a")]
    assert [(e.id, e.count, e.total, e.reason, e.instance) for e in found.lost] == [("b", 3, 4, "oom", "i")]
    assert found.can_tell == {"cuda", "host"}
    assert reader.read().lost == ()


def test_what_was_written_before_a_rotation_is_not_lost(tmp_path: Path) -> None:
    """The journal is rotated between two readings: the end of the old file is read first."""
    journal = tmp_path / FILE_NAME
    journal.write_bytes(entry("a"))
    reader = journal_reader(tmp_path)
    reader.read()
    with journal.open("ab") as stream:
        stream.write(entry("b"))
    journal.rename(tmp_path / f"{FILE_NAME}.1")
    journal.write_bytes(entry("c"))
    assert [e.id for e in reader.read().ooms] == ["b", "c"]


def test_a_folder_without_a_journal_would_show_one(tmp_path: Path) -> None:
    """No failure yet: the kinds can be told, and are 0."""
    assert journal_reader(tmp_path).read().can_tell == {"cuda", "host"}
    missing = journal_reader(tmp_path / "missing")
    assert missing.read().can_tell == frozenset()
    assert missing.problems


def test_the_kernels_kills_are_counted_from_the_first_reading(tmp_path: Path) -> None:
    """memory.events of the cgroup: its growth is a host OOM; a new cgroup starts again."""
    events = tmp_path / "memory.events"
    reader = EvidenceReader(TargetSettings(url="http://x", cgroup=str(tmp_path)))
    seen = []
    for killed in (3, 3, 4, 0, 1):
        events.write_text(f"low 0\noom 9\noom_kill {killed}\n")
        seen.append(len(reader.read().ooms))
    assert seen == [0, 0, 1, 0, 1]
    events.write_text("nonsense\n")
    assert "oom_kill" in (reader.read() and reader.problems["cgroup"])
