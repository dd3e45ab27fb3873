"""The arithmetic of one head for one token, step by step: score, ÷ √d, softmax, × value, sum."""

import math
from dataclasses import dataclass

from bertkit.errors import RequestError
from bertkit.inside.look.reading import Reading

SHOWN = 3  # numbers of a vector that are printed; the rest is there, in JSON


@dataclass(frozen=True)
class Step:
    """What one token adds to the answer."""

    token: str
    score: float  # q . k
    scaled: float  # q . k / sqrt(d)
    weight: float  # softmax over all tokens
    weighted: tuple[float, ...]  # weight x value


@dataclass(frozen=True)
class StepTable:
    """How one head makes one token's answer, a weighted sum of the values of all."""

    token: str
    place: int
    layer: int  # from 1
    head: int  # from 1
    divisor: float  # sqrt(d): 8 in BERT
    steps: tuple[Step, ...]
    sum: tuple[float, ...]  # the model's own answer, not added up here

    def __str__(self) -> str:
        width = max(4, *(_columns(step.token) for step in self.steps))
        head = f"layer {self.layer}, head {self.head}: what '{self.token}' takes from each token"
        names = f"{'':{width}}  {'score':>8}  {f'÷ {self.divisor:.4g}':>8}  {'softmax':>8}  softmax x value"
        rows = [
            f"{step.token}{' ' * (width - _columns(step.token))}  {step.score:8.3f}  {step.scaled:8.3f}  "
            f"{step.weight:8.4f}  {_numbers(step.weighted)}"
            for step in self.steps
        ]
        total = sum(step.weight for step in self.steps)
        return "\n".join([head, names, *rows, f"{'sum':{width}}  {'':8}  {'':8}  {total:8.4f}  {_numbers(self.sum)}"])


def step_table(reading: Reading, *, layer: int = 1, head: int = 1, word: str | None = None) -> StepTable:
    """The table for one word's first piece, or for the first token of the text."""
    place = _first_place(reading) if word is None else reading.word_places(word)[0]
    check_head(reading, layer, head)
    seen = reading.trace.layers[layer - 1]
    query, keys, values = seen.queries[place, head - 1], seen.keys[:, head - 1], seen.values[:, head - 1]
    scores, weights = (keys.float() @ query.float()).tolist(), seen.weights[head - 1, place].float()
    divisor = math.sqrt(len(query))
    weighted = (weights[:, None] * values.float()).tolist()
    steps = zip(reading.tokens, scores, weights.tolist(), weighted, strict=True)
    width = len(query)
    return StepTable(
        token=reading.tokens[place],
        place=place,
        layer=layer,
        head=head,
        divisor=divisor,
        steps=tuple(Step(token, score, score / divisor, weight, tuple(row)) for token, score, weight, row in steps),
        sum=tuple(seen.mixed[place, (head - 1) * width : head * width].tolist()),
    )


def check_head(reading: Reading, layer: int, head: int) -> None:
    """Layers and heads are counted from 1, as the papers do."""
    depth, heads = len(reading.trace.layers), len(reading.trace.layers[0].weights)
    if not (1 <= layer <= depth and 1 <= head <= heads):
        raise RequestError(f"layer {layer}, head {head} is not there: layers are 1 to {depth}, heads 1 to {heads}")


def parse_head(name: str) -> tuple[int, int]:
    """`3-7` as layer 3, head 7."""
    layer, dash, head = name.partition("-")
    if not (dash and layer.isdecimal() and head.isdecimal()):
        raise RequestError(f"--head {name} must be a layer and a head with a dash, from 1, such as 3-7")
    return int(layer), int(head)


def _first_place(reading: Reading) -> int:
    real = [place for place, special in enumerate(reading.encoding.special) if not special]
    return real[0] if real else 0


def _numbers(vector: tuple[float, ...]) -> str:
    return " ".join(f"{number:7.3f}" for number in vector[:SHOWN]) + (" ..." if len(vector) > SHOWN else "")


def _columns(text: str) -> int:
    """How wide a terminal writes the text: ideographs take two columns, accents none."""
    from rich.cells import cell_len

    return cell_len(text)
