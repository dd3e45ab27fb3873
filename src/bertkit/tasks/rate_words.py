"""A number for each word: token regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.data.examples import Characters, Example
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.calibration import guesses_numbers
from bertkit.tasks.decision import Decision
from bertkit.tasks.explain import Request, Target, read_at, refuse_target
from bertkit.tasks.length import Seen
from bertkit.tasks.metrics.table import number_scores
from bertkit.tasks.rows.rate_words import RatedWordsExample, RateWordsRow
from bertkit.tasks.task import LossSettings, Mistake, Part, Predict, Rows, Size, Task, Window, by_example
from bertkit.tasks.texts import filled
from bertkit.tasks.words import WordTask, find_word


@dataclass(frozen=True)
class RatedWords:
    """A sentence with a number for each word; characters are known where the words come from a plain text."""

    words: tuple[str, ...]
    values: tuple[float, ...]
    characters: Characters | None
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class RateWords(WordTask):
    """A number for each word, learned in units of `spread` around `center`."""

    center: float = 0.0
    spread: float = 1.0
    row = RateWordsRow()
    outputs = 1

    def gold(self, example: Example) -> list[float] | None:
        """The numbers in the model's units."""
        assert isinstance(example, RatedWordsExample)
        if example.ratings is None:
            return None
        if len(example.ratings) != len(example.words):
            counts = f"{len(example.words)} words came with {len(example.ratings)} numbers"
            raise RequestError(f"{example.place}: {counts}; give as many")
        return [(number - self.center) / self.spread for number in example.ratings]

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Squared error at the first piece of each word; T 1 in."""
        wanted, scored = (torch.tensor(each, device=logits.device) for each in _at_tokens(windows))
        return self.fixed_loss(logits, batch, (wanted, scored), 0.0), scored.sum().long()

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A number for each token, and whether a word begins there."""
        wanted, scored = _at_tokens(windows)
        return filled(wanted, size.tokens, 0.0), filled(scored, size.tokens, 0.0)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Squared error of the tokens that begin a word."""
        wanted, scored = targets
        return ((logits.squeeze(-1) - wanted).square() * scored).sum()

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Squared distance from the teacher's numbers, in this task's units."""
        assert isinstance(teacher, RateWords)
        wanted = (theirs.squeeze(-1) * teacher.spread + teacher.center - self.center) / self.spread
        scored = torch.tensor(_at_tokens(windows)[1], device=ours.device)
        return self.fixed_loss(ours, batch, (wanted, scored), 0.0)

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Rows, decision: Decision
    ) -> list[RatedWords]:
        """Each word's number, in the units of the data."""
        found = []
        for example, own, rows in by_example(examples, windows, outputs):
            assert isinstance(example, RatedWordsExample)
            pairs = zip(own, rows, strict=True)
            logits = [float(row[place, 0]) for window, row in pairs for place in window.detail.places]
            values = tuple(logit * self.spread + self.center for logit in logits)
            found.append(RatedWords(example.words, values, example.characters, own[0].detail.seen))
        return found

    def score(self, examples: Sequence[Example], predictions: Sequence[RatedWords]) -> dict[str, float]:
        """Correlations and errors over words."""
        return number_scores(*_gold_and_predicted(examples, predictions))

    def guessing(
        self, dev: Part, outputs: Rows, loss: float | None, predictions: Sequence[RatedWords], least: float
    ) -> str | None:
        """By the correlation with the true numbers."""
        return guesses_numbers(*_gold_and_predicted(dev.examples, predictions))

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
        read = read_at(model, self.head, window.detail.places[at], 0)
        name = f"the number of '{example.words[at]}'"
        return Target(name, "units", tokens, lambda *given: read(*given) * self.spread + self.center)


def _at_tokens(windows: Sequence[Window]) -> tuple[list[float], list[float]]:
    """For every token of the windows its number, and 1 where a word begins, else 0."""
    wanted: list[float] = []
    scored: list[float] = []
    for window in windows:
        places = set(window.detail.places)
        wanted += [float(number) if place in places else 0.0 for place, number in enumerate(window.target)]
        scored += [float(place in places) for place in range(len(window.ids))]
    return wanted, scored


def _gold_and_predicted(
    examples: Sequence[Example], predictions: Sequence[RatedWords]
) -> tuple[list[float], list[float]]:
    gold = [number for example in examples for number in example.numbers]
    return gold, [value for prediction in predictions for value in prediction.values]
