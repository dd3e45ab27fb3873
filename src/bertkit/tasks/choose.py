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
from bertkit.model.model import BertModel
from bertkit.tasks.metrics.table import choice_scores
from bertkit.tasks.rows.choose import ChooseRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target
from bertkit.tasks.shared.length import Seen, kept, layout, take
from bertkit.tasks.shared.losses import LOWEST, choice_loss, choice_losses, divergence
from bertkit.tasks.shared.text_task import filled
from bertkit.tasks.task import LossSettings, Mistake, Part, Predict, Rows, Size, Task, Window, by_example
from bertkit.text.tokenizer import Encoding


@dataclass(frozen=True)
class Chosen:
    """The number and the text of the likeliest choice, None where the model abstains."""

    choice: int | None
    text: str | None
    probability: float  # of the likeliest choice
    probabilities: tuple[float, ...]
    seen: Seen  # `windows` counts one for each choice


@dataclass(frozen=True)
class Offered:
    """How many choices the question of a sequence has."""

    choices: int
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Choose(Task):
    """The task: one score for each (question, choice); examples may have different numbers of choices."""

    row = ChooseRow()
    outputs = 1

    def windows(self, example: Example, number: int) -> list[Window]:
        """A sequence for each choice; a long question is cut so that the choice stays whole."""
        assert isinstance(example, ChoiceExample)
        count = len(example.choices)
        if not count:
            raise RequestError(f"{example.place}: the question has no choices; give two or more")
        if example.label is not None and not 0 <= example.label < count:
            raise RequestError(f"{example.place}: label {example.label} is none of the {count} choices, counted from 0")
        made = []
        for encoding in self.tokenizer.encode_batch([example.question] * count, example.choices):
            positions = self._kept(encoding)
            seen = Seen(len(encoding) - sum(encoding.special), len(encoding) - len(positions))
            made.append(Window(*take(encoding, positions), number, example.label, Offered(count, seen)))
        return made

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Cross entropy over the choices of each example; a row of one number for each window in."""
        groups = [list(group) for _, group in groupby(windows, key=lambda window: window.example)]
        if any(len(group) != group[0].detail.choices for group in groups):
            raise BertkitError("the choices of a question were parted; all of them belong in one batch")
        target = torch.tensor([group[0].target for group in groups], device=logits.device)
        rows = torch.split(logits.flatten(), [len(group) for group in groups])
        padded_NC = pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf)
        return choice_loss(padded_NC, target, weights.label_smoothing)

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """For each example its sequences by number (-1: no such choice), the correct one, and whether it counts."""
        runs = groupby(enumerate(windows), key=lambda pair: pair[1].example)
        groups = [[number for number, _ in run] for _, run in runs]
        most = max(map(len, groups))
        spare = [[0] * most] * (size.examples - len(groups))
        table = torch.tensor([*(own + [-1] * (most - len(own)) for own in groups), *spare])
        wanted = [windows[own[0]].target for own in groups]
        return table, filled(wanted, size.examples, 0), filled([1.0] * len(groups), size.examples, 0.0)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Cross entropy over the choices of the examples that count."""
        table_NC, wanted, shares = targets
        there = logits.flatten().index_select(0, table_NC.flatten().clamp_min(0)).view_as(table_NC)
        rows_NC = there.masked_fill(table_NC < 0, -torch.inf)
        return (choice_losses(rows_NC, wanted, smoothing) * shares).sum()

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Divergence between the choices' probabilities of each question."""
        counts = [len(list(run)) for _, run in groupby(windows, key=lambda window: window.example)]
        split = [torch.split(each.flatten(), counts) for each in (ours, theirs)]
        rows = [pad_sequence(list(each), batch_first=True, padding_value=LOWEST) for each in split]
        return divergence(rows[0], rows[1], temperature)

    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> Chosen:
        """The likeliest choice."""
        assert isinstance(example, ChoiceExample)
        probabilities = decision.class_probabilities(np.concatenate([np.ravel(row) for row in outputs]))
        best = int(probabilities.argmax())
        sure = decision.is_sure(float(probabilities[best]))
        choice, text = (best, example.choices[best]) if sure else (None, None)
        return Chosen(choice, text, float(probabilities[best]), tuple(probabilities.tolist()), _together(windows))

    def score(self, examples: Sequence[Example], predictions: Sequence[Chosen]) -> dict[str, float]:
        """The share of correct choices; the likeliest counts, whether the model abstains or not."""
        gold = [e.label for e in examples if isinstance(e, ChoiceExample) and e.label is not None]
        return choice_scores(gold, [int(np.argmax(prediction.probabilities)) for prediction in predictions])

    def calibration_table(self, dev: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """A row for each question; where they offer different numbers of choices there is no one table."""
        runs = by_example(dev.examples, dev.flat, outputs)
        groups = [np.concatenate([np.ravel(row) for row in own]) for _, _, own in runs]
        if len({len(group) for group in groups}) > 1:
            return None
        return np.stack(groups), np.array([own[0].target for own in dev.windows])

    def answers(self, example: Example, prediction: Chosen, decision: Decision) -> list[tuple[str, str]]:
        """The correct choice and the likeliest one."""
        assert isinstance(example, ChoiceExample)
        return [(f"choice {example.label}", f"choice {int(np.argmax(prediction.probabilities))}")]

    def mistake(self, example: Example, prediction: Chosen) -> Mistake | None:
        """Another choice than the correct one."""
        assert isinstance(example, ChoiceExample)
        best = int(np.argmax(prediction.probabilities))
        if example.label is None or best == example.label:
            return None
        truth, predicted = example.choices[example.label], example.choices[best]
        return Mistake(prediction.probability, example.question, truth, predicted)

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """Refused: a choice is read from several sequences."""
        raise RequestError("choices between texts are not explained; classify, tag and answer models are")

    def _kept(self, encoding: Encoding) -> list[int]:
        if len(encoding) <= self.limit:
            return list(range(len(encoding)))
        special, question, choice = layout(encoding)
        room = self.limit - len(special)
        choice = choice[:room]
        asked = kept(len(question), room - len(choice), self.length.kind)
        return sorted((*special, *(question[position] for position in asked), *choice))


def _together(windows: Sequence[Window]) -> Seen:
    every = [window.detail.seen for window in windows]
    return Seen(sum(seen.tokens for seen in every), sum(seen.cut for seen in every), len(every))
