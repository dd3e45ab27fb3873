"""What sparse and late retrieval share: a model that was trained for it, its identity, its note on long texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.errors import RequestError
from bertkit.model.retrieval import DOCUMENT, QUERY, LateSettings, RetrievalSettings
from bertkit.predict.files.pipeline import model_digest
from bertkit.predict.retrieval import TextBlock, retrieval_settings
from bertkit.search.retrievers.retriever import Retriever
from bertkit.text.length import LengthReport

Part = TypeVar("Part")


class Learned(Retriever[Part]):
    """A retriever by a model whose folder says how its vectors for retrieval are made."""

    kind: ClassVar[type[RetrievalSettings]]
    encode: ClassVar[Callable[..., Iterator[TextBlock[Any]]]]  # of a checkpoint, texts and a side

    def __init__(self, settings: Any, model: Path | None) -> None:
        super().__init__(settings, model)
        self._long: list[LengthReport] = []

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model."""
        if self.model is None:
            what = f"{self.kind.what} are made by a model that was trained for them"
            raise RequestError(f"{what}; name its folder, such as one of sentence-transformers' {self.kind.made_by}")
        return load_checkpoint(self.model)

    @cached_property
    def how(self) -> RetrievalSettings:
        """How the model's vectors are made; a model that was not trained for them is refused."""
        return retrieval_settings(self.checkpoint, self.kind)

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """The checksums of the model and its projection, and all settings."""
        dense = self.how.dense if isinstance(self.how, LateSettings) else None
        projection = "" if dense is None else fingerprint(dense.state_dict())
        return {"model": model_digest(self.checkpoint), "vectors": f"{self.how} {projection}", **self.stored}

    @property
    def stored(self) -> Mapping[str, str]:
        """How the vectors are stored."""
        return {name: str(value) for name, value in vars(self.settings).items()}

    @property
    def note(self) -> str:
        """How many documents were over the model's limit."""
        return str(reduce(LengthReport.joined, self._long)) if self._long else ""

    def documents(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of documents; which were too long is noted."""
        blocks = list(type(self).encode(self.checkpoint, texts, DOCUMENT))
        self._long += [block.lengths for block in blocks if block.lengths.long]
        return [row for block in blocks for row in block.rows]

    def queries(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of queries."""
        return [row for block in type(self).encode(self.checkpoint, texts, QUERY) for row in block.rows]
