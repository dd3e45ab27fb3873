"""A large model teaches a small one: the pupil learns the teacher's probabilities, not only the right answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.learner import TASK, Learner, pack, task_logits
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.classify import Multilabel, Regress, TextTask
from bertkit.tasks.fixed import FixedBatch
from bertkit.tasks.table import read_task
from bertkit.tasks.task import LossSettings, Task, Window
from bertkit.train.loop import Sums


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback and Leibler's divergence of q from p, in nats, over the last axis: what is lost by taking q for p.

    >>> round(float(kl(torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3))), 7)
    0.0852996
    """
    return torch.where(p > 0, p * (p.clamp_min(1e-38).log() - q.log()), 0.0).sum(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A taught model, and how its pupil listens."""

    model: BertModel
    task: Task
    temperature: float = 2.0  # both models' logits are divided by it: small probabilities are heard too
    weight: float = 0.5  # share of the loss; the rest is the labels'


def load_teacher(path: Path, task: Task, windows: Sequence[Window] = ()) -> Teacher:
    """A folder that was taught the same task with the same labels, and that reads the same tokens: these windows."""
    found = load_checkpoint(path)
    own, _ = read_task(found)
    if own.name != task.name or own.labels != task.labels:
        raise RequestError(
            f"{path} was taught '{own.name}' with {len(own.labels)} labels, not '{task.name}' with these "
            f"{len(task.labels)}; a teacher must know the pupil's task and labels"
        )
    pupil, teacher = getattr(task, "tokenizer", None), found.tokenizer
    if teacher is None or pupil is None or pupil.hash != teacher.hash:
        raise RequestError(f"{path} reads another vocabulary than its pupil; a teacher must see the same tokens")
    positions, longest = found.model.config.max_length, max((len(window.ids) for window in windows), default=0)
    if longest > positions:
        raise RequestError(
            f"{path} has {positions} positions, and training texts have up to {longest} tokens; "
            f"give max_length={positions}, or a teacher with more positions"
        )
    return Teacher(model=found.model, task=own)


class Pupil(Learner):
    """A learner that listens to a teacher as well as to the labels."""

    def __init__(self, model: BertModel, task: Task, loss: LossSettings, teacher: Teacher) -> None:
        super().__init__(model, task, loss)
        # Not a part of this module: it is neither trained nor saved, nor turned to training by train().
        self._teacher = [teacher]

    def forward(self, batch: Batch | FixedBatch, windows: Sequence[Window] = ()) -> Sums:
        """The task's loss and the distance from the teacher, weighed."""
        assert isinstance(batch, Batch)  # the distance reads windows
        [teacher] = self._teacher
        logits = task_logits(self.model, self.task, batch, windows).float()
        with torch.no_grad():
            model = teacher.model.to(logits.device).eval()
            read = self._read_by(model, batch, windows)
            theirs = task_logits(model, teacher.task, read, windows).float()
        total, count = self.task.loss(logits, batch, windows, self.loss_settings)
        apart = distance(self.task, teacher, logits, theirs, batch, windows)
        mixed = (1 - teacher.weight) * total + teacher.weight * apart
        return {TASK: (mixed, count, torch.zeros_like(count))}

    def _read_by(self, model: BertModel, batch: Batch, windows: Sequence[Window]) -> Batch:
        """The batch with the segments of another model's family."""
        if model.config.segments == self.model.config.segments:
            return batch
        return pack(windows, model.config).to(batch.ids.device)


def distance(
    task: Task, teacher: Teacher, logits: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window]
) -> Tensor:
    """How far the pupil is from its teacher, summed over what the task asks; times T^2, as Hinton has it."""
    heat = teacher.temperature
    if isinstance(task, TextTask):  # a text's windows speak with one voice
        logits, theirs = task.per_text(logits, windows)[0], task.per_text(theirs, windows)[0]
    if isinstance(task, Regress) and isinstance(teacher.task, Regress):
        wanted = (theirs * teacher.task.spread + teacher.task.center - task.center) / task.spread
        return F.mse_loss(logits, wanted, reduction="sum")
    if isinstance(task, Multilabel):
        both = F.binary_cross_entropy_with_logits(logits / heat, (theirs / heat).sigmoid(), reduction="none")
        return both.mean(dim=1).sum() * heat**2
    ours, wanted = (_choices(task, each, batch, windows) / heat for each in (logits, theirs))
    apart = F.kl_div(ours.log_softmax(-1), wanted.log_softmax(-1), reduction="sum", log_target=True) * heat**2
    return apart / 2 if task.name == "answer" else apart  # start and end: half of the loss each


LOWEST = -1e4  # for what is not offered: a probability of 0 without 0 times infinity


def _choices(task: Task, logits: Tensor, batch: Batch, windows: Sequence[Window]) -> Tensor:
    """Rows of scores that exclude each other: labels of a text or word, tokens of a window, choices of a question."""
    if task.name == "tag":
        scored = torch.tensor([place >= 0 for window in windows for place in window.target], device=logits.device)
        return logits[scored]
    if task.name == "answer":
        return batch.pad(logits, LOWEST).transpose(1, 2).flatten(0, 1)
    if task.name == "choose":
        counts = [len(list(run)) for _, run in groupby(windows, key=lambda window: window.example)]
        rows = torch.split(logits.flatten(), counts)
        return pad_sequence(list(rows), batch_first=True, padding_value=LOWEST)
    return logits
