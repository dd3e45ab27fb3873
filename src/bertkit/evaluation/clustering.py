"""Clustering: how well k-means on embeddings finds the labels of texts: V-measure (Rosenberg and Hirschberg 2007)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import LABEL_NAMES, TEXT_NAMES
from bertkit.data.tables import Columns, open_table
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import OtherColumns, RowScore, Yardstick
from bertkit.predict.bert import Bert
from bertkit.tasks.read import read_examples


class Clustering(Yardstick):
    """Texts with a label each; there are as many clusters as labels."""

    name, metric, seeds = "clustering", "v_measure", 5  # k-means depends on where it begins
    columns = "text, label"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """(text, label) of each row."""
        table = open_table(path, columns)
        names = {name.lower() for name in table.names}
        if not (columns.text or names & set(TEXT_NAMES)) or not (columns.label or names & set(LABEL_NAMES)):
            raise OtherColumns(
                f"{path} has the columns {', '.join(table.names)}; needed are {self.columns}, "
                "or others that are named: text=... label=..."
            )
        examples = read_examples("classify", path, columns).examples
        rows = [(" ".join(filter(None, example.texts)), example.names[0]) for example in examples]
        if len({label for _, label in rows}) < 2:
            raise RequestError(f"{path} has one label only, {rows[0][1]!r}; give a file with two or more")
        return rows

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """The label of each text, and its cluster by each seed."""
        from sklearn.cluster import KMeans

        numbers = {label: number for number, label in enumerate(sorted({label for _, label in rows}))}
        vectors = bert.embed([text for text, _ in rows])
        clusters = {
            f"seed {seed}": KMeans(len(numbers), n_init=1, random_state=seed).fit_predict(vectors).tolist()
            for seed in range(self.seeds)
        }
        return [
            RowScore({"label": numbers[label]} | {seed: found[n] for seed, found in clusters.items()})
            for n, (_, label) in enumerate(rows)
        ]

    def note(self, bert: Bert, rows: Sequence[Any]) -> str:
        """How often k-means ran, for how many clusters."""
        count = len({label for _, label in rows})
        return f"{len(rows):,} texts, {count} clusters; mean over {self.seeds} seeds of k-means"

    def total(self, scores: Sequence[RowScore]) -> dict[str, float]:
        """The V-measure, the mean over seeds."""
        columns = {name: np.array([score.values[name] for score in scores], int) for name in scores[0].values}
        labels = columns.pop("label")
        return {"v_measure": sum(v_measure(labels, found) for found in columns.values()) / len(columns)}


def v_measure(labels: np.ndarray, clusters: np.ndarray) -> float:
    """The harmonic mean of homogeneity and completeness, from counts alone: resamples ask thousands of times."""
    width = int(clusters.max()) + 1
    both = np.bincount(labels * width + clusters, minlength=(int(labels.max()) + 1) * width).reshape(-1, width)
    of_labels, of_clusters = _entropy(both.sum(axis=1)), _entropy(both.sum(axis=0))
    shared = of_labels + of_clusters - _entropy(both.ravel())  # mutual information
    homogeneity, completeness = (max(0.0, shared / each) if each else 1.0 for each in (of_labels, of_clusters))
    total = homogeneity + completeness
    return 2 * homogeneity * completeness / total if total else 0.0


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
