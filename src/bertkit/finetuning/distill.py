"""Knowledge distillation: a student is trained on the probabilities of its teacher as well as on the labels."""

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
    """The Kullback-Leibler divergence KL(p || q) in nats over the last axis.

    >>> round(float(kl(torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3))), 7)
    0.0852996
    """
    return torch.where(p > 0, p * (p.clamp_min(1e-38).log() - q.log()), 0.0).sum(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A fine-tuned model, and the settings of distillation."""

    model: BertModel
    task: Task
    temperature: float = 2.0  # divides the logits of both models, which raises small probabilities
    weight: float = 0.5  # of the distillation loss; the loss of the labels has weight 1 - weight


def load_teacher(path: Path, task: Task, windows: Sequence[Window] = ()) -> Teacher:
    """A teacher from a folder; it must have the same task, labels and tokenizer, and positions for these windows."""
    checkpoint = load_checkpoint(path)
    teacher_task, _ = read_task(checkpoint)
    if teacher_task.name != task.name or teacher_task.labels != task.labels:
        raise RequestError(
            f"{path} was fine-tuned for '{teacher_task.name}' with {len(teacher_task.labels)} labels, "
            f"not '{task.name}' with these {len(task.labels)}; a teacher must know the student's task and labels"
        )
    if task.tokenizer.hash != teacher_task.tokenizer.hash:
        raise RequestError(f"{path} reads another vocabulary than its student; a teacher must see the same tokens")
    positions, longest = checkpoint.model.config.max_length, max((len(window.ids) for window in windows), default=0)
    if longest > positions:
        raise RequestError(
            f"{path} has {positions} positions, and training texts have up to {longest} tokens; "
            f"give max_length={positions}, or a teacher with more positions"
        )
    return Teacher(model=checkpoint.model, task=teacher_task)


class Student(Learner):
    """A learner with the losses of the labels and of a teacher."""

    def __init__(self, model: BertModel, task: Task, loss: LossSettings, teacher: Teacher) -> None:
        super().__init__(model, task, loss)
        # In a list, so that it is not a submodule: it is not trained, not saved, and stays in eval mode.
        self._teacher = [teacher]

    def forward(self, batch: Batch | FixedBatch, windows: Sequence[Window] = ()) -> Sums:
        """The weighted sum of the task's loss and the distillation loss."""
        assert isinstance(batch, Batch)  # `distillation_loss` reads windows
        [teacher] = self._teacher
        logits = task_logits(self.model, self.task, batch, windows).float()
        with torch.no_grad():
            model = teacher.model.to(logits.device).eval()
            target = task_logits(model, teacher.task, self._batch_for(model, batch, windows), windows).float()
        label_loss, count = self.task.loss(logits, batch, windows, self.loss_settings)
        distilled = self.task.distillation_loss(teacher.task, logits, target, batch, windows, teacher.temperature)
        total = (1 - teacher.weight) * label_loss + teacher.weight * distilled
        return {TASK: (total, count, torch.zeros_like(count))}

    def _batch_for(self, model: BertModel, batch: Batch, windows: Sequence[Window]) -> Batch:
        """The batch, with segment ids that the model has."""
        if model.config.segments == self.model.config.segments:
            return batch
        return pack(windows, model.config).to(batch.ids.device)
