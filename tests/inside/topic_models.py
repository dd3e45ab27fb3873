"""A classifier of three topics, and the masked-word model that it was fine-tuned from: both trained in seconds."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import bertkit
from bertkit.facts.topics import prepared, pretrained
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start
from bertkit.predict.bert import Bert
from bertkit.settings import change
from bertkit.train.runs import Run


@cache
def topic_classifier() -> Bert:
    """Tells which of three topics a text's words are from."""
    data, settings = prepared()
    settings = change(settings, {"epochs": "3", "layer_decay": "1", "warmup": "0.1"})
    start = load_start(pretrained(), data.task, settings)
    with TemporaryDirectory() as folder:
        run_prepared(Run(Path(folder)), data, start, settings, device="cpu")
        return bertkit.load(Path(folder) / "model")


@cache
def topic_filler() -> Bert:
    """Fills blanks with words of the topic."""
    return Bert(pretrained())
