"""Errors and warnings: the message is one sentence that names the file or value and the remedy.

The command line prints the message and exits with the class's code; Python callers can catch one base class.
"""

import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parent)


class BertkitError(Exception):
    """The work failed: a full disk, a file that changed meanwhile. Exit code 1."""

    exit_code = 1


class RequestError(BertkitError, ValueError):
    """The request was wrong: a missing file, an unknown name, an input that cannot be used. Exit code 2."""

    exit_code = 2


class UnknownSetting(RequestError):
    """The name of a setting that is not among `names`."""

    def __init__(self, sentence: str, name: str, names: Collection[str]) -> None:
        super().__init__(sentence)
        self.name, self.names = name, tuple(names)

    def __reduce__(self) -> tuple[type["UnknownSetting"], tuple[str, str, tuple[str, ...]]]:
        """How worker processes send it: by default an exception is rebuilt from `args`, the sentence alone."""
        return UnknownSetting, (str(self), self.name, self.names)


class BertkitWarning(UserWarning):
    """The work was done, but not quite as requested: a text was truncated, a tensor was left out."""


def warn(message: str) -> None:
    """Give a warning at the line that called this package: the `skip_file_prefixes` of Python 3.12."""
    frame: FrameType | None = sys._getframe()
    level = 0
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, BertkitWarning, stacklevel=level + 1)
