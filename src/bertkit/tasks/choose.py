"""One of several answers to a question: each is read together with the question, a softmax compares them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertkit.data.examples import ChoiceExample, Example
from bertkit.errors import BertkitError, RequestError
from bertkit.model.batch import Batch
from bertkit.tasks.choice_loss import choice_loss
from bertkit.tasks.decision import Decision
from bertkit.tasks.length import DEFAULT_POLICIES, LengthPolicy, Seen, check_policy, kept, layout, take
from bertkit.tasks.metrics.table import METRICS, choice_scores
from bertkit.tasks.task import LossSettings, Window, by_example
from bertkit.text.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class Chosen:
    """The number and the text of the likeliest choice, None where the model would rather not say."""

    choice: int | None
    text: str | None
    probability: float  # of the likeliest choice
    probabilities: tuple[float, ...]
    seen: Seen  # `windows` counts one for each choice


@dataclass(frozen=True)
class Offered:
    """Which choice a sequence shows, out of how many."""

    choice: int
    choices: int
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Choose:
    """The task: one score for each (question, choice); examples may have different numbers of choices."""

    tokenizer: Tokenizer
    limit: int  # tokens in a sequence
    length: LengthPolicy = DEFAULT_POLICIES["choose"]
    labels: tuple[str, ...] = ()
    name = "choose"
    head = "choose"
    outputs = 1
    main = METRICS["choose"].main

    def __post_init__(self) -> None:
        check_policy(self.name, self.length, self.limit)

    def windows(self, example: Example, number: int) -> list[Window]:
        """A sequence for each choice; a long question is cut so that the choice stays whole."""
        assert isinstance(example, ChoiceExample)
        count = len(example.choices)
        if not count:
            raise RequestError(f"{example.place}: the question has no choices; give two or more")
        if example.label is not None and not 0 <= example.label < count:
            raise RequestError(f"{example.place}: label {example.label} is none of the {count} choices, counted from 0")
        made = []
        for choice, encoding in enumerate(self.tokenizer.encode_batch([example.question] * count, example.choices)):
            places = self._kept(encoding)
            seen = Seen(len(encoding) - sum(encoding.special), len(encoding) - len(places))
            made.append(Window(*take(encoding, places), number, example.label, Offered(choice, count, seen)))
        return made

    def targets(self, windows: Sequence[Window]) -> int:
        """One for each example."""
        return sum(window.detail.choice == 0 for window in windows)

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy over the choices of each example; a row of one number for each window in."""
        groups = [list(group) for _, group in groupby(windows, key=lambda window: window.example)]
        if any(len(group) != group[0].detail.choices for group in groups):
            raise BertkitError("the choices of a question were parted; all of them belong in one batch")
        target = torch.tensor([group[0].target for group in groups], device=logits.device)
        rows = torch.split(logits.flatten(), [len(group) for group in groups])
        padded_NC = pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf)
        total = choice_loss(padded_NC, target, weights.label_smoothing)
        return total, torch.tensor(len(groups), device=logits.device)

    def decode(
        self,
        examples: Sequence[Example],
        windows: Sequence[Window],
        outputs: Sequence[np.ndarray],
        decision: Decision,
    ) -> list[Chosen]:
        """The likeliest choice of each example."""
        found = []
        for example, own, rows in by_example(examples, windows, outputs):
            assert isinstance(example, ChoiceExample)
            chances = decision.class_probabilities(np.concatenate([np.ravel(row) for row in rows]))
            best = int(chances.argmax())
            said = decision.is_sure(float(chances[best]))
            choice, text = (best, example.choices[best]) if said else (None, None)
            found.append(Chosen(choice, text, float(chances[best]), tuple(chances.tolist()), _together(own)))
        return found

    def score(self, examples: Sequence[Example], predictions: Sequence[Chosen]) -> dict[str, float]:
        """The share of right choices; the likeliest counts, whether it would be said or not."""
        gold = [e.label for e in examples if isinstance(e, ChoiceExample) and e.label is not None]
        return choice_scores(gold, [int(np.argmax(prediction.probabilities)) for prediction in predictions])

    def _kept(self, encoding: Encoding) -> list[int]:
        if len(encoding) <= self.limit:
            return list(range(len(encoding)))
        wiring, question, choice = layout(encoding)
        room = self.limit - len(wiring)
        choice = choice[:room]
        asked = kept(len(question), room - len(choice), self.length.kind)
        return sorted((*wiring, *(question[place] for place in asked), *choice))


def _together(windows: Sequence[Window]) -> Seen:
    every = [window.detail.seen for window in windows]
    return Seen(sum(seen.tokens for seen in every), sum(seen.cut for seen in every), len(every))
