"""Kinds of trained vectors: one for a text, sparse ones over the vocabulary (SPLADE), one for each token (ColBERT).

A kind makes a row of numbers for each text, all of one width, so that a step may be embedded in parts; compares rows;
and says what is saved. Queries and documents differ in their prompts alone: none is filled up with [MASK].
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.model.batch import Batch
from bertkit.model.model import NO_HEADS, BertModel
from bertkit.model.pooling import DOCUMENT, QUERY, EmbedSettings, pool
from bertkit.model.retrieval import LateSettings, SparseSettings, word_weights

VECTORS = EmbedSettings(pooling="mean", normalize=True)  # in training, and in the saved folder


def prompts(start: Checkpoint) -> dict[str, str]:
    """What the folder puts before queries and before documents."""
    retrieval = start.retrieval
    if retrieval is not None:
        return {"query_prefix": retrieval.query_prefix, "document_prefix": retrieval.document_prefix}
    embed = start.embed_settings()
    return {"query_prefix": embed.side(QUERY).prefix, "document_prefix": embed.side(DOCUMENT).prefix}


class VectorKind(nn.Module):
    """A row of KINDS; the base is the normalized mean over tokens."""

    temperature: ClassVar[float] = 0.05  # by default; cosines are at most 1
    heads: ClassVar[Mapping[str, int | None]] = NO_HEADS  # that the model needs
    any_loss: ClassVar[bool] = True  # else only contrastive ones

    def __init__(self, start: Checkpoint | None, settings: VectorTuning) -> None:
        super().__init__()
        self.settings = settings

    def rows(self, model: BertModel, batch: Batch) -> Tensor:
        """float32 T X: a row for each text."""
        return F.normalize(pool(model(batch).float(), batch, VECTORS.pooling), dim=-1)

    def scores(self, first_NX: Tensor, candidates_CX: Tensor) -> Tensor:
        """N C: how well each candidate matches."""
        return first_NX @ candidates_CX.T

    def penalty(self, rows_TX: Tensor) -> Tensor | float:
        """What is added to the mean loss of a step."""
        return 0.0

    def saved(self) -> dict[str, Any]:
        """Fields of the checkpoint that differ from those of dense vectors."""
        return {}


class SparseKind(VectorKind):
    """Weights of word pieces by the masked-word head, with the FLOPS penalty (Paria 2020), which makes them sparse."""

    temperature = 1.0
    heads: ClassVar[Mapping[str, int | None]] = {"masked_word": None}
    any_loss = False

    def __init__(self, start: Checkpoint, settings: VectorTuning) -> None:
        super().__init__(start, settings)
        if not start.model.fills:
            raise RequestError(
                f"'{start.name}' has no masked-word head, which vectors=sparse starts from; name a model that was "
                "pre-trained with objective=mlm and saved with its head"
            )
        before = start.retrieval if isinstance(start.retrieval, SparseSettings) else SparseSettings()
        self.how = SparseSettings(pooling=before.pooling, activation=before.activation, **prompts(start))

    def rows(self, model: BertModel, batch: Batch) -> Tensor:
        """T V."""
        # Low-rank updates are in the model only while it computes forward: nothing can be computed again later.
        recompute = not self.settings.rank
        return word_weights(model.heads["masked_word"], model(batch), batch, self.how, recompute=recompute)

    def penalty(self, rows_TX: Tensor) -> Tensor:
        """The products that comparing two texts takes on average: the sum of the squared mean weights."""
        return self.settings.flops * rows_TX.mean(dim=0).square().sum()

    def saved(self) -> dict[str, Any]:
        """How the weights are made."""
        return {"embed": None, "retrieval": self.how}


class LateKind(VectorKind):
    """A projected vector for each token; a score is the sum of each query token's best match."""

    temperature = 1.0
    any_loss = False

    def __init__(self, start: Checkpoint, settings: VectorTuning) -> None:
        super().__init__(start, settings)
        if settings.rank:
            raise RequestError("rank= does not go with vectors=late, whose projection is new; leave one of them out")
        before = start.retrieval.dense if isinstance(start.retrieval, LateSettings) else None
        generator = torch.Generator().manual_seed(settings.seed)
        linear = nn.Linear(start.model.config.width, settings.projection, bias=False)
        nn.init.normal_(linear.weight, std=start.model.config.width**-0.5, generator=generator)
        self.dense = nn.Sequential(linear, nn.Identity()) if before is None else deepcopy(before)
        self.dense.requires_grad_(True)
        query, document = prompts(start).values()
        self.how = LateSettings(query_prefix=query, document_prefix=document)

    def rows(self, model: BertModel, batch: Batch) -> Tensor:
        """T (L W): the vectors of a text's tokens, and zeros up to the longest text that there may be."""
        padded_TLW = batch.pad(F.normalize(self.dense(model(batch).float()), dim=-1))
        missing = self.settings.max_length - padded_TLW.shape[1]
        return F.pad(padded_TLW, (0, 0, 0, missing)).flatten(1)

    def scores(self, first_NX: Tensor, candidates_CX: Tensor) -> Tensor:
        """N C."""
        queries, (documents_CLW, real_CL) = self._tokens(first_NX), self._tokens(candidates_CX)
        missing_CL = torch.zeros_like(real_CL, dtype=torch.float).masked_fill(~real_CL, float("-inf"))
        return torch.stack([
            (torch.einsum("qw,clw->qcl", query_LW[real_L], documents_CLW) + missing_CL).amax(dim=-1).sum(dim=0)
            for query_LW, real_L in zip(*queries, strict=True)
        ])  # fmt: skip

    def _tokens(self, rows_TX: Tensor) -> tuple[Tensor, Tensor]:
        """(T L W, T L which are tokens), L the longest of these texts."""
        tokens_TLW = rows_TX.view(len(rows_TX), self.settings.max_length, -1)
        real_TL = tokens_TLW.detach().abs().sum(dim=-1) > 0
        longest = int(real_TL.sum(dim=1).max())
        return tokens_TLW[:, :longest], real_TL[:, :longest]

    def saved(self) -> dict[str, Any]:
        """The projection."""
        dense = deepcopy(self.dense).cpu().requires_grad_(False).eval()
        return {"embed": None, "retrieval": replace(self.how, dense=dense)}


KINDS: Mapping[str, type[VectorKind]] = {
    "dense": VectorKind,
    "sparse": SparseKind,
    "late": LateKind,
}
