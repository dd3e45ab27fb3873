"""The head catalogue: what each head looks at, how widely, how far; and which heads link two words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.inside.look.reading import Reading

MIN_SHARE = 0.5  # a head is named for what gets more than this share of its weight
BROAD = 0.8  # or, when its entropy is this share of the largest possible, it is broad
SHARES = ("next", "previous", "itself", "first", "separator", "same_word")


@dataclass(frozen=True)
class HeadIndex:
    """One head by its layer and its number in it, both counted from 1."""

    layer: int
    head: int

    @property
    def name(self) -> str:
        """As options name it: 3-7."""
        return f"{self.layer}-{self.head}"


@dataclass(frozen=True)
class HeadKind(HeadIndex):
    """One head over some texts. Shares are mean weights from the tokens of the text, special tokens left out."""

    kind: str  # one of SHARES, broad or mixed
    entropy: float  # bits: 3 means as if spread evenly over 8 tokens
    breadth: float  # entropy as a share of the largest that the length allows
    distance: float  # mean tokens between the one that looks and what it looks at
    next: float
    previous: float
    itself: float
    first: float  # [CLS]
    separator: float  # every [SEP]
    same_word: float  # other tokens with the same id, from tokens that have such


@dataclass(frozen=True)
class LinkedHead(HeadIndex):
    """How much one head attends from one word to another."""

    weight: float  # from a piece of the first word to all pieces of the second, mean over the former


def catalogue(readings: Iterable[Reading]) -> list[HeadKind]:
    """Every head of the model, layer by layer, over all tokens of the readings."""
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
    """Heads by how much the word `source` looks at the word `target`, most first."""
    rows, columns = reading.word_places(source), reading.word_places(target)
    found = []
    for number, layer in enumerate(reading.trace.layers, start=1):
        weights_H = layer.weights.float()[:, rows][:, :, columns].sum(dim=2).mean(dim=1)
        found += [LinkedHead(number, head, weight) for head, weight in enumerate(weights_H.tolist(), start=1)]
    return sorted(found, key=lambda each: -each.weight)


def parse_link(words: str) -> tuple[str, str]:
    """`he,Bert` as its two words; a comma may be one of them, or both."""
    between = words.find(",", 1)  # a comma at the start is the first word
    source, target = words[:between], words[between + 1 :]
    if between < 0 or not (source.strip() and target.strip()):
        raise RequestError(f"--link {words} must be two words of the text with a comma, such as he,Bert")
    return source, target


def _measures(reading: Reading) -> dict[str, Tensor]:
    """Name -> [sum, count] of each measure, 2 depth H."""
    weights = torch.stack([layer.weights for layer in reading.trace.layers]).float().cpu()  # depth H L L
    rows = _looking(reading.encoding.special)
    length = weights.shape[-1]
    place = torch.arange(length)
    ahead = place[None, :] - place[:, None]
    # Weights of zero, as a window gives, have no share in the entropy.
    entropy = torch.special.entr(weights).sum(dim=-1) / math.log(2)
    values = {name: (weights * mask).sum(dim=-1) for name, mask in _masks(reading, ahead).items()}
    values |= {"entropy": entropy, "breadth": entropy / max(math.log2(length), 1e-9)}
    values["distance"] = (weights * ahead.abs()).sum(dim=-1)
    chosen = dict.fromkeys(values, rows) | {"same_word": rows & _masks(reading, ahead)["same_word"].any(dim=-1)}
    return {name: _sum_and_count(value, chosen[name]) for name, value in values.items()}


def _masks(reading: Reading, ahead: Tensor) -> dict[str, Tensor]:
    """L L bool for each share: True where the row's token looks at such a column."""
    ids = torch.tensor(reading.encoding.ids)
    special = torch.tensor(reading.encoding.special)
    place = torch.arange(len(ids))
    columns = {"first": place == 0, "separator": special & (place > 0)}
    return {
        "next": ahead == 1,
        "previous": ahead == -1,
        "itself": ahead == 0,
        **{name: column.expand(len(ids), -1) for name, column in columns.items()},
        "same_word": (ids[:, None] == ids[None, :]) & (ahead != 0),
    }


def _looking(special: Sequence[bool]) -> Tensor:
    """L bool: the tokens whose looks are counted; an empty text has only special tokens."""
    real = ~torch.tensor(special)
    return real if bool(real.any()) else ~real


def _sum_and_count(values: Tensor, rows: Tensor) -> Tensor:
    total = values[..., rows].sum(dim=-1)
    return torch.stack([total, torch.full_like(total, float(rows.sum()))])


def _named(means: dict[str, list[list[float]]], layer: int, head: int) -> HeadKind:
    row = {name: values[layer][head] for name, values in means.items()}
    most = max(SHARES, key=row.__getitem__)
    kind = most if row[most] > MIN_SHARE else "broad" if row["breadth"] >= BROAD else "mixed"
    return HeadKind(layer + 1, head + 1, kind, **row)
