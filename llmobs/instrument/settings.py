"""Settings of the part that runs inside vLLM. They come from the environment, because vLLM owns the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmobs.errors import ConfigError

#: Variable → (field, what it does). The table in docs/logs.md and docs/instrument.md is held complete against it.
VARIABLES: Mapping[str, str] = {
    "LLMOBS_DISABLED": "1 switches everything of llmobs inside vLLM off",
    "LLMOBS_STATE_DIR": "folder of the failure journal, shared with the sidecar",
    "LLMOBS_LOG": "where request logs go: stderr (default), a file's path, both as stderr,PATH, or none",
    "LLMOBS_LOG_MAX_BYTES": "size at which the log file is rotated; default 50 MiB",
    "LLMOBS_LOG_FILES": "files kept, the current one included, so that their total is capped; default 5",
    "LLMOBS_LOG_QUEUE": "lines that may wait for the writer before new ones are dropped; default 10000",
    "LLMOBS_LOG_VLLM": "json turns vLLM's and uvicorn's own log lines into the same JSON",
    "LLMOBS_STATS_INTERVAL_S": "seconds between engine_stats lines; default 10, 0 switches them off",
    "LLMOBS_CAPTURE_CONTENT": "1 puts prompt and completion text into the log; off by default",
    "LLMOBS_CAPTURE_MAX_CHARS": "characters of each text that are kept; default 2048",
    "LLMOBS_TIMEOUT_S": "a client that leaves after waiting this long counts as timeout, earlier as abort; default 30",
    "LLMOBS_OUTLIER_FACTOR": "a prompt this many times longer than its client's usual is an outlier; default 4",
    "LLMOBS_CLIENT_HEADER": "request header that names the client for outliers; default authorization (kept as a hash)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentSettings:
    """What the operator chose, checked. Sizes are in bytes, times in seconds."""

    disabled: bool = False
    state_dir: Path | None = None
    log_stderr: bool = True
    log_file: Path | None = None
    log_max_bytes: int = 50 * 1024 * 1024
    log_files: int = 5
    log_queue: int = 10_000
    log_vllm_json: bool = False
    stats_interval: float = 10.0
    capture_content: bool = False
    capture_max_chars: int = 2048
    timeout: float = 30.0
    outlier_factor: float = 4.0
    client_header: bytes = b"authorization"


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `LLMOBS_DISABLED` switches everything off."""
    return environ.get("LLMOBS_DISABLED", "").strip().lower() in ("1", "true", "yes", "on")


def load(environ: Mapping[str, str] = os.environ) -> tuple[InstrumentSettings, tuple[str, ...]]:
    """Return the settings in `environ`, and one sentence for each value that cannot be used.

    Inside vLLM a bad value must not stop the server: its default is used, and the caller logs the sentence.
    """
    reader = _Reader(environ)
    stderr, file = reader.destinations()
    state_dir = environ.get("LLMOBS_STATE_DIR", "").strip()
    settings = InstrumentSettings(
        disabled=is_disabled(environ),
        state_dir=Path(state_dir) if state_dir else None,
        log_stderr=stderr,
        log_file=file,
        log_max_bytes=int(reader.number("LLMOBS_LOG_MAX_BYTES", 50 * 1024 * 1024, low=4096)),
        log_files=int(reader.number("LLMOBS_LOG_FILES", 5, low=1)),
        log_queue=int(reader.number("LLMOBS_LOG_QUEUE", 10_000, low=1)),
        log_vllm_json=reader.choice("LLMOBS_LOG_VLLM", ("", "text", "json")) == "json",
        stats_interval=reader.number("LLMOBS_STATS_INTERVAL_S", 10.0, low=0),
        capture_content=reader.flag("LLMOBS_CAPTURE_CONTENT"),
        capture_max_chars=int(reader.number("LLMOBS_CAPTURE_MAX_CHARS", 2048, low=1)),
        timeout=reader.number("LLMOBS_TIMEOUT_S", 30.0, low=0),
        outlier_factor=reader.number("LLMOBS_OUTLIER_FACTOR", 4.0, low=1),
        client_header=environ.get("LLMOBS_CLIENT_HEADER", "authorization").strip().lower().encode("latin-1", "replace"),
    )
    return settings, tuple(reader.problems)


def check(environ: Mapping[str, str] = os.environ) -> InstrumentSettings:
    """Return the settings in `environ`. Raises ConfigError naming the first value that cannot be used."""
    settings, problems = load(environ)
    if problems:
        raise ConfigError(problems[0])
    return settings


class _Reader:
    """Reads typed values from an environment and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def number(self, name: str, default: float, *, low: float) -> float:
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value < float("inf"):
            self.problems.append(f"{name}={text!r} is not a number of at least {low:g}; using {default:g}")
            return default
        return value

    def flag(self, name: str) -> bool:
        text = self.environ.get(name, "").strip().lower()
        if text not in ("", "0", "1", "false", "true", "no", "yes", "off", "on"):
            self.problems.append(f"{name}={text!r} is neither 1 nor 0; using 0")
        return text in ("1", "true", "yes", "on")

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        text = self.environ.get(name, "").strip().lower()
        if text not in values:
            known = ", ".join(v for v in values if v)
            self.problems.append(f"{name}={text!r} is not one of {known}; leaving it off")
            return ""
        return text

    def destinations(self) -> tuple[bool, Path | None]:
        stderr, file = False, None
        for part in self.environ.get("LLMOBS_LOG", "stderr").split(","):
            word = part.strip()
            if word == "stderr":
                stderr = True
            elif word not in ("", "none"):
                file = Path(word)
        return stderr, file
