"""What is said about an input file and about the columns of an output: `text=review keep=id,text best=5`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bertkit.data.tables import Columns
from bertkit.settings import read_pairs

if TYPE_CHECKING:
    from bertkit.tasks.row import Detail


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
    def detail(self) -> "Detail":
        """How much is written of each prediction."""
        from bertkit.tasks.row import Detail  # only predictions have it

        return Detail(probabilities=self.probabilities, best=self.best)


READING = ("text", "header", "quotes", "encoding", "format")
EMBED_SETTINGS = (*READING, "id")
PREDICT_SETTINGS = (*READING, "pair", "keep", "probabilities", "best")


def read_file_settings(pairs: Sequence[str], names: Sequence[str]) -> FileSettings:
    """`["text=review"]` as settings; names other than those given and wrong values stop here."""
    return read_pairs(pairs, FileSettings(), names=names)[0]
