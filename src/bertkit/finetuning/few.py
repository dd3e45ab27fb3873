"""`few=true`: classification with few rows a label, as SetFit does it: contrastive tuning, then a logistic regression.

The encoder is tuned until the vectors of texts with one label are nearer to each other than to all others. SetFit
encodes both texts of every generated pair; here a step encodes each of its texts once and compares all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.checkpoint.bundled import BUNDLED, embedding_model
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.learner import TASK, Learner, freeze_below, lowest_trainable, pack
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.session import FineTuneSession
from bertkit.finetuning.settings import FineTuneSettings, is_untouched
from bertkit.model.batch import Batch
from bertkit.model.pooling import pool
from bertkit.tasks.shared.labels import count_labels
from bertkit.tasks.shared.losses import MASKED_LOGIT
from bertkit.tasks.task import LossSettings
from bertkit.train.distributed import Ranks
from bertkit.train.loop import MicroBatch, StepReport, Sums
from bertkit.train.runs import Progress, Run

FEW_ROWS = 50  # a label; with fewer, few=true is chosen where no setting is named, see docs/few-labels.md
FEW_STEPS, FEW_EPOCHS = 15, 5  # at least, if `epochs` is not set
TEMPERATURE = 0.1  # cosines are divided by it before a softmax


def label_contrast(vectors_ND: Tensor, labels_N: Tensor, temperature: float = TEMPERATURE) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of texts with a partner): Khosla 2020's supervised contrastive loss, of unit vectors.

    For each text the mean of -log softmax over its cosines to all others, taken at the texts with its label.
    """
    itself = torch.eye(len(labels_N), dtype=torch.bool, device=labels_N.device)
    partners = (labels_N[:, None] == labels_N) & ~itself
    logits = (vectors_ND @ vectors_ND.T / temperature).masked_fill(itself, MASKED_LOGIT).log_softmax(dim=1)
    counts = partners.sum(dim=1)
    losses = -(logits * partners).sum(dim=1) / counts.clamp(min=1)
    return losses.sum(), (counts > 0).sum()


@dataclass(frozen=True)
class LabelPlan(EpochPlan):
    """Steps in which every text meets one of its label: texts come in pairs of one label, in random order."""

    labels: tuple[int, ...] = ()  # of each example

    def epoch(self, number: int) -> list[list[int]]:
        """Every example once; the last one of an odd number comes with two others."""
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, number]))
        labels, pairs = np.array(self.labels), list[np.ndarray]()
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            pairs += np.array_split(members, max(1, len(members) // 2))
        mixed = np.concatenate([pairs[index] for index in generator.permutation(len(pairs))])
        return [mixed[i : i + self.batch].tolist() for i in range(0, len(mixed), self.batch)]


class LabelContrast(Learner):
    """A model with the contrastive loss on its text vectors, the normalized means over tokens."""

    def forward(self, batch: Batch, labels: Tensor) -> Sums:  # type: ignore[override]
        """(sum of losses, number of texts with a partner, 0)."""
        vectors_ND = F.normalize(pool(self.model(batch).float(), batch, "mean"), dim=-1)
        loss, count = label_contrast(vectors_ND, labels)
        return {TASK: (loss, count, torch.zeros_like(count))}


@dataclass(kw_only=True, eq=False)
class FewSession(FineTuneSession):
    """Tunes the encoder, then fits the head; dev has no part in it but for the temperature of the probabilities."""

    ending = "fitting the classifier and saving the model"

    @property
    def total(self) -> int:
        """The number of steps: by default few, as every step compares all pairs of its texts."""
        learning = self.settings.learning
        if learning.epochs is None and learning.minutes is None:
            return self.plan.steps * max(FEW_EPOCHS, -(-FEW_STEPS // self.plan.steps))
        return super().total

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """Never: there is no head before the end."""
        return False

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The first windows of the chosen examples, and their labels."""
        windows = [self.prepared.train.windows[number][0] for number in chosen]
        batch = pack(windows, self.learner.model.config).to(self.ranks.device).laid_out()
        labels = [window.target for window in windows]
        count = sum(labels.count(label) > 1 for label in labels)
        seed = (self.settings.learning.seed * 1_000_003 + step) * 1_009 + part
        inputs = batch, torch.tensor(labels, device=self.ranks.device)
        return MicroBatch(inputs, {TASK: count}, len(batch.ids), seed)

    @cached_property
    def _replays(self) -> bool:
        return False

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Fit the logistic regression on the tuned vectors, and write the model folder."""
        from bertkit.finetuning.explore.features import fit_classifier, gold, layer_features  # scikit-learn is slow
        from bertkit.finetuning.explore.features_model import load_classifier

        model, task, train = self.learner.model, self.prepared.task, self.prepared.train
        vectors = layer_features(model, task, train)[:, -1]
        load_classifier(model, task, fit_classifier(vectors, gold(task, train)))
        return super().end(progress, report, finished=finished)


def open_few(
    run: Run,
    prepared: Prepared,
    start: Checkpoint,
    settings: FineTuneSettings,
    ranks: Ranks,
    teacher: object | None = None,
) -> tuple[FewSession, Progress]:
    """A session with the progress of the run's folder, as `open_session`."""
    if teacher is not None:
        raise RequestError("few=true compares labeled texts and has no use for a teacher; leave one of them out")
    refuse_single_rows(prepared)
    model, learning = start.model.to(ranks.device).train(), settings.learning
    freeze_below(model, lowest_trainable(settings, len(model.encoder.layers), 1.0) or 1)  # never the embeddings
    windows = [windows[0] for windows in prepared.train.windows]
    lengths, labels = tuple(len(window.ids) for window in windows), tuple(window.target for window in windows)
    session = FewSession(
        run=run,
        ranks=ranks,
        module=LabelContrast(model, prepared.task, LossSettings()),
        start=start,
        plan=LabelPlan(lengths, learning.batch, learning.seed, settings.run.tokens, labels=labels),
        metric=prepared.task.main_metric,
        prepared=prepared,
        settings=settings,
    )
    return session, session.restore_latest()


def few_start(model: Path) -> Path:
    """The model to start from: of the bundled one its variant for sentences, as wherever texts are embedded."""
    return embedding_model(None if str(model) == BUNDLED else model) or model


def chooses_few(prepared: Prepared, settings: FineTuneSettings, model: Path) -> bool:
    """Whether contrastive tuning is chosen by itself: no setting is named, and labels have few rows, two at least."""
    row, counts = prepared.task.row, count_labels(prepared.train.examples)
    if not (row.one_label_per_text and row.labeled and is_untouched(row, str(model), settings)):
        return False
    return min(counts.values()) > 1 and len(prepared.train.examples) < FEW_ROWS * len(counts)


def few_note(prepared: Prepared) -> str:
    """The note on a choice that was not asked for."""
    rows = len(prepared.train.examples) / len(count_labels(prepared.train.examples))
    return (
        f"{rows:.0f} rows a label are few, so few=true was chosen (contrastive tuning, then a logistic regression); "
        "few=false fine-tunes as with many rows"
    )


def refuse_single_rows(prepared: Prepared) -> None:
    """Refuse labels with one row, which have no pair."""
    single = [label for label, count in count_labels(prepared.train.examples).items() if count < 2]
    if single:
        raise RequestError(
            f"the label '{single[0]}' has one row to train on, and few=true compares rows of one label; give two rows "
            "of each label at least, with a --dev file if they are held out, or take --features"
        )
