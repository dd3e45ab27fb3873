"""The computation of one attention head for one token, step by step: score, ÷ √d, softmax, × value, sum."""

import math
from dataclasses import dataclass

from bertkit.errors import RequestError
from bertkit.inside.look.reading import Reading

SHOWN_NUMBERS = 3  # of a vector; JSON has all of them


@dataclass(frozen=True)
class Step:
    """What one token contributes to the output of the head."""

    token: str
    score: float  # q . k
    scaled: float  # q . k / sqrt(d)
    weight: float  # softmax over all tokens
    weighted: tuple[float, ...]  # weight x value


@dataclass(frozen=True)
class StepTable:
    """How one head computes the output of one token, a weighted sum of the values of all tokens."""

    token: str
    place: int  # position of the token
    layer: int  # from 1
    head: int  # from 1
    divisor: float  # sqrt(d): 8 in BERT
    steps: tuple[Step, ...]
    sum: tuple[float, ...]  # as computed by the model

    def __str__(self) -> str:
        width = max(4, *(_terminal_width(step.token) for step in self.steps))
        head = f"layer {self.layer}, head {self.head}: what '{self.token}' takes from each token"
        names = f"{'':{width}}  {'score':>8}  {f'÷ {self.divisor:.4g}':>8}  {'softmax':>8}  softmax x value"
        rows = [
            f"{step.token}{' ' * (width - _terminal_width(step.token))}  {step.score:8.3f}  {step.scaled:8.3f}  "
            f"{step.weight:8.4f}  {_numbers(step.weighted)}"
            for step in self.steps
        ]
        total = sum(step.weight for step in self.steps)
        return "\n".join([head, names, *rows, f"{'sum':{width}}  {'':8}  {'':8}  {total:8.4f}  {_numbers(self.sum)}"])


def step_table(reading: Reading, *, layer: int = 1, head: int = 1, word: str | None = None) -> StepTable:
    """The table for the first piece of a word; by default for the first token that is not special."""
    position = _first_text_token(reading) if word is None else reading.positions_of(word)[0]
    check_head(reading, layer, head)
    trace = reading.trace.layers[layer - 1]
    query, keys, values = trace.queries[position, head - 1], trace.keys[:, head - 1], trace.values[:, head - 1]
    scores, weights = (keys.float() @ query.float()).tolist(), trace.weights[head - 1, position].float()
    divisor = math.sqrt(len(query))
    weighted = (weights[:, None] * values.float()).tolist()
    steps = zip(reading.tokens, scores, weights.tolist(), weighted, strict=True)
    width = len(query)
    return StepTable(
        token=reading.tokens[position],
        place=position,
        layer=layer,
        head=head,
        divisor=divisor,
        steps=tuple(Step(token, score, score / divisor, weight, tuple(row)) for token, score, weight, row in steps),
        sum=tuple(trace.mixed[position, (head - 1) * width : head * width].tolist()),
    )


def check_head(reading: Reading, layer: int, head: int) -> None:
    """Refuse a layer or head that the model does not have; both are counted from 1."""
    reading.refuse_without_heads()
    depth, heads = len(reading.trace.layers), len(reading.trace.layers[0].weights)
    if not (1 <= layer <= depth and 1 <= head <= heads):
        raise RequestError(f"layer {layer}, head {head} is not there: layers are 1 to {depth}, heads 1 to {heads}")


def parse_head(name: str) -> tuple[int, int]:
    """The layer and head of a name such as `3-7`."""
    layer, dash, head = name.partition("-")
    if not (dash and layer.isdecimal() and head.isdecimal()):
        raise RequestError(f"--head {name} must be a layer and a head with a dash, from 1, such as 3-2")
    return int(layer), int(head)


def _first_text_token(reading: Reading) -> int:
    return next((position for position, special in enumerate(reading.encoding.special) if not special), 0)


def _numbers(vector: tuple[float, ...]) -> str:
    return " ".join(f"{number:7.3f}" for number in vector[:SHOWN_NUMBERS]) + (
        " ..." if len(vector) > SHOWN_NUMBERS else ""
    )


def _terminal_width(text: str) -> int:
    """The width of a text in a terminal: ideographs take two columns, accents none."""
    from rich.cells import cell_len

    return cell_len(text)
