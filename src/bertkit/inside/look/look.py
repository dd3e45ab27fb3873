"""`bertkit.look(bert, text)`: all views of one text in one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.files import whole_file
from bertkit.inside.look.data import page_data
from bertkit.inside.look.page import frame, page
from bertkit.inside.look.reading import read
from bertkit.predict.bert import Bert


@dataclass(frozen=True)
class Look:
    """The views of one text. A notebook shows it; `save` writes it as a file that opens anywhere."""

    data: dict[str, Any]

    @property
    def html(self) -> str:
        """The page, complete."""
        return page(self.data)

    def save(self, path: Path | str) -> None:
        """Write the page whole or not at all."""
        with whole_file(path) as draft:
            draft.write_text(self.html, encoding="utf-8", newline="\n")

    def _repr_html_(self) -> str:
        return frame(self.html)

    def __repr__(self) -> str:
        return f"Look({len(self.data['tokens'])} tokens; {self.data['model']}; save it, or show it in a notebook)"


def look(bert: Bert, text: str, pair: str | None = None) -> Look:
    """Attention, neurons, vectors and fills of a text, or a pair, layer by layer, from the model itself."""
    return Look(page_data(bert, read(bert, text, pair)))
