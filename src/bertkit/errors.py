"""What bertkit says when something is wrong: one sentence that names the thing and the remedy.

The command line turns these into that sentence and an exit code; Python callers can catch one base class.
"""

from collections.abc import Collection


class BertkitError(Exception):
    """The work failed: a full disk, a file that changed underneath. Exit code 1."""

    exit_code = 1


class RequestError(BertkitError, ValueError):
    """The request was wrong: a missing file, an unknown name, an input that cannot be used. Exit code 2."""

    exit_code = 2


class UnknownSetting(RequestError):
    """A setting's name that is none of `names`."""

    def __init__(self, sentence: str, name: str, names: Collection[str]) -> None:
        super().__init__(sentence)
        self.name, self.names = name, names


class BertkitWarning(UserWarning):
    """The work was done, but not quite as asked: a text was cut, a tensor was left out."""
