"""Dense retrieval: a vector for each document by a model for embeddings, compared exactly by cosine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.bundled import embedding_model
from bertkit.checkpoint.tensors import fingerprint
from bertkit.errors import RequestError
from bertkit.model.pooling import DOCUMENT, QUERY, EmbedSettings
from bertkit.predict.bert import Bert, load
from bertkit.predict.files.pipeline import model_digest
from bertkit.predict.vectors import embed_texts, text_blocks
from bertkit.search.retrievers.formats import FORMATS, QuickQuery, VectorFormat, VectorsWriter, exact_scores
from bertkit.search.retrievers.retriever import NO_HITS, Hits, Retriever, Segment, best
from bertkit.settings import check_fields
from bertkit.text.length import LengthReport

CANDIDATES = 20  # for each document to find, where quick scores have no margin; at least FEWEST
FEWEST = 500


@dataclass(frozen=True, kw_only=True)
class DenseSettings:
    """How vectors are stored."""

    vectors: Literal["int8", "float32", "float16", "binary"] = "int8"

    def __post_init__(self) -> None:
        check_fields(self)


class Dense(Retriever[Mapping[str, NDArray[Any]]]):
    """The retriever by one vector for each document."""

    settings_type = DenseSettings

    def __init__(self, settings: DenseSettings, model: Path | None) -> None:
        super().__init__(settings, model)
        self.form: VectorFormat = FORMATS[settings.vectors]
        self._long: list[LengthReport] = []

    @cached_property
    def bert(self) -> Bert:
        """The model; without a name the bundled variant for sentences."""
        return load(embedding_model(self.model))

    @cached_property
    def _embedding(self) -> EmbedSettings:
        return self.bert.checkpoint.embed_settings(normalize=True).one_vector()

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """The model's checksum, how it makes vectors, and how they are stored."""
        dense = self._embedding.dense
        projection = "" if dense is None else fingerprint(dense.state_dict())
        return {
            "model": model_digest(self.bert.checkpoint) + projection,
            "embedding": str(self._embedding),
            "vectors": self.settings.vectors,
        }

    @property
    def note(self) -> str:
        """How many texts were over the model's limit."""
        return str(reduce(LengthReport.joined, self._long)) if self._long else ""

    def writer(self, folder: Path) -> "DenseWriter":
        """Embeds a segment's documents."""
        return DenseWriter(self, folder)

    def open(self, folder: Path) -> Mapping[str, NDArray[Any]]:
        """The stored vectors."""
        return self.form.open(folder)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of documents, after the folder's prompt for them."""
        blocks = list(text_blocks(self.bert.checkpoint, texts, self._embedding.side(DOCUMENT)))
        self._long += [block.lengths for block in blocks if block.lengths.long]
        vectors_ND = np.concatenate([np.asarray(block.vectors) for block in blocks])
        if not np.isfinite(vectors_ND).all():
            raise RequestError(f"'{self.bert.name}' gives vectors that are not finite; its weights are broken")
        return vectors_ND

    def search(
        self, segments: Sequence[Segment[Mapping[str, NDArray[Any]]]], queries: Sequence[str], k: int
    ) -> list[Hits]:
        """The nearest documents by cosine; queries are read after the folder's prompt for them."""
        settings = self._embedding.side(QUERY)
        vectors_QD = np.asarray(embed_texts(self.bert.checkpoint, list(queries), settings), np.float64)
        return [nearest(segments, self.form, vector, k) for vector in vectors_QD]


class DenseWriter:
    """Vectors of one segment."""

    def __init__(self, dense: Dense, folder: Path) -> None:
        self._dense, self._vectors = dense, VectorsWriter(folder, dense.form)

    def add(self, texts: Sequence[str]) -> None:
        """Embed the texts and write their vectors."""
        self._vectors.append(self._dense.embed(texts))

    def finish(self) -> None:
        """Complete the files."""
        self._vectors.close()


def nearest(
    segments: Sequence[Segment[Mapping[str, NDArray[Any]]]], form: VectorFormat, query_D: NDArray[np.float64], k: int
) -> Hits:
    """The `k` documents nearest to a query by the vectors as they are stored."""
    query = form.prepare(query_D / (float(np.linalg.norm(query_D)) or 1.0))
    numbers = _candidates(segments, form, query, k)
    if not len(numbers):
        return NO_HITS
    firsts = [segment.first for segment in segments]
    owners = np.searchsorted(firsts, numbers, side="right") - 1
    rows = [
        segment.part["vectors"][numbers[owners == n] - segment.first]
        for n, segment in enumerate(segments)
        if (owners == n).any()
    ]
    return best(numbers, exact_scores(query, np.concatenate(rows)), k)


def _candidates(
    segments: Sequence[Segment[Mapping[str, NDArray[Any]]]], form: VectorFormat, query: QuickQuery, k: int
) -> NDArray[np.int64]:
    """The documents that may be among the best, in order of their numbers."""
    count = k if query.margin is not None else max(CANDIDATES * k, FEWEST)
    slack = 2 * (query.margin or 0.0)
    numbers, scores, least = np.zeros(0, np.int64), np.zeros(0, np.float32), -np.inf
    for segment in segments:
        quick = form.quick(segment.part, query.prepared)
        kept = np.flatnonzero(quick >= least)
        numbers, scores = np.append(numbers, segment.first + kept), np.append(scores, quick[kept])
        if len(scores) > count:
            least = np.partition(scores, len(scores) - count)[len(scores) - count] - slack
            among = scores >= least
            numbers, scores = numbers[among], scores[among]
    return numbers
