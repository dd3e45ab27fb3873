"""Blanks with accepted words: how often the model's first word is one of them, and how often one of its first five."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.data.tables import Columns
from bertkit.evaluation.yardstick import RowScore, Yardstick, texts_of
from bertkit.predict.bert import Bert

TOP = 5


class BlankTexts(Yardstick):
    """Texts with one blank each."""

    name, metric = "blanks", "first"
    columns = "text (with one [MASK]), answers (accepted words with spaces between them), set (optional: groups)"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """(text, answers, set) of each row."""
        return texts_of(path, columns, ("text", "answers"), "set")

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """1 or 0: the first word is accepted, one of the first five is."""
        scores = []
        for text, answers, group in rows:
            accepted = set(answers.lower().split())
            right = [filled.word.lower() in accepted for filled in bert.fill(text, top=TOP)]
            scores.append(RowScore({"first": float(right[0]), f"first_{TOP}": float(any(right))}, group))
        return scores
