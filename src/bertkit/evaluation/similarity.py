"""Similarity of texts (STS): the rank correlation of cosines of embeddings with scores by people."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import PAIR_NAMES
from bertkit.data.tables import Columns, open_table
from bertkit.evaluation.yardstick import OtherColumns, RowScore, Yardstick
from bertkit.finetuning.embeddings.data import read_pairs
from bertkit.predict.bert import Bert
from bertkit.tasks.metrics.correlation import spearman


class Similarity(Yardstick):
    """Pairs of texts with a score."""

    name, metric = "similarity", "spearman"
    columns = "two texts (sentence1, sentence2), score"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """(one text, the other, score) of each row."""
        table = open_table(path, columns)
        names = {name.lower() for name in table.names}
        known = columns.text is not None or not table.header or any(names >= set(pair) for pair in PAIR_NAMES)
        if len(names) < 3 or not known:
            raise OtherColumns(f"{path} has the columns {', '.join(table.names)}; needed are {self.columns}")
        pairs = read_pairs(path, columns, scored=True)
        assert pairs.scores is not None
        sides = [(pairs.texts[one], pairs.texts[other]) for one, other in pairs.rows.tolist()]
        return [(*texts, score) for texts, score in zip(sides, pairs.scores.tolist(), strict=True)]

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """The cosine of each pair, and its score."""
        one, other = (bert.embed([row[side] for row in rows], normalize=True) for side in (0, 1))
        cosines = np.einsum("nd,nd->n", one, other)
        return [RowScore({"cosine": float(cosine), "score": row[2]}) for cosine, row in zip(cosines, rows, strict=True)]

    def total(self, scores: Sequence[RowScore]) -> dict[str, float]:
        """Spearman's correlation."""
        return {"spearman": spearman(*([score.values[name] for score in scores] for name in ("score", "cosine")))}
