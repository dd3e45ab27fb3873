"""Many texts through the model: packed batches of a bounded number of tokens, long texts through windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import window_cuts, windows

# Large enough to fill two cores' caches with work, small enough for a BERT-large layer's activations (about 200 MB).
TOKENS_PER_BATCH = 4096


@dataclass(frozen=True)
class Passage:
    """What goes through the model in one piece: token ids with [CLS] in front and [SEP] behind."""

    ids: Sequence[int]
    segments: Sequence[int]


def cut(encoding: Encoding, limit: int) -> Passage:
    """The text's first tokens and its last one, [SEP]: at most `limit`."""
    ids, segments = encoding.ids, encoding.segments
    if len(ids) <= limit:
        return Passage(ids, segments)
    return Passage([*ids[: limit - 1], ids[-1]], [*segments[: limit - 1], segments[-1]])


def window_passages(encoding: Encoding, limit: int) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Windows over a long text's tokens, each between [CLS] and [SEP]; the spans count from the first real token."""
    ids, segments = list(encoding.ids), list(encoding.segments)
    room = limit - 2
    spans = windows(len(ids) - 2, room, overlap=room // 4)
    passages = [
        Passage([ids[0], *ids[1 + a : 1 + b], ids[-1]], [segments[0], *segments[1 + a : 1 + b], segments[-1]])
        for a, b in spans
    ]
    return passages, spans


def token_batches(lengths: Sequence[int], budget: int = TOKENS_PER_BATCH) -> Iterator[list[int]]:
    """Indices by length, longest first, in batches of at most `budget` tokens (one text at least)."""
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[index] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def make_batch(passages: Sequence[Passage], device: torch.device) -> Batch:
    """Passages packed end to end on the model's device."""
    return Batch.pack([p.ids for p in passages], [p.segments for p in passages]).to(device)


def layer_vectors(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> Tensor:
    """T (D x layers): the chosen layers side by side; layers above the highest are never computed."""
    if list(layers) == [encoder.config.depth]:
        vectors: Tensor = encoder(batch)
        return vectors
    states = encoder.hidden_states(batch, depth=max(layers))
    return torch.cat([states[layer] for layer in layers], dim=-1)


def stitch(parts: Sequence[Tensor], spans: Sequence[tuple[int, int]]) -> Tensor:
    """L D of a whole long text: each token from the window that shows most around it, [CLS] and [SEP] averaged."""
    cuts = window_cuts(spans)
    body = [
        part[1 + start - span[0] : 1 + stop - span[0]]
        for part, span, (start, stop) in zip(parts, spans, pairwise(cuts), strict=True)
    ]
    first = torch.stack([part[0] for part in parts]).mean(dim=0, keepdim=True)
    last = torch.stack([part[-1] for part in parts]).mean(dim=0, keepdim=True)
    return torch.cat([first, *body, last])
