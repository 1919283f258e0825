"""A second environment on top of the one with the real vLLM: everything of it, plus llmobs.

The plain environment stays as it is, so that other tests run vLLM without our plugin. The overlay is made once per
checkout (a few seconds) and lies beside the plain one.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_RECIPE = "4"
#: What the plain environment lacks of llmobs' dependencies.
_PACKAGES = ("structlog>=23.1", "nvidia-ml-py>=12.535", "bcrypt>=4", "hatchling", "editables")


def overlay(plain: Path) -> Path:
    """Return the environment's folder; make it first when it is missing or made from another pyproject.toml."""
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    folder = plain.parent / f"{plain.name}-llmobs-{name}"
    stamp = folder / ".complete"
    wanted = _RECIPE + hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return folder
        _make(plain, folder)
        stamp.write_text(wanted)
    return folder


def _make(plain: Path, folder: Path) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        _run([str(plain / "bin" / "python"), "-m", "venv", "--without-pip", str(folder)])
    site, base = (next((e / "lib").glob("python3*")) / "site-packages" for e in (folder, plain))
    (site / "plain-vllm.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--prefix", str(folder)]
    _run([*pip, "--ignore-installed", *_PACKAGES])
    _run([*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", "-e", str(ROOT)])
    vllm = folder / "bin" / "vllm"
    vllm.write_text(
        f"#!{python}\nimport sys\nfrom vllm.entrypoints.cli.main import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    vllm.chmod(0o755)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
