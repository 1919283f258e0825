"""The real pynvml on our own driver library, and a /proc made of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from llmobs.gpu import GpuReader
from tests.nvml import FakeNvml, build

_TICKS = os.sysconf("SC_CLK_TCK")
INIT_NAMESPACE = "pid:[4026531836]"


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float = 5.0) -> None:
        self.now += seconds


class Proc:
    """A folder in the layout of /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self" / "net").mkdir(parents=True)
        (root / "self" / "ns").mkdir()
        self.namespace("pid:[4026532999]")

    def namespace(self, name: str) -> None:
        link = self.root / "self" / "ns" / "pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def add(
        self,
        pid: int,
        *arguments: str,
        parent: int = 1,
        started: float = 10.0,
        holds: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        name = (arguments or ("x",))[0][-15:]
        fields = ["S", str(parent), *["0"] * 17, str(int(started * _TICKS)), "0"]
        (folder / "stat").write_text(f"{pid} ({name}) ) {' '.join(fields)}\n".replace(") )", ")"))
        (folder / "cmdline").write_bytes("".join(f"{a}\0" for a in arguments).encode())
        if environment is not None:
            (folder / "environ").write_bytes("".join(f"{k}={v}\0" for k, v in environment.items()).encode())
        for number, target in enumerate(holds):
            (folder / "fd" / str(number)).symlink_to(target)

    def remove(self, pid: int) -> None:
        folder = self.root / str(pid)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()

    def vllm(self, workers: int = 2, base: int = 100, **options: str) -> None:
        """Add a server, its engine core and its workers, as vLLM 0.32 names them."""
        self.add(base, "/usr/bin/python3", "/usr/local/bin/vllm", "serve", "model", environment=options)
        self.add(base + 1, "VLLM::EngineCore", parent=base)
        for n in range(workers):
            self.add(base + 2 + n, f"VLLM::Worker_TP{n}", parent=base + 1)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a reader waits for the Xid listener; half a second for each test would add up."""
    monkeypatch.setattr("llmobs.gpu.xid.WAIT_MS", 10)


@pytest.fixture(scope="session")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The driver library, compiled once for each variant."""
    folder = tmp_path_factory.mktemp("nvml")
    return lambda variant="current": build(folder, variant)


def _load(monkeypatch: pytest.MonkeyPatch, library: Path) -> FakeNvml:
    fake = FakeNvml(library)
    monkeypatch.setattr(pynvml, "nvmlLib", fake.lib)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, shims: Callable[..., Path]) -> Iterator[FakeNvml]:
    """The shim under the real pynvml."""
    loaded = _load(monkeypatch, shims())
    yield loaded
    loaded.say(gpus=0)  # nothing hangs any longer


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, shims: Callable[[str], Path]) -> Callable[[str], FakeNvml]:
    """Load a variant of the shim under the real pynvml."""
    return lambda variant: _load(monkeypatch, shims(variant))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def reader_for(clock: Clock, proc: Proc) -> Iterator[Callable[..., GpuReader]]:
    """Make a reader on the fake clock and /proc; it is closed at the end."""
    made: list[GpuReader] = []

    def make(**arguments: object) -> GpuReader:
        defaults: dict[str, object] = {
            "proc": proc.root,
            "timeout": 2.0,
            "monotonic": clock,
            "wall": lambda: 1_700_000_000.0,
            "boottime": lambda: 500.0,
        }
        made.append(GpuReader(**{**defaults, **arguments}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def reader(reader_for: Callable[..., GpuReader]) -> GpuReader:
    return reader_for()
