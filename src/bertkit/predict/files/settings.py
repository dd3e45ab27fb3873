"""What is said about an input file and about the columns of an output: `text=review keep=id,text best=5`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.settings import read_pairs


@dataclass(frozen=True, kw_only=True)
class Telling:
    """How much is told of each prediction."""

    probabilities: bool = False  # of every label or choice
    best: int = 0  # so many of the likeliest answers

    def check(self, task: str) -> None:
        """Refuse what the task cannot tell."""
        if self.probabilities and task in ("regress", "answer"):
            raise RequestError(f"probabilities=true does not go with '{task}', which has no labels to share them")
        if self.best and task != "answer":
            raise RequestError(f"best={self.best} does not go with '{task}'; it is for 'answer'")
        if self.best < 0:
            raise RequestError(f"best={self.best} must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Columns of the input (None: guessed), its format (None: by its ending), and what is told in the output."""

    text: str | None = None
    pair: str | None = None
    header: bool | None = None
    quotes: bool | None = None
    encoding: str = "utf-8"
    format: str | None = None
    id: str | None = None  # embed: the column that names a row
    keep: str | None = None  # predict: columns with commas between them; None: all
    probabilities: bool = False  # predict: of every label or choice
    best: int = 0  # predict, answer: so many of the likeliest answers

    @property
    def columns(self) -> Columns:
        """What readers of tables want to know."""
        named = {field.name: getattr(self, field.name) for field in fields(Columns) if hasattr(self, field.name)}
        return Columns(**named)

    @property
    def telling(self) -> Telling:
        """How much is told of each prediction."""
        return Telling(probabilities=self.probabilities, best=self.best)


READING = ("text", "header", "quotes", "encoding", "format")
EMBED_SETTINGS = (*READING, "id")
PREDICT_SETTINGS = (*READING, "pair", "keep", "probabilities", "best")


def read_file_settings(pairs: Sequence[str], names: Sequence[str]) -> FileSettings:
    """`["text=review"]` as settings; names other than those given and wrong values stop here."""
    return read_pairs(pairs, FileSettings(), names=names)[0]
