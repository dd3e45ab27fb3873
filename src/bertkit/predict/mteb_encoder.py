"""A model as `mteb.evaluate` takes it: mteb's encoder protocol. mteb is imported when it asks for the metadata."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertkit.predict.bert import Bert, load

Vectors = np.ndarray | Tensor


class MtebEncoder:
    """`mteb.evaluate(bertkit.MtebEncoder("my-model"), tasks)`; without a model, the bundled one's embeddings.

    `name` and `revision` are those of mteb's results: by default bertkit/ and the model's name.
    """

    def __init__(
        self,
        model: Bert | Path | str | None = None,
        revision: str | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
    ) -> None:
        self.bert = model if isinstance(model, Bert) else load(model, device=device)
        self.name, self.revision = name or f"bertkit/{self.bert.embedder.name}", revision or "local"

    def encode(self, inputs: Iterable[Mapping[str, Any]], **options: object) -> NDArray[np.float32]:
        """float32 [texts, width]: the vectors of all batches; `options` are mteb's (task, split, prompt type)."""
        return self.bert.embed([text for batch in inputs for text in batch["text"]])

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """[first, second]: cosines."""
        return _units(embeddings1) @ _units(embeddings2).T

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """[pairs]: cosines."""
        return (_units(embeddings1) * _units(embeddings2)).sum(dim=-1)

    @cached_property
    def mteb_model_meta(self) -> object:
        """Mteb's description of the model."""
        from mteb.models import ModelMeta  # type: ignore[import-not-found]

        config = self.bert.embedder.checkpoint.model.config
        return ModelMeta.create_empty(
            {"name": self.name, "revision": self.revision, "max_tokens": config.max_length, "framework": ["PyTorch"]}
        )


def _units(vectors: Vectors) -> Tensor:
    return F.normalize(torch.from_numpy(np.atleast_2d(np.asarray(vectors, dtype=np.float32))), dim=-1)
