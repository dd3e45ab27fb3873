"""Logs, as JSON or short lines: of a request its id, method, route, status and seconds; no header, key or text."""

import logging
import sys
import time
from typing import Any, Literal, TextIO

import orjson

LogForm = Literal["text", "json"]
COLORS = {1: 36, 2: 32, 3: 36, 4: 33, 5: 31}  # first digit of a status -> ANSI color: green, yellow, red
LOGGER = logging.getLogger("bertkit.serve")


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, event, and its `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line |= {"event": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextLines(logging.Formatter):
    """A record as a short line for a terminal: time, status, method, route, milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; of a failure the traceback, too."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        words = [time.strftime("%H:%M:%S", time.localtime(record.created))]
        if "status" in fields:
            status, milliseconds = int(fields["status"]), f"{1000 * fields['seconds']:,.0f} ms"
            words += [f"\033[{COLORS[status // 100]}m{status}\033[0m", f"{fields['method']:<4} {fields['route']:<24}"]
            words += [f"{milliseconds:>9}"]
        else:
            words += [record.getMessage(), *(f"{name}={value}" for name, value in fields.items())]
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return "  ".join(words) + trace


class NoPageFiles(logging.Filter):
    """Leaves out the files of the page that were sent without a fault: a visit fetches dozens of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        is_file = str(fields.get("route", "")).endswith("{name:path}")
        return not is_file or int(fields["status"]) >= 400


def start_logs(stream: TextIO | None = None, form: LogForm = "json") -> None:
    """Write this package's logs, and uvicorn's errors, to a stream; standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    if form == "text":
        handler.addFilter(NoPageFiles())
    for logger, level in ((LOGGER, logging.INFO), (logging.getLogger("uvicorn.error"), logging.ERROR)):
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
