"""Token regression: a number for each word."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertkit.data.examples import Characters, Example
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.report.tables import html_table
from bertkit.tasks.rows.rate_words import RatedWordsExample, RateWordsRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, read_at, refuse_target
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.number_task import NumberTask
from bertkit.tasks.shared.text_task import pad_to
from bertkit.tasks.shared.word_task import WordTask, find_word
from bertkit.tasks.task import FixedSize, HeadOutputs, LossSettings, Mistake, Predict, Task, Window


@dataclass(frozen=True)
class RatedWords:
    """A number for each word of a sentence; `characters` is set if the words come from a plain text."""

    words: tuple[str, ...]
    values: tuple[float, ...]
    characters: Characters | None = field(repr=False)
    seen: Seen = field(repr=False)

    def _repr_html_(self) -> str:
        return html_table(("word", "value"), zip(self.words, self.values, strict=True))


@dataclass(frozen=True, kw_only=True)
class RateWords(WordTask, NumberTask):
    """A number for each word."""

    row = RateWordsRow()

    def predicted_numbers(self, prediction: RatedWords) -> tuple[float, ...]:
        """One number for each word."""
        return prediction.values

    def gold(self, example: Example) -> list[float] | None:
        """The standardized numbers."""
        assert isinstance(example, RatedWordsExample)
        if example.labels is None:
            return None
        if len(example.labels) != len(example.words):
            counts = f"{len(example.words)} words came with {len(example.labels)} numbers"
            raise RequestError(f"{example.location}: {counts}; give as many")
        return [self.standardize(number) for number in example.labels]

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum of the squared errors at the first pieces of words; logits are T 1."""
        targets = [torch.tensor(values, device=logits.device) for values in _token_targets(windows)]
        return self.fixed_loss(logits, batch, targets, 0.0)

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The number and the weight of each token; the weight is 0 if no word begins there."""
        gold, token_weights = _token_targets(windows)
        return pad_to(size.tokens, gold), pad_to(size.tokens, token_weights)

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Sum of the squared distances from the teacher's numbers, standardized by this task."""
        target = self.restandardize(teacher, target.squeeze(-1))
        token_weights = torch.tensor(_token_targets(windows)[1], device=logits.device)
        return self.fixed_loss(logits, batch, (target, token_weights), 0.0)

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> RatedWords:
        """The number of each word, in the units of the data."""
        assert isinstance(example, RatedWordsExample)
        pairs = zip(windows, outputs, strict=True)
        logits = [float(row[position, 0]) for window, row in pairs for position in window.detail.positions]
        values = tuple(logit * self.spread + self.center for logit in logits)
        return RatedWords(example.words, values, example.characters, windows[0].detail.seen)

    def mistake(self, example: Example, prediction: RatedWords) -> Mistake | None:
        """The word with the largest error, weighted by it."""
        rows = list(zip(prediction.words, example.numbers, prediction.values, strict=True))
        if not rows:
            return None
        word, gold, value = max(rows, key=lambda row: abs(row[1] - row[2]))
        return Mistake(abs(gold - value), " ".join(prediction.words), f"{word}: {gold:g}", f"{word}: {value:.4g}")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The number of the named word, or the highest number, in the units of the data."""
        refuse_target(request)
        example, window, tokens = self.explained_words(request)
        [prediction] = predict([example])
        highest = max(range(len(prediction.values)), key=prediction.values.__getitem__)
        word = highest if request.word is None else find_word(example.words, request.word)
        read = read_at(model, self.head, window.detail.positions[word], 0)
        return self.number_target(f"the number of '{example.words[word]}'", tokens, read)


def _token_targets(windows: Sequence[Window]) -> tuple[list[float], list[float]]:
    """(numbers, weights) of all tokens of the windows; both are 0 if no word begins at a token."""
    gold: list[float] = []
    weights: list[float] = []
    for window in windows:
        positions = set(window.detail.positions)
        gold += [float(number) if position in positions else 0.0 for position, number in enumerate(window.target)]
        weights += [float(position in positions) for position in range(len(window.ids))]
    return gold, weights
