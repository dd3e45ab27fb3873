"""GPT and GPT-2 are fine-tuned by every task that reads texts: their class heads have no bias."""

import pytest
import tiny

import bertkit
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.tasks.read import read_examples
from bertkit.tasks.table import TASKS

pytestmark = pytest.mark.usefixtures("_one_thread")
SETTINGS = read_settings("epochs=1", "batch=12", "learning_rate=1e-3")


@pytest.mark.parametrize("family", ["openai-gpt", "gpt2"])
@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if not row.generates])
def test_a_decoder_is_taught_and_asked(task, family, tmp_path):
    start = tiny.tiny_folder(tmp_path / "start", family, causal=True)
    train, dev = tiny.files(tmp_path, task, 24, 12)
    result = fine_tune(task, SETTINGS, start, train, dev, tmp_path / "run")
    assert (result.finished, result.steps) == (True, 2)
    examples = read_examples(task, dev, labeled=False).examples
    assert len(bertkit.load(tmp_path / "run" / "model").answers.predict(examples)) == len(examples)
