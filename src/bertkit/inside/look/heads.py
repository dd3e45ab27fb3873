"""The head catalogue: what each head attends to, how broadly and how far; and heads that link two words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.inside.look.reading import Reading

MIN_SHARE = 0.5  # a head is named for what gets more than this share of its weight
MIN_BREADTH = 0.8  # else, a head whose entropy is this share of the maximum is called broad
SHARES = ("next", "previous", "itself", "first", "separator", "same_word")
KIND_NAMES = {  # what a head of each kind looks at; the page has the same names
    "next": "next word",
    "previous": "previous word",
    "same_word": "same word",
    "itself": "itself",
    "mixed": "mixed",
    "separator": "separator",
    "first": "first token",
    "special": "special tokens",
    "broad": "everything",
}


@dataclass(frozen=True)
class HeadIndex:
    """A head by its layer and its number in the layer, both counted from 1."""

    layer: int
    head: int

    @property
    def name(self) -> str:
        """The name in tables and on pages."""
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class HeadKind(HeadIndex):
    """What a head attends to in some texts. Shares are mean weights from all tokens but special ones."""

    kind: str  # one of SHARES, special, broad or mixed
    entropy: float  # bits: 3 corresponds to uniform attention over 8 tokens
    breadth: float  # entropy relative to the maximum for the length
    distance: float  # mean distance in tokens between query and key
    next: float
    previous: float
    itself: float
    first: float  # [CLS]
    separator: float  # every [SEP]
    same_word: float  # other tokens with the same id, if there are any
    special: float  # the first token and separators together

    @property
    def spread(self) -> float:
        """Over how many tokens the attention is spread: uniform attention over as many has this entropy."""
        return float(2**self.entropy)


@dataclass(frozen=True)
class LinkedHead(HeadIndex):
    """The attention of one head from one word to another."""

    weight: float  # to all pieces of the second word, mean over the pieces of the first


def catalogue(readings: Iterable[Reading]) -> list[HeadKind]:
    """All heads of the model, layer by layer, averaged over all tokens of the readings."""
    sums: dict[str, Tensor] = {}
    for reading in readings:
        for name, pair in _measures(reading).items():
            sums[name] = sums.get(name, 0) + pair
    if not sums:
        raise RequestError("a head catalogue needs one text at least")
    means = {name: (total / count.clamp(min=1)).tolist() for name, (total, count) in sums.items()}
    depth, heads = len(means["next"]), len(means["next"][0])
    return [_named(means, layer, head) for layer in range(depth) for head in range(heads)]


def link(reading: Reading, source: str, target: str) -> list[LinkedHead]:
    """Heads sorted by the attention from the word `source` to the word `target`, largest first."""
    reading.refuse_without_heads()
    rows, columns = reading.positions_of(source), reading.positions_of(target)
    heads = []
    for number, layer in enumerate(reading.trace.layers, start=1):
        weights_H = layer.weights.float()[:, rows][:, :, columns].sum(dim=2).mean(dim=1)
        heads += [LinkedHead(number, head, weight) for head, weight in enumerate(weights_H.tolist(), start=1)]
    return sorted(heads, key=lambda head: -head.weight)


def parse_link(words: str) -> tuple[str, str]:
    """The two words of `he,Bert`; a comma may itself be one of the words."""
    comma = words.find(",", 1)  # a comma at the start is the first word
    source, target = words[:comma], words[comma + 1 :]
    if comma < 0 or not (source.strip() and target.strip()):
        raise RequestError(f"--from-to {words} must be two words of the text with a comma, such as he,Bert")
    return source, target


def _measures(reading: Reading) -> dict[str, Tensor]:
    """Name -> [sum, count] of each measure, 2 depth H."""
    reading.refuse_without_heads()
    weights = torch.stack([layer.weights for layer in reading.trace.layers]).float().cpu()  # depth H L L
    rows = _counted_rows(reading.encoding.special)
    length = weights.shape[-1]
    position = torch.arange(length)
    ahead = position[None, :] - position[:, None]
    # entr is 0 for weights of 0, which attention windows produce.
    entropy = torch.special.entr(weights).sum(dim=-1) / math.log(2)
    values = {name: (weights * mask).sum(dim=-1) for name, mask in _masks(reading, ahead).items()}
    values |= {"entropy": entropy, "breadth": entropy / max(math.log2(length), 1e-9)}
    values["distance"] = (weights * ahead.abs()).sum(dim=-1)
    chosen = dict.fromkeys(values, rows) | {"same_word": rows & _masks(reading, ahead)["same_word"].any(dim=-1)}
    return {name: _sum_and_count(value, chosen[name]) for name, value in values.items()}


def _masks(reading: Reading, ahead: Tensor) -> dict[str, Tensor]:
    """L L bool for each share: True for the pairs (query, key) that it sums."""
    ids = torch.tensor(reading.encoding.ids)
    special = torch.tensor(reading.encoding.special)
    position = torch.arange(len(ids))
    columns = {"first": position == 0, "separator": special & (position > 0)}
    return {
        "next": ahead == 1,
        "previous": ahead == -1,
        "itself": ahead == 0,
        **{name: column.expand(len(ids), -1) for name, column in columns.items()},
        "same_word": (ids[:, None] == ids[None, :]) & (ahead != 0),
    }


def _counted_rows(special: Sequence[bool]) -> Tensor:
    """L bool: the queries that are counted: all but special tokens, unless the text is empty."""
    real = ~torch.tensor(special)
    return real if bool(real.any()) else ~real


def _sum_and_count(values: Tensor, rows: Tensor) -> Tensor:
    total = values[..., rows].sum(dim=-1)
    return torch.stack([total, torch.full_like(total, float(rows.sum()))])


def _named(means: dict[str, list[list[float]]], layer: int, head: int) -> HeadKind:
    row = {name: values[layer][head] for name, values in means.items()}
    row["special"] = row["first"] + row["separator"]
    largest = max(SHARES, key=row.__getitem__)
    named = next((name for name in (largest, "special") if row[name] > MIN_SHARE), None)
    return HeadKind(layer + 1, head + 1, named or ("broad" if row["breadth"] >= MIN_BREADTH else "mixed"), **row)
