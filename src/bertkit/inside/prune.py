"""The importance of attention heads, measured by ablation."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.engine.batches import Passage, make_batch, token_batches
from bertkit.errors import RequestError
from bertkit.inside.look.heads import HeadIndex
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.pooling import pool
from bertkit.predict.bert import Bert

Head = tuple[int, int]  # layer and head, from 1
MASK_EVERY = 7  # one token in seven (14 %, as in pre-training) is masked, the same ones in every measurement


@dataclass(frozen=True)
class HeadCost(HeadIndex):
    """The cost of removing one head."""

    cost: float


@dataclass(frozen=True)
class PruneReport:
    """The cost of removing heads: in masked-word loss, or in the cosine to the original vectors."""

    measure: str  # "masked-word loss" or "1 - cosine of the mean vector"
    whole: float  # the measure with all heads
    alone: tuple[HeadCost, ...]  # of removing each head alone, cheapest first
    together: tuple[tuple[int, float], ...]  # (number of the cheapest heads, cost of removing all of them)


def prune(bert: Bert, texts: Sequence[str], update: Callable[[int], None] = lambda count: None) -> PruneReport:
    """Remove every head alone, then an eighth, a quarter and half of them, cheapest first."""
    if not texts:
        raise RequestError("pruning is measured on texts; give one at least")
    config, encoder = bert.model.config, bert.model.encoder
    measure = _WordLoss(bert, texts) if bert.model.fills else _VectorChange(bert, texts)
    whole = measure.value()
    costs = []
    for layer in range(1, config.depth + 1):
        for head in range(1, config.heads + 1):
            with without_heads(encoder, [(layer, head)]):
                costs.append(HeadCost(layer, head, measure.value() - whole))
            update(len(costs))
    alone = tuple(sorted(costs, key=lambda head: head.cost))
    together = []
    for count in sorted({max(len(alone) // share, 1) for share in (8, 4, 2)}):
        with without_heads(encoder, [(cost.layer, cost.head) for cost in alone[:count]]):
            together.append((count, measure.value() - whole))
    return PruneReport(measure.name, whole, alone, tuple(together))


@contextmanager
def without_heads(encoder: Encoder, heads: Collection[Head]) -> Iterator[None]:
    """Inside the context, the outputs of these heads are zero; in ALBERT's shared layer only at the given depth."""
    uses: dict[nn.Module, list[int]] = {}
    for number, layer in enumerate(encoder.stack, start=1):
        uses.setdefault(layer.attention.out, []).append(number)
    width = encoder.config.width // encoder.config.heads
    hooks = [out.register_forward_pre_hook(_zeroing_hook(numbers, heads, width)) for out, numbers in uses.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zeroing_hook(numbers: Sequence[int], heads: Collection[Head], width: int) -> Callable[..., Any]:
    """A hook before the output projection that zeroes heads; the projection is used by the layers `numbers` in turn."""
    calls = 0

    def zero_heads(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        layer = numbers[calls % len(numbers)]
        calls += 1
        mixed = arguments[0].clone()
        for head in (head for number, head in heads if number == layer):
            mixed[:, (head - 1) * width : head * width] = 0
        return (mixed,)

    return zero_heads


class _WordLoss:
    """The mean loss of masked tokens: every seventh token, without special tokens."""

    name = "masked-word loss"

    def __init__(self, bert: Bert, texts: Sequence[str]) -> None:
        self.model = bert.model
        self.batches = [(batch, *_masked(batch, bert)) for batch in _batches(bert, texts)]
        if not any(len(positions) for _, _, positions in self.batches):
            raise RequestError("the texts have no token that could be masked; give one with a word in it")

    def value(self) -> float:
        """Nats per masked token."""
        total, count = 0.0, 0
        for batch, ids, positions in self.batches:
            with torch.inference_mode():
                logits = self.model.read("masked_word", self.model(batch, ids)[positions], batch).float()
                total += float(F.cross_entropy(logits, batch.ids[positions], reduction="sum"))
            count += len(positions)
        return total / count


class _VectorChange:
    """1 - cosine between the mean vectors with and without the heads."""

    name = "1 - cosine of the mean vector"

    def __init__(self, bert: Bert, texts: Sequence[str]) -> None:
        self.model = bert.model
        self.batches = _batches(bert, texts)
        self.before = self._vectors()

    def value(self) -> float:
        """0 if nothing has changed."""
        return 1 - float(F.cosine_similarity(self._vectors(), self.before).mean())

    def _vectors(self) -> Tensor:
        with torch.inference_mode():
            return torch.cat([pool(self.model(batch), batch, "mean") for batch in self.batches]).double()


def _batches(bert: Bert, texts: Sequence[str]) -> list[Batch]:
    limit, passages = bert.checkpoint.max_length, []
    for number, encoding in enumerate(bert.tokenizer.encode_batch(texts), start=1):
        if len(encoding) > limit:
            raise RequestError(f"text {number} has {len(encoding)} tokens, over the limit of {limit}; shorten it")
        passages.append(Passage(encoding.ids, encoding.segments))
    groups = token_batches([len(passage.ids) for passage in passages])
    return [make_batch([passages[index] for index in group], bert.model.device) for group in groups]


def _masked(batch: Batch, bert: Bert) -> tuple[Tensor, Tensor]:
    """The ids with some replaced by [MASK], and the positions of these."""
    special = torch.tensor([bert.tokenizer.cls_id, bert.tokenizer.sep_id], device=batch.ids.device)
    text = (~torch.isin(batch.ids, special)).nonzero().flatten()
    positions = text[min(MASK_EVERY // 2, max(len(text) - 1, 0)) :: MASK_EVERY]
    return batch.ids.index_fill(0, positions, bert.tokenizer.mask_id), positions
