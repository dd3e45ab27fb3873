"""Tiny folders for every task, with random heads: what they say is nonsense, but always the same."""

import os
from pathlib import Path

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.tasks.table import TASKS
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # for children: machines are shared
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), "?", ".", "1", "2"]
LABELS = {
    "classify": ("bad", "fine", "good"),
    "multilabel": ("name", "place"),
    "tag": ("O", "B-PER", "I-PER", "B-LOC"),
}


def taught_folder(folder: Path, task: str | None, *, max_length: int = 32, width: int = 16) -> Path:
    """A saved model with the task's head; None: without a head, for vectors."""
    shape = {"depth": 1, "width": width, "heads": 2, "inner": 32, "max_length": max_length}
    row = TASKS[task] if task else None
    family, more = ("encoder-decoder", {"decoder_depth": 1}) if row and row.generates else ("bert", {})
    config = family_config(family, "tiny", vocab_size=len(PIECES), init_std=0.3, **shape, **more)
    labels = LABELS.get(task, ("LABEL_0",) if row and row.numeric else ())
    heads = {row.head: len(labels) or None} if row else {}
    model = new_model(config, heads, seed=3).eval()
    tokenizer = Tokenizer.from_vocab(PIECES)
    named = {"name": task} if task else {}
    found = Checkpoint(model=model, tokenizer=tokenizer, labels=labels, max_length=max_length, task=named)
    save_checkpoint(found, folder)
    return folder


def dies(block):
    """The process ends without a word."""
    os._exit(9)


def nothing():
    """What a worker does first."""
