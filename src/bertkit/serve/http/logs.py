"""Logs as JSON, one object on a line. Never a header, a key or a text: a request is its id, its route and its cost."""

import logging
import random
import re
import sys
import time
from typing import Any, TextIO

import orjson

LOGGER = logging.getLogger("bertkit.serve")
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, event, and whatever fields it was given."""

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


def log(event: str, **fields: Any) -> None:
    """One line about something that happened."""
    LOGGER.info(event, extra={"fields": fields})


def log_failure(event: str, error: BaseException, **fields: Any) -> None:
    """The same about something that should not have happened, with where it did."""
    LOGGER.error(event, exc_info=error, extra={"fields": fields})


def request_id(given: bytes | None) -> str:
    """The client's own id where it is a plain word, else a new one."""
    text = (given or b"").decode("latin-1")
    # Not a secret: no call into the kernel for it, which would hand the interpreter to another thread.
    return text if SANE_ID.fullmatch(text) else f"{random.getrandbits(128):032x}"
