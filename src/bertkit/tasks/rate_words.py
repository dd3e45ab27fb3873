"""A number for each word: token regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.data.examples import Characters, Example
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.rows.rate_words import RatedWordsExample, RateWordsRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, read_at, refuse_target
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.number_task import NumberTask
from bertkit.tasks.shared.text_task import filled
from bertkit.tasks.shared.word_task import WordTask, find_word
from bertkit.tasks.task import LossSettings, Mistake, Predict, Rows, Size, Task, Window


@dataclass(frozen=True)
class RatedWords:
    """A sentence with a number for each word; characters are known where the words come from a plain text."""

    words: tuple[str, ...]
    values: tuple[float, ...]
    characters: Characters | None
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class RateWords(WordTask, NumberTask):
    """A number for each word."""

    row = RateWordsRow()

    def predicted(self, prediction: RatedWords) -> tuple[float, ...]:
        """One for each word."""
        return prediction.values

    def gold(self, example: Example) -> list[float] | None:
        """The numbers in the model's units."""
        assert isinstance(example, RatedWordsExample)
        if example.labels is None:
            return None
        if len(example.labels) != len(example.words):
            counts = f"{len(example.words)} words came with {len(example.labels)} numbers"
            raise RequestError(f"{example.place}: {counts}; give as many")
        return [self.standardized(number) for number in example.labels]

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Squared error at the first piece of each word; T 1 in."""
        wanted, scored = (torch.tensor(each, device=logits.device) for each in _at_tokens(windows))
        return self.fixed_loss(logits, batch, (wanted, scored), 0.0)

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A number for each token, and whether a word begins there."""
        wanted, scored = _at_tokens(windows)
        return filled(wanted, size.tokens, 0.0), filled(scored, size.tokens, 0.0)

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Squared distance from the teacher's numbers, in this task's units."""
        wanted = self.in_own_units(teacher, theirs.squeeze(-1))
        scored = torch.tensor(_at_tokens(windows)[1], device=ours.device)
        return self.fixed_loss(ours, batch, (wanted, scored), 0.0)

    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> RatedWords:
        """Each word's number, in the units of the data."""
        assert isinstance(example, RatedWordsExample)
        pairs = zip(windows, outputs, strict=True)
        logits = [float(row[position, 0]) for window, row in pairs for position in window.detail.positions]
        values = tuple(logit * self.spread + self.center for logit in logits)
        return RatedWords(example.words, values, example.characters, windows[0].detail.seen)

    def mistake(self, example: Example, prediction: RatedWords) -> Mistake | None:
        """The word whose number is furthest off."""
        rows = list(zip(prediction.words, example.numbers, prediction.values, strict=True))
        if not rows:
            return None
        word, gold, value = max(rows, key=lambda row: abs(row[1] - row[2]))
        return Mistake(abs(gold - value), " ".join(prediction.words), f"{word}: {gold:g}", f"{word}: {value:.4g}")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """A word's number, in the units of the data: a named word's, or that of the word with the highest."""
        refuse_target(request)
        example, window, tokens = self.explained_word(request)
        [found] = predict([example])
        highest = max(range(len(found.values)), key=found.values.__getitem__)
        at = highest if request.word is None else find_word(example.words, request.word)
        read = read_at(model, self.head, window.detail.positions[at], 0)
        return self.number_target(f"the number of '{example.words[at]}'", tokens, read)


def _at_tokens(windows: Sequence[Window]) -> tuple[list[float], list[float]]:
    """For every token of the windows its number, and 1 where a word begins, else 0."""
    wanted: list[float] = []
    scored: list[float] = []
    for window in windows:
        positions = set(window.detail.positions)
        wanted += [float(number) if position in positions else 0.0 for position, number in enumerate(window.target)]
        scored += [float(position in positions) for position in range(len(window.ids))]
    return wanted, scored
