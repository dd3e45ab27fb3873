"""Distillation: a student learns its teacher's probabilities, not only the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.learner import TASK, Learner, pack, task_logits
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.folder import read_task
from bertkit.tasks.shared.fixed_batch import FixedBatch
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
    """A fine-tuned model, and how its student learns from it."""

    model: BertModel
    task: Task
    temperature: float = 2.0  # both models' logits are divided by it: small probabilities are heard too
    weight: float = 0.5  # share of the loss; the rest is the labels'


def load_teacher(path: Path, task: Task, windows: Sequence[Window] = ()) -> Teacher:
    """A folder fine-tuned for the same task with the same labels, that reads the same tokens: these windows."""
    found = load_checkpoint(path)
    own, _ = read_task(found)
    if own.name != task.name or own.labels != task.labels:
        raise RequestError(
            f"{path} was fine-tuned for '{own.name}' with {len(own.labels)} labels, not '{task.name}' with these "
            f"{len(task.labels)}; a teacher must know the student's task and labels"
        )
    student, teacher = task.tokenizer, found.tokenizer
    if teacher is None or student.hash != teacher.hash:
        raise RequestError(f"{path} reads another vocabulary than its student; a teacher must see the same tokens")
    positions, longest = found.model.config.max_length, max((len(window.ids) for window in windows), default=0)
    if longest > positions:
        raise RequestError(
            f"{path} has {positions} positions, and training texts have up to {longest} tokens; "
            f"give max_length={positions}, or a teacher with more positions"
        )
    return Teacher(model=found.model, task=own)


class Student(Learner):
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
        apart = self.task.distance(teacher.task, logits, theirs, batch, windows, teacher.temperature)
        mixed = (1 - teacher.weight) * total + teacher.weight * apart
        return {TASK: (mixed, count, torch.zeros_like(count))}

    def _read_by(self, model: BertModel, batch: Batch, windows: Sequence[Window]) -> Batch:
        """The batch with the segments of another model's family."""
        if model.config.segments == self.model.config.segments:
            return batch
        return pack(windows, model.config).to(batch.ids.device)
