"""What the tasks on a text or a pair share: one sequence, or windows whose logits are pooled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.model.model import BertModel
from bertkit.settings import pick
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import (
    ExplainedTokens,
    Request,
    Target,
    read_pooled,
    refuse_windows,
    refuse_word,
    text_tokens,
)
from bertkit.tasks.shared.length import Seen, refuse_too_long, seen, sequences, take
from bertkit.tasks.task import Part, Predict, Prediction, Rows, Size, Task, Window, by_example


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """One answer for each text; the logits of its windows are pooled, or its windows joined before the head."""

    pools_windows = True

    @property
    def joins_windows(self) -> bool:
        """Whether a text's windows are joined to one vector before the head."""
        return self.length.kind == "hierarchical"

    def windows(self, example: Example, number: int) -> list[Window]:
        """One sequence, or one for each window of a long text."""
        assert isinstance(example, TextExample)
        encoding = self.tokenizer.encode(example.text, example.pair)
        chosen = sequences(encoding, self.limit, self.length)
        refuse_too_long(example.place, len(encoding), len(chosen), self.limit, "split it, or use length=head-tail")
        target, shown = self.target(example), seen(encoding, chosen)
        return [Window(*take(encoding, positions), number, target, shown) for positions in chosen]

    def target(self, example: TextExample) -> object:
        """What the loss asks for; None when unlabeled."""
        raise NotImplementedError

    def per_text(self, logits_NK: Tensor, windows: Sequence[Window]) -> tuple[Tensor, list[Any]]:
        """Each text's logits, pooled over its windows, and its target."""
        counts, targets = [], []
        for _, run in groupby(windows, key=lambda window: window.example):
            own = list(run)
            counts.append(len(own))
            targets.append(own[0].target)
        if len(counts) == len(windows):
            return logits_NK, targets
        lengths = torch.tensor(counts, device=logits_NK.device)
        return torch.segment_reduce(logits_NK, self.length.pool, lengths=lengths), targets

    def pooled(self, rows: Rows) -> np.ndarray:
        """The twin of `per_text` for one text, on arrays."""
        stacked = np.stack(rows).astype(np.float64)
        pooled: np.ndarray = stacked.max(axis=0) if self.length.pool == "max" else stacked.mean(axis=0)
        return pooled

    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> Prediction:
        """From the logits that are pooled over the text's windows."""
        return self.decide(self.pooled(outputs), windows[0].detail, decision)

    def decide(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Prediction:
        """The prediction for a text with these logits."""
        raise NotImplementedError

    def text_logits(self, part: Part, outputs: Rows) -> np.ndarray:
        """[texts, outputs]: each text's logits, pooled over its windows."""
        return np.stack([self.pooled(own) for _, _, own in by_example(part.examples, part.flat, outputs)])

    def one_sequence(self, model: BertModel, request: Request) -> ExplainedTokens:
        """What is read of a text to explain, by the task's own length policy."""
        refuse_word(request)
        chosen = sequences(self.tokenizer.encode(request.text, request.pair), self.limit, self.length)
        refuse_windows(len(chosen))
        return text_tokens(model, self.tokenizer, request, chosen[0])


@dataclass(frozen=True, kw_only=True)
class LabelTask(TextTask):
    """The tasks whose outputs are labels by name."""

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The logit of a label; of the likeliest where none is named."""
        label = request.target
        tokens = self.one_sequence(model, request)
        if label is None:
            [found] = predict(self.row.examples(texts=[request.text], pairs=request.pair and [request.pair]))
            label = str(likeliest(found.probabilities))
        number = pick(self.label_numbers, label, "label")
        return Target(f"the label '{label}'", "logit", tokens, read_pooled(model, self.head, number))


def likeliest(probabilities: Mapping[str, float]) -> str:
    """The label with the highest probability."""
    return max(probabilities, key=probabilities.__getitem__)


def label_number(numbers: Mapping[str, int], label: str, example: Example) -> int:
    """A label's position among the outputs; one that training data did not have is refused."""
    if label not in numbers:
        shown = ", ".join(list(numbers)[:20])
        raise RequestError(
            f"{example.place}: the label '{label}' is not among those of the training data ({shown}); "
            "correct it, or add examples of it to the training data"
        )
    return numbers[label]


def shown_text(example: TextExample) -> str:
    """A text or pair as reports show it."""
    return example.text if example.pair is None else f"{example.text} — {example.pair}"


def filled(values: Sequence[float], size: int, fill: float) -> Tensor:
    """Values of a fixed batch, filled up to its size."""
    return torch.tensor([*values, *[fill] * (size - len(values))])


def counting_rows(count: int, size: Size) -> Tensor:
    """1 for each sequence of a fixed batch that counts, 0 for those that fill it up."""
    return filled([1.0] * count, size.sequences, 0.0)
