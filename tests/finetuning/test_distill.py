"""A teacher of another family than its student reads every text as it was trained to."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.data.examples import TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.distill import Student, Teacher
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.learner import pack, task_logits
from bertkit.finetuning.settings import read_settings
from bertkit.model.model import new_model
from bertkit.tasks.classify import Classify
from bertkit.tasks.task import LossSettings

pytestmark = pytest.mark.usefixtures("_one_thread")
ONE = read_settings("epochs=1", "learning_rate=3e-3", "batch=16")
FAMILIES = ["bert", "distilbert", "roberta"]  # 2, 0 and 1 segments


def classifier(family: str, folder: Path):
    """A model whose segments matter, as they do in trained ones."""
    config = load_checkpoint(tiny.tiny_folder(folder / family, family)).model.config
    model = new_model(replace(config, init_std=1.0), {"classify": 2}).eval()
    if config.segments:
        torch.nn.init.normal_(model.encoder.embeddings.segment.weight, generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("teachers", FAMILIES)
@pytest.mark.parametrize("students", FAMILIES)
def test_a_teacher_is_given_the_segments_of_its_own_family(students, teachers, tmp_path):
    student, model = classifier(students, tmp_path / "student"), classifier(teachers, tmp_path / "teacher")
    task = Classify(tokenizer=tiny.tokenizer(), limit=64, labels=("0", "1"))
    windows = task.windows(TextExample("the film was good", "it is great", "1", Location(Path("x"), 0)), 0)
    teacher, batch = Teacher(model=model, task=task, weight=1.0), pack(windows, student.config)
    with torch.no_grad():
        [(loss, _, _)] = Student(student, task, LossSettings(), teacher)(batch, windows).values()
        ours = task_logits(student, task, batch, windows)
        theirs = task_logits(model, task, pack(windows, model.config), windows)
        wanted = task.distillation_loss(teacher.task, ours, theirs, batch, windows, teacher.temperature)
    torch.testing.assert_close(loss, wanted)


def test_a_teacher_with_fewer_positions_than_a_text_needs_is_refused_before_the_first_step(tmp_path):
    train, dev = tiny.files(tmp_path, "classify")
    short = tiny.tiny_folder(tmp_path / "short", max_length=12)
    fine_tune("classify", ONE, short, train, dev, tmp_path / "teacher")
    student = tiny.tiny_folder(tmp_path / "student", "distilbert")
    teacher = tmp_path / "teacher"
    with pytest.raises(
        RequestError, match=r"teacher has 12 positions.* up to \d\d tokens; give max_length=12"
    ) as refused:
        fine_tune("classify", ONE, student, train, dev, tmp_path / "run", teacher=teacher)
    assert str(teacher) in str(refused.value)
    assert not (tmp_path / "run").exists()
    fits = read_settings("epochs=1", "learning_rate=3e-3", "batch=16", "max_length=12")
    assert fine_tune("classify", fits, student, train, dev, tmp_path / "run", teacher=teacher).finished
