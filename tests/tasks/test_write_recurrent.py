"""Text to text by the RNN with additive attention: learned, generated token by token, and aligned with the source."""

from pathlib import Path

import pytest
import tiny
import torch

import bertkit
from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_task_request
from bertkit.model.batch import Batch
from bertkit.model.operations import Source
from bertkit.tasks.table import TASKS

pytestmark = pytest.mark.usefixtures("_one_thread")
SHAPE = ("family=rnn", "width=32", "depth=1", "inner=32", "vocab_size=320", "max_length=24", "dropout=0")
TRAINING = (*SHAPE, "batch=16", "epochs=12", "learning_rate=2e-2", "warmup_steps=10")


def settings(*pairs):
    return read_task_request(TASKS["write"], "new", *pairs)[0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("write")
    train, dev = tiny.files(folder, "write", 128, 16)
    result = fine_tune("write", settings(*TRAINING), Path("new"), train, dev, folder / "run")
    assert result.scores["exact_match"] == 1.0
    return bertkit.load(folder / "run" / "model")


def test_it_learns_is_saved_and_writes(bert):
    assert bert.model.config.family == "rnn"
    assert bert.write("ada lives in rome").text == "rome ada"
    assert bert.write(["alan lives in paris", "grace lives in rome"], beams=3)[0].text == "paris alan"
    assert "".join(bert.stream("ada lives in paris")) == "paris ada"


def test_each_written_token_has_an_alignment_with_the_source(bert):
    read = Batch.pack([bert.tokenizer.encode("ada lives in rome").ids])
    target = Batch.pack([[bert.tokenizer.cls_id, *bert.tokenizer.encode_ids(["rome ada"])[0]]])
    with torch.no_grad():
        [layer] = bert.model.decoder.stack.trace(target, Source(bert.model(read), read)).layers
    rows = layer.cross_weights[0]
    assert rows.shape == (target.longest, read.longest)
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(len(rows)))


def test_another_family_is_refused(tmp_path):
    train, dev = tiny.files(tmp_path, "write", 8, 4)
    with pytest.raises(RequestError, match="unknown family with a decoder 'elmo'; choose from: .*marian, rnn"):
        fine_tune("write", settings("family=elmo"), Path("new"), train, dev, tmp_path / "run")
