"""vLLM's and uvicorn's own log lines in the JSON of our events, so that a container emits one format."""

from __future__ import annotations

import logging
from typing import Any

from llmobs.instrument import jsontext
from llmobs.instrument.guard import guard
from llmobs.instrument.logs import iso
from llmobs.instrument.patch import when_imported, wrap

_UVICORN = ("default", "access")


class JsonFormatter(logging.Formatter):
    """Renders a log record as one JSON line, with the request it was written for, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its line break."""
        from llmobs.instrument.record import current

        values: dict[str, Any] = {
            "event": record.getMessage(),
            "timestamp": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": getattr(record, "vllm_process_name", record.processName),
            "pid": record.process,
            "source": f"{record.filename}:{record.lineno}",
        }
        request = current.get()
        if request is not None:
            values["request_id"] = request.request_id
            values["trace_id"] = request.trace.trace_id if request.trace else None
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = self.formatStack(record.stack_info)
        return jsontext.encode(values).decode()


def install() -> None:
    """Give vLLM's handlers our formatter, now and whenever vLLM configures its logging anew; uvicorn's too."""
    hook = guard("json_logs")
    apply()
    when_imported("uvicorn.config", lambda: hook.run(_uvicorn))
    when_imported(
        "vllm.logger",
        lambda: wrap("vllm.logger:_configure_vllm_root_logger", hook, lambda f: _then(f, lambda: hook.run(apply))),
    )


def apply() -> None:
    """Set the formatter of every handler of vLLM's root logger."""
    for handler in logging.getLogger("vllm").handlers:
        handler.setFormatter(JsonFormatter())


def _uvicorn() -> None:
    import uvicorn.config

    for name in _UVICORN:
        uvicorn.config.LOGGING_CONFIG["formatters"][name] = {"()": JsonFormatter}


def _then(original: Any, after: Any) -> Any:
    def configured(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        after()
        return result

    return configured
