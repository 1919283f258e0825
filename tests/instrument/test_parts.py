"""The small parts: guards, patches, recognising OOM, the journal, masking, older versions."""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmobs.instrument import backend, config, guard, ids, journaling, legacy, oom, patch, rundir
from llmobs.instrument.beat import BeatReader
from llmobs.instrument.record import parse_traceparent
from llmobs.instrument.settings import InstrumentSettings
from llmobs.journal import JournalEntry


def _boom() -> None:
    raise RuntimeError("injected")


def test_a_guard_catches_says_it_once_and_removes_itself_after_three(caplog: pytest.LogCaptureFixture) -> None:
    """Three failures: nothing gets out, two warnings in all, the patch is undone, and the body is not called again."""
    found = guard.Guard("test")
    undone: list[int] = []
    found.on_removed.append(lambda: undone.append(1))
    with caplog.at_level(logging.WARNING):
        assert [found.run(_boom) for _ in range(5)] == [None] * 5
    assert (found.errors, found.active, undone) == (3, False, [1])
    assert len(caplog.records) == 2


def test_a_guard_lets_cancellation_through() -> None:
    """Only exceptions are caught: what asyncio and the interpreter use to stop a task is not ours."""
    with pytest.raises(KeyboardInterrupt):
        guard.Guard("test").run(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("llmobs_test_target")

    class Thing:
        def value(self) -> int:
            return 1

        @staticmethod
        def fixed() -> int:
            return 2

    made.Thing = Thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llmobs_test_target", made)
    return made


def test_a_patch_is_placed_once_and_comes_off_with_its_guard(module: Any) -> None:
    """Wrapping twice wraps once; a removed guard restores the original; static methods stay static."""
    hook = guard.Guard("test")
    for name in ("value", "fixed"):
        for _ in range(2):
            assert patch.wrap(f"llmobs_test_target:Thing.{name}", hook, lambda f: lambda *a: f(*a) + 10)
    assert (module.Thing().value(), module.Thing.fixed()) == (11, 12)
    for undo in hook.on_removed:
        undo()
    assert (module.Thing().value(), module.Thing.fixed()) == (1, 2)


def test_a_version_without_the_internal_loses_only_that_hook(module: Any) -> None:
    """A missing module, class, or function is reported, not raised."""
    hook = guard.Guard("test")
    for path in ("no_such_module:X.y", "llmobs_test_target:Other.y", "llmobs_test_target:Thing.other"):
        assert patch.wrap(path, hook, lambda f: f) is False


def test_an_action_waits_for_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when the module is imported, not before, and an action that raises does not break the import."""
    (tmp_path / "llmobs_test_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ran: list[int] = []
    patch.when_imported("llmobs_test_late", _boom)
    patch.when_imported("llmobs_test_late", lambda: ran.append(1))
    assert ran == []
    assert importlib.import_module("llmobs_test_late").value == 1
    assert ran == [1]
    sys.modules.pop("llmobs_test_late")


class _OutOfMemoryError(RuntimeError):
    __module__ = "torch"
    __qualname__ = "OutOfMemoryError"


class _OlderError(RuntimeError):
    __module__ = "torch.cuda"
    __qualname__ = "OutOfMemoryError"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_OutOfMemoryError("x"), "cuda"),
        (_OlderError("x"), "cuda"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "cuda"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "cuda"),
        (RuntimeError("Worker failed with error 'CUDA out of memory. Tried', please check"), "cuda"),
        (MemoryError(), "host"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "host"),
        (RuntimeError("NCCL error: unhandled system error"), None),
        (ValueError("the prompt is about memory"), None),
    ],
)
def test_running_out_of_memory_is_recognised(error: Exception, kind: str | None) -> None:
    """By type in both spellings, by message, and inside the engine core's text of a worker's error."""
    assert oom.kind(error) == kind


def test_the_cause_of_an_error_counts() -> None:
    """A wrapped out-of-memory error is one."""
    error = RuntimeError("step failed")
    error.__cause__ = MemoryError()
    assert oom.kind(error) == "host"


def test_the_allocators_figures_are_read_where_a_device_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated and reserved bytes come from the backend that is initialised; without one nothing is said."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        memory_allocated=lambda _i: 10,
        memory_reserved=lambda _i: 30,
        get_device_properties=lambda _i: SimpleNamespace(uuid="abc"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert oom.allocator() == ({"allocated": 10.0, "reserved": 30.0}, "cuda:0 GPU-abc")
    cuda.is_initialized = lambda: False
    assert oom.allocator() == ({}, None)


def _entry() -> JournalEntry:
    return JournalEntry(id="x", event="oom", time=1.0, process="p", pid=1)


def test_a_journal_that_cannot_be_written_is_counted_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing folder and a full disk: False each time, one warning, no exception."""
    monkeypatch.setattr(journaling, "_said", False)
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        assert not journaling.append(tmp_path, _entry())
        assert not journaling.append(tmp_path / "missing", _entry())
    assert len(caplog.records) == 1
    assert journaling.append(None, _entry())


def test_the_journal_is_rotated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its size the file becomes .1 and a new one begins."""
    monkeypatch.setattr(journaling, "MAX_BYTES", 100)
    for _ in range(2):
        journaling.append(tmp_path, _entry())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.jsonl", "journal.jsonl.1"]


def test_secrets_are_masked_in_the_engines_configuration() -> None:
    """Keys by name, user information and keys in URLs; a setting that only sounds like one stays."""

    @dataclass
    class Inner:
        api_key: str = "k1"
        hf_token: str = "k2"
        max_token_len: int = 5
        url: str = "http://user:k3@host/x?api_key=k4&b=1"
        empty_token: str = ""

    @dataclass
    class Outer:
        inner: Inner = field(default_factory=Inner)
        headers: dict[str, str] = field(default_factory=lambda: {"Authorization": "k5"})

    text = str(config.effective_config(Outer()))
    assert not any(secret in text for secret in ("k1", "k2", "k3", "k4", "k5"))
    assert "'max_token_len': 5" in text


@pytest.mark.parametrize(
    "value",
    [
        b"", b"00-short", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"ff-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
        b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01-x",
    ],
)  # fmt: skip
def test_a_malformed_traceparent_is_none(value: bytes) -> None:
    """What is not valid by W3C Trace Context is ignored."""
    assert parse_traceparent(value) is None


def test_processes_of_one_run_share_a_folder_that_its_maker_removes() -> None:
    """The first process makes it and exports its name, a child finds it, and only the maker removes it."""
    environ: dict[str, str] = {}
    path = rundir.make(environ)
    assert path is not None
    assert rundir.make(environ) == path
    assert rundir.write(path, "fact", {"a": 1})
    assert rundir.read(path, "fact") == {"a": 1}
    child = {**environ, "LLMOBS_RUN_OWNER": "1"}
    rundir.remove(child)
    assert path.exists()
    rundir.remove(environ)
    assert not path.exists()


def test_the_batch_of_a_step_is_listed_with_its_lengths() -> None:
    """New requests with their prompt, running ones with prompt and output so far."""
    step = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="new", prompt_token_ids=[1, 2, 3])],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["old"], num_computed_tokens=[11], num_output_tokens=[5]),
    )
    assert backend._batch(step) == (("new", 3, 0), ("old", 7, 5))


def test_two_guards_may_watch_one_function(module: Any) -> None:
    """The second is not taken for the first; each is placed once."""
    first, second = guard.Guard("first"), guard.Guard("second")
    for hook, amount in ((first, 10), (second, 100), (first, 1000)):
        assert patch.wrap("llmobs_test_target:Thing.value", hook, lambda f, n=amount: lambda self: f(self) + n)  # type: ignore[misc]
    assert module.Thing().value() == 111


def test_ids_differ_in_every_server_and_every_child() -> None:
    """vLLM seeds the global generator, and forks: neither gives two requests the same id."""
    random.seed(0)
    before = ids.hexadecimal(32)
    random.seed(0)
    assert ids.hexadecimal(32) != before
    read, write = os.pipe()
    if (child := os.fork()) == 0:  # nothing of pytest may run in it
        os.write(write, ids.octets(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != ids.octets(16)
    assert len(ids.hexadecimal(48)) == 48


def test_the_oldest_waiting_request_is_published_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all queues the version has, also when it puts a new queue in the place of one; nothing waiting is 0."""
    monkeypatch.setenv("LLMOBS_RUN_DIR", str(tmp_path))
    waiting = [SimpleNamespace(arrival_time=20.0)]
    scheduler = SimpleNamespace(vllm_config=None, waiting=waiting, kv_holding_waiting=[])
    seen = backend._Backend(InstrumentSettings())
    reader = BeatReader(tmp_path, 0)
    found = []
    for change in ({}, {"kv_holding_waiting": [SimpleNamespace(arrival_time=10.0)]}, {"kv_holding_waiting": []}):
        vars(scheduler).update(change)
        seen.queue_seen(scheduler)
        found.append(reader.oldest_arrival())
    waiting.clear()
    seen.queue_seen(scheduler)
    assert [*found, reader.oldest_arrival()] == [20.0, 10.0, 20.0, 0.0]


@pytest.mark.parametrize("loads_plugins", [True, False])
def test_the_stat_logger_is_added_only_where_vllm_does_not_load_it(
    loads_plugins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.11.1 and 0.11.2 load the plugin group without having its name as a constant."""
    loggers, engine = types.ModuleType("loggers"), types.ModuleType("async_llm")
    if loads_plugins:
        loggers.load_stat_logger_plugin_factories = list  # type: ignore[attr-defined]

    class AsyncLLM:
        def __init__(self) -> None:
            self.made = True

    engine.AsyncLLM = AsyncLLM  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.async_llm", engine)
    assert legacy.install() is not loads_plugins
    assert AsyncLLM().made
