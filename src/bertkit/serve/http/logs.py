"""Logs as JSON lines: of a request its id, method, route, status and seconds; never a header, a key or a text."""

import logging
import sys
import time
from typing import Any, TextIO

import orjson

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


def start_logs(stream: TextIO | None = None) -> None:
    """Write this package's logs, and uvicorn's warnings, as JSON lines to a stream; standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for logger, level in ((LOGGER, logging.INFO), (logging.getLogger("uvicorn.error"), logging.ERROR)):
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
