"""The default settings: enough steps for little data, and no collapse of the bundled model at a high learning rate."""

import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bertkit.checkpoint.bundled import bundled_folder
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.learner import load_start, pack
from bertkit.finetuning.prepare import DataFiles, prepare
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import LearningSettings, read_settings
from bertkit.tasks.task import LossSettings
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Run

TEXT = "the river bank was closed when rain fell on green hills and old trains left without us"


@pytest.mark.parametrize(("rows", "epochs"), [(160, 20), (2_490, 7), (8_551, 3), (67_349, 3)])
def test_little_data_is_read_more_often(rows, epochs):
    per_epoch = math.ceil(rows / 32)
    assert LearningSettings().total_steps(per_epoch) == epochs * per_epoch
    assert LearningSettings(epochs=2).total_steps(per_epoch) == 2 * per_epoch


def test_no_epoch_at_all_is_refused():
    with pytest.raises(RequestError, match="epochs=0 must be at least 1"):
        read_settings("epochs=0")


def write_rows(path: Path, rows: int) -> Path:
    """Sentences whose labels nothing in them explains: what a step learns first is how frequent labels are."""
    draw = random.Random(0)
    lines = [f"{' '.join(draw.choices(TEXT.split(), k=12))}\t{draw.choice(['yes', 'no', 'no'])}" for _ in range(rows)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return path


def similarity_of_tokens(folder: Path, *pairs: str) -> float:
    """The mean cosine between two tokens of a text in the last layer, after fine-tuning the bundled model."""
    settings = read_settings("epochs=7", "learning_rate=3e-4", *pairs)
    begin, data = load_checkpoint(bundled_folder()), write_rows(folder / "rows.tsv", 96)
    prepared = prepare("classify", begin, DataFiles(train=data, dev=data), settings)
    start = load_start(begin, prepared.task, settings)
    session, progress = open_session(
        Run(folder / "-".join(pairs)), prepared, start, settings, Ranks(device=torch.device("cpu"))
    )
    for _ in session.steps(progress):
        pass
    batch = pack(prepared.dev.flat[:16], start.model.config)
    with torch.no_grad():
        texts = [F.normalize(own, dim=1) for own in batch.split(start.model.eval()(batch))]
    return sum(float((own @ own.T).mean()) for own in texts) / len(texts)


def test_the_tokens_of_a_text_stay_apart_at_a_high_learning_rate(tmp_path):
    plain = similarity_of_tokens(tmp_path, "layer_decay=1", "warmup=0.1")
    assert plain > 0.95, "one rate for all layers and a short warm-up: every token becomes the same vector"
    assert similarity_of_tokens(tmp_path) < 0.8


@pytest.mark.parametrize(("smoothing", "weights"), [(0.0, None), (0.2, None), (0.0, (4.0, 1.0)), (0.2, (4.0, 1.0))])
def test_a_classifier_starts_where_the_loss_of_guessing_is_least(smoothing, weights, tmp_path):
    begin, data = load_checkpoint(bundled_folder()), tmp_path / "a.tsv"
    data.write_text("text\tlabel\n" + "a\tno\n" * 15 + "b\tyes\n" * 5)
    prepared = prepare("classify", begin, DataFiles(train=data, dev=data), read_settings())
    settings = LossSettings(label_smoothing=smoothing, class_weights=weights)
    logits = torch.tensor(prepared.task.prior_bias(prepared.train, settings), requires_grad=True)
    windows = prepared.train.flat
    loss, count = prepared.task.loss(
        logits.expand(len(windows), 2), pack(windows, begin.model.config), windows, settings
    )
    (loss / count).backward()
    assert logits.grad.abs().max() < 1e-6
