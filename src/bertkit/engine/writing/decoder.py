"""A model as search strategies see it: the scores of the next token, computed with a key-value cache."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bertkit.engine.batches import Passage, fastest, make_batch
from bertkit.engine.cache import CachedOperations
from bertkit.engine.cpu import on_cpu
from bertkit.engine.cuda_graph import CudaRecorder, Recorder
from bertkit.engine.linear import pack_words
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import BertModel
from bertkit.model.operations import Source


class CachedDecoder:
    """`search.NextScores` of a decoder-only model, or with `sources` of an encoder-decoder model."""

    def __init__(
        self,
        model: BertModel,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sources: Sequence[Passage] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """`new_tokens` is the most that will be generated; tokens from number `vocabulary` on are never chosen."""
        self.stack, self.words = generator_parts(model)
        self.device, self.vocabulary = model.device, vocabulary
        self.prompts = Batch.pack(prompts).to(self.device)
        self.source: Source | None = None
        if sources is not None:
            batch = make_batch(sources, self.device)
            self.source = Source(fastest(model.encoder)(batch), batch)
        self.cache = CachedOperations(fastest(self.stack).ops, self.prompts.longest + new_tokens)
        self._project = pack_words(self.words.decoder) if on_cpu(self.stack) else None
        self._record: Recorder | None = CudaRecorder(self.device) if self.device.type == "cuda" else None
        self._recorded: dict[int, tuple[Tensor, Tensor, Callable[[], Any], Callable[[], Tensor]]] = {}

    def start(self) -> Tensor:
        """N V: the scores after the prompts."""
        hidden_TD = self.stack(self.prompts, None, self.cache, self.source)
        return self._scores(hidden_TD[self.prompts.offsets[1:].long() - 1])

    def step(self, ids_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        """N V: the scores after one token more."""
        if rows_N is not None and not self.cache.select(rows_N):
            self._recorded = {}
        if self._record is None:
            return self._forward(self.cache.next_batch(ids_N))
        return self._replayed(ids_N, self.cache.advance(self.device))

    def _forward(self, batch: Batch) -> Tensor:
        return self._scores(self.stack(batch, None, self.cache, self.source))

    def _replayed(self, ids_N: Tensor, positions_N: Tensor) -> Tensor:
        """The same step as one launch, recorded when its number of rows or of visible slots is new."""
        visible = min(_doubled(max(self.cache.lengths)), self.cache.capacity)
        if visible not in self._recorded:
            ids, positions = ids_N.clone(), positions_N.clone()

            def run() -> Tensor:
                return self._forward(self.cache.at_positions(ids, positions, visible, masked=True))

            run()  # kernels are compiled at the first run
            assert self._record is not None
            self._recorded[visible] = (ids, positions, *self._record(run))
        ids, positions, replay, output = self._recorded[visible]
        ids.copy_(ids_N)
        positions.copy_(positions_N)
        replay()
        return output()

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        if self._project is None:
            scores_NV: Tensor = self.words(hidden_ND).float()
        else:
            scores_NV = self._project(self.words.transformed(hidden_ND))
        if self.vocabulary is not None and self.vocabulary < scores_NV.shape[-1]:
            scores_NV[:, self.vocabulary :] = -torch.inf
        return scores_NV


def _doubled(length: int) -> int:
    """The visible slots for so many tokens: a power of two, 64 at least."""
    return max(64, 1 << (length - 1).bit_length())


def generator_parts(model: BertModel) -> tuple[Encoder, MaskedWordHead]:
    """The causal stack and the vocabulary's projection; a model that cannot generate is refused."""
    if model.decoder is not None:
        return model.decoder.stack, model.decoder.words
    if not model.writes:
        raise RequestError(
            "this model cannot write: it is an encoder, which sees both sides of every word; "
            "fill in a [MASK] with it, or fine-tune it to write ('bertkit finetune write')"
        )
    words = model.heads["masked_word"]
    assert isinstance(words, MaskedWordHead)
    return model.encoder, words
