"""The importance of each attention head: ablate it and measure."""

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
MASK_EVERY = 7  # one token in seven is masked: 14 %, as in pre-training, the same ones at every measurement


@dataclass(frozen=True)
class HeadCost(HeadIndex):
    """What it costs to leave out one head."""

    cost: float


@dataclass(frozen=True)
class PruneReport:
    """What leaving heads out costs: in masked-word loss, or in the cosine to the whole model's vectors."""

    measure: str  # "masked-word loss" or "1 - cosine of the mean vector"
    whole: float  # the same measure with every head in place
    alone: tuple[HeadCost, ...]  # each head left out alone, cheapest first
    together: tuple[tuple[int, float], ...]  # (how many of the cheapest, cost of leaving all of them out)


def prune(bert: Bert, texts: Sequence[str], update: Callable[[int], None] = lambda done: None) -> PruneReport:
    """Leave out every head alone, then an eighth, a quarter and half of them, cheapest first."""
    if not texts:
        raise RequestError("pruning is measured on texts; give one at least")
    config, encoder = bert.model.config, bert.model.encoder
    measured = _WordLoss(bert, texts) if bert.model.fills else _VectorTurn(bert, texts)
    whole = measured.value()
    costs = []
    for layer in range(1, config.depth + 1):
        for head in range(1, config.heads + 1):
            with without_heads(encoder, [(layer, head)]):
                costs.append(HeadCost(layer, head, measured.value() - whole))
            update(len(costs))
    alone = tuple(sorted(costs, key=lambda each: each.cost))
    together = []
    for count in sorted({max(len(alone) // share, 1) for share in (8, 4, 2)}):
        with without_heads(encoder, [(each.layer, each.head) for each in alone[:count]]):
            together.append((count, measured.value() - whole))
    return PruneReport(measured.name, whole, alone, tuple(together))


@contextmanager
def without_heads(encoder: Encoder, heads: Collection[Head]) -> Iterator[None]:
    """Inside, these heads give zeros; ALBERT's shared layer loses a head only at the asked depth."""
    uses: dict[nn.Module, list[int]] = {}
    for number, layer in enumerate(encoder.stack, start=1):
        uses.setdefault(layer.attention.out, []).append(number)
    width = encoder.config.width // encoder.config.heads
    hooks = [out.register_forward_pre_hook(_silencer(numbers, heads, width)) for out, numbers in uses.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _silencer(numbers: Sequence[int], heads: Collection[Head], width: int) -> Callable[..., Any]:
    """A hook before the output map that zeroes heads; the map is used once for each of `numbers`, in turn."""
    calls = 0

    def silence(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        layer = numbers[calls % len(numbers)]
        calls += 1
        mixed = arguments[0].clone()
        for head in (head for at, head in heads if at == layer):
            mixed[:, (head - 1) * width : head * width] = 0
        return (mixed,)

    return silence


class _WordLoss:
    """Mean loss of masked tokens: every seventh token of the text that is not a special token."""

    name = "masked-word loss"

    def __init__(self, bert: Bert, texts: Sequence[str]) -> None:
        self.model = bert.model
        self.batches = [(batch, *_hidden(batch, bert)) for batch in _batches(bert, texts)]
        if not any(len(places) for _, _, places in self.batches):
            raise RequestError("the texts have no token that could be hidden; give one with a word in it")

    def value(self) -> float:
        """Nats per masked token."""
        total, count = 0.0, 0
        for batch, ids, places in self.batches:
            with torch.inference_mode():
                logits = self.model.read("masked_word", self.model(batch, ids)[places], batch).float()
                total += float(F.cross_entropy(logits, batch.ids[places], reduction="sum"))
            count += len(places)
        return total / count


class _VectorTurn:
    """1 - cosine between the mean vectors with and without the heads."""

    name = "1 - cosine of the mean vector"

    def __init__(self, bert: Bert, texts: Sequence[str]) -> None:
        self.model = bert.model
        self.batches = _batches(bert, texts)
        self.before = self._vectors()

    def value(self) -> float:
        """0 when nothing changed."""
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


def _hidden(batch: Batch, bert: Bert) -> tuple[Tensor, Tensor]:
    """The ids with some replaced by [MASK], and where."""
    wired = torch.tensor([bert.tokenizer.cls_id, bert.tokenizer.sep_id], device=batch.ids.device)
    real = (~torch.isin(batch.ids, wired)).nonzero().flatten()
    places = real[min(MASK_EVERY // 2, max(len(real) - 1, 0)) :: MASK_EVERY]
    return batch.ids.index_fill(0, places, bert.tokenizer.mask_id), places
