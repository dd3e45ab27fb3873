"""Sparse vectors (SPLADE) and token vectors (ColBERT) of texts: `Bert.sparse` and `Bert.token_vectors`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import Passage, fastest, make_batch, map_batches, token_batches, token_budget, truncate
from bertkit.errors import RequestError, warn
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.retrieval import (
    DOCUMENT,
    QUERY,
    Expansion,
    LateSettings,
    RetrievalSettings,
    SparseSettings,
    UnseenTokens,
    word_weights,
)
from bertkit.progress import late_progress
from bertkit.text.length import LengthReport, numbered, report_lengths
from bertkit.text.tokenizer import Tokenizer
from bertkit.text_inputs import listed_texts

Row = TypeVar("Row")
Settings = TypeVar("Settings", bound=RetrievalSettings)
Weights = tuple[np.ndarray, np.ndarray]  # ids of word pieces, ascending, int32; their weights, float32, above 0
Hidden = Callable[[Batch, Sequence[int]], Tensor]  # T D of a batch of the texts with these numbers
Tick = Callable[[int], None]  # of progress: so many texts more are done
TEXTS_PER_BLOCK = 2048  # texts are sorted by length within a block


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A weight for each word piece that a text stands for, also of pieces that it does not contain."""

    ids: np.ndarray  # int32: the pieces in the vocabulary, ascending
    weights: np.ndarray  # float32, above 0
    tokens: tuple[str, ...]  # the pieces

    @property
    def words(self) -> dict[str, float]:
        """Piece -> weight, the heaviest first."""
        return {self.tokens[at]: float(self.weights[at]) for at in np.argsort(-self.weights, kind="stable")}

    def __matmul__(self, other: "SparseVector") -> float:
        """The score of a query and a document: the sum of the products of the weights of pieces they share."""
        _, own, others = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        return float(self.weights[own] @ other.weights[others])


@dataclass(frozen=True)
class TextBlock(Generic[Row]):
    """Consecutive texts with what was computed for each, and which were too long."""

    texts: list[str]
    rows: list[Row]
    lengths: LengthReport


def sparse_blocks(
    checkpoint: Checkpoint, texts: Iterable[str], side: str, tick: Tick | None = None
) -> Iterator[TextBlock[Weights]]:
    """Blocks of texts of a side with their sparse vectors, in bounded memory."""
    settings = retrieval_settings(checkpoint, SparseSettings)
    rows = partial(_sparse_rows, checkpoint, settings)
    return _blocks(checkpoint, texts, settings.prefix(side), checkpoint.max_length, rows, tick)


def token_blocks(
    checkpoint: Checkpoint, texts: Iterable[str], side: str, tick: Tick | None = None
) -> Iterator[TextBlock[np.ndarray]]:
    """Blocks of texts of a side with the vectors of their tokens, float32 [tokens, width], in bounded memory."""
    settings = retrieval_settings(checkpoint, LateSettings)
    limit = settings.limit(side, checkpoint.max_length, checkpoint.model.config.max_length)
    rows = partial(_token_rows, checkpoint, settings, side)
    return _blocks(checkpoint, texts, settings.prefix(side), limit, rows, tick)


def sparse_texts(
    checkpoint: Checkpoint, texts: str | Sequence[str], *, query: bool
) -> SparseVector | list[SparseVector]:
    """A sparse vector for a text, or a list of them."""
    found = list(_shown(sparse_blocks, checkpoint, listed_texts(texts), query))
    names = checkpoint.required_tokenizer.tokens
    vectors = [SparseVector(ids, weights, tuple(names(ids))) for block in found for ids, weights in block.rows]
    return vectors[0] if isinstance(texts, str) else vectors


def token_vectors(checkpoint: Checkpoint, texts: str | Sequence[str], *, query: bool) -> np.ndarray | list[np.ndarray]:
    """float32 [tokens, width] for a text, or a list of such arrays."""
    found = list(_shown(token_blocks, checkpoint, listed_texts(texts), query))
    vectors = [row for block in found for row in block.rows]
    return vectors[0] if isinstance(texts, str) else vectors


def retrieval_settings(checkpoint: Checkpoint, kind: type[Settings]) -> Settings:
    """How the model makes vectors of this kind; one that was not trained for them is refused."""
    settings = checkpoint.retrieval
    if not isinstance(settings, kind):
        raise RequestError(
            f"'{checkpoint.name or 'this model'}' was not trained to make {kind.what}; load a folder that was, "
            f"such as one of sentence-transformers' {kind.made_by}"
        )
    return settings


def _shown(
    blocks: Callable[..., Iterator[TextBlock[Row]]], checkpoint: Checkpoint, texts: list[str], query: bool
) -> Iterator[TextBlock[Row]]:
    """The blocks, with a progress bar where they take long, and at the end a warning of texts over the limit."""
    reports = []
    with late_progress("embedding", len(texts)) as advance:
        for block in blocks(checkpoint, texts, QUERY if query else DOCUMENT, advance):
            reports += [block.lengths] if block.lengths.long else []
            yield block
    if reports:
        warn(str(reduce(LengthReport.joined, reports)))


def _blocks(
    checkpoint: Checkpoint,
    texts: Iterable[str],
    prefix: str,
    limit: int,
    rows: Callable[[Sequence[Passage], Tick | None], list[Row]],
    tick: Tick | None,
) -> Iterator[TextBlock[Row]]:
    """Blocks of texts with what `rows` makes of their tokens, at most `limit` of each."""
    texts, done = iter(texts), 0
    while block := list(islice(texts, TEXTS_PER_BLOCK)):
        plain = checkpoint.required_tokenizer.encode_plain([prefix + text for text in block])
        report = report_lengths([len(ids) for ids, _ in plain], limit, "truncate", first=done)
        found = rows([truncate(Passage(*each), limit) for each in plain], tick)
        for place, row in enumerate(found):
            _refuse_nan(row, numbered("text", done + place), checkpoint.name)
        yield TextBlock(block, found, report)
        done += len(block)


def _refuse_nan(row: Any, text: str, name: str) -> None:
    weights_or_vectors = row[-1] if isinstance(row, tuple) else row
    if not np.isfinite(weights_or_vectors).all():
        raise RequestError(
            f"{text} gets numbers that are not finite from '{name or 'this model'}', so weights of the model are "
            "damaged; copy or train it again"
        )


def _in_batches(
    model: BertModel,
    passages: Sequence[Passage],
    tick: Tick | None,
    compute: Callable[[Batch, Sequence[int]], Sequence[Row]],
) -> list[Row]:
    """What `compute` makes of each passage, in order; it is called with batches of them and their numbers."""
    lengths = [len(passage.ids) for passage in passages]

    def compute_batch(chosen: list[int]) -> Sequence[Row]:
        return compute(make_batch([passages[number] for number in chosen], model.device), chosen)

    batches = list(token_batches(lengths, token_budget(lengths, model.device)))
    computed = map_batches(compute_batch, batches, sum(lengths), model.device, tick)
    order = [number for chosen in batches for number in chosen]
    found = dict(zip(order, (row for rows in computed for row in rows), strict=True))
    return [found[number] for number in range(len(passages))]


def _sparse_rows(
    checkpoint: Checkpoint, settings: SparseSettings, passages: Sequence[Passage], tick: Tick | None
) -> list[Weights]:
    model = checkpoint.model
    with torch.inference_mode():
        forward = fastest(model.encoder)

    def compute(batch: Batch, _: Sequence[int]) -> list[Weights]:
        weights_NV = word_weights(model.heads["masked_word"], forward(batch), batch, settings).cpu().numpy()
        return [_nonzero(weights_V) for weights_V in weights_NV]

    return _in_batches(model, passages, tick, compute)


def _nonzero(weights_V: np.ndarray) -> Weights:
    ids = np.flatnonzero(weights_V)
    return ids.astype(np.int32), weights_V[ids]


def _token_rows(
    checkpoint: Checkpoint, settings: LateSettings, side: str, passages: Sequence[Passage], tick: Tick | None
) -> list[np.ndarray]:
    tokenizer, expansion = checkpoint.required_tokenizer, settings.expansion if side == QUERY else None
    words = [len(passage.ids) for passage in passages]  # tokens of each text, without those it is filled up with
    skipped = skipped_ids(settings, side, tokenizer)
    if expansion is not None:
        passages = [filled_up(passage, expansion, tokenizer) for passage in passages]
    some_unseen = expansion is not None and not expansion.attend
    hidden = _with_unseen(checkpoint.model, words) if some_unseen else _all_seen(checkpoint.model)

    def compute(batch: Batch, chosen: Sequence[int]) -> list[np.ndarray]:
        vectors = batch.split(settings.vectors(hidden(batch, chosen)).cpu())
        kept = batch.split(~torch.isin(batch.ids.cpu(), skipped))
        return [vectors_LW[kept_L].numpy() for vectors_LW, kept_L in zip(vectors, kept, strict=True)]

    return _in_batches(checkpoint.model, passages, tick, compute)


def _all_seen(model: BertModel) -> Hidden:
    """The encoder by its fastest engine."""
    with torch.inference_mode():
        forward = fastest(model.encoder)
    return lambda batch, _: forward(batch)


def _with_unseen(model: BertModel, words: Sequence[int]) -> Hidden:
    """The encoder where no token sees those after the first `words` of its sequence."""

    def hidden(batch: Batch, chosen: Sequence[int]) -> Tensor:
        words_N = torch.tensor([words[number] for number in chosen], device=model.device)
        seen_T = batch.positions < words_N.repeat_interleave(batch.offsets.diff())
        hidden_TD: Tensor = model.encoder(batch, None, UnseenTokens(seen_T))
        return hidden_TD

    return hidden


def filled_up(passage: Passage, expansion: Expansion, tokenizer: Tokenizer) -> Passage:
    """A query with [MASK] after it, up to the length of the expansion."""
    missing = max(0, expansion.length - len(passage.ids))
    filler = token_ids([expansion.token or tokenizer.mask_token], tokenizer)
    if not filler:
        raise RequestError(f"the vocabulary has no {expansion.token!r}, with which the model fills up queries")
    return Passage([*passage.ids, *filler * missing], [*passage.segments, *[0] * missing])


def skipped_ids(settings: LateSettings, side: str, tokenizer: Tokenizer) -> Tensor:
    """The ids of tokens that get no vector on a side; words that are no single token are no reason to skip [UNK]."""
    return torch.tensor(token_ids(settings.skipped if side in settings.skipped_on else (), tokenizer), dtype=torch.long)


def token_ids(tokens: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The ids of those that are in the vocabulary."""
    return [tokenizer.vocab[token] for token in tokens if token in tokenizer.vocab]


def maxsim(query_LW: NDArray[Any], document_LW: NDArray[Any], *, mean: bool = False) -> float:
    """The score of late interaction: for each token of the query its best match in the document, summed."""
    best_L = (query_LW @ document_LW.T).max(axis=1)
    return float(best_L.mean() if mean else best_L.sum())
