"""A language of three topics, a model pre-trained on it in seconds, and labeled texts: what fine-tuning facts need.

A document draws six words of ten from its topic's forty and the rest from twenty that all topics share. Whoever has
read many documents knows which words go together; whoever has seen a few labeled texts only does not.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.data.examples import Example, Place, TextExample
from bertkit.facts.random_text import RandomText
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import FineTuneSettings, read_settings
from bertkit.model.model import BertModel, new_model
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.tasks.folder import build_task
from bertkit.tasks.task import Part
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

TOPICS, WORDS, SHARED = 3, 40, 20
OWN_SHARE = 0.6
DOCUMENTS, LENGTH = 4000, 30  # a document and its wiring fill one sequence of 32 tokens
STEPS, RATE = 250, 4e-3
PLACE = Place(Path("topics"), 1)
# A model of 85,000 parameters takes larger steps than one of 100 million.
SMALL_MODEL = ("learning_rate=2e-3", "batch=8")


@cache
def topic_tokenizer() -> Tokenizer:
    """Every word is one piece."""
    own = [f"t{topic}w{word}" for topic in range(TOPICS) for word in range(WORDS)]
    return Tokenizer.from_vocab([*SPECIALS, *own, *(f"c{word}" for word in range(SHARED))])


def draw_words(rng: np.random.Generator, topic: int, count: int) -> NDArray[np.int64]:
    """Ids of a text on a topic."""
    own = topic * WORDS + rng.integers(0, WORDS, count)
    shared = TOPICS * WORDS + rng.integers(0, SHARED, count)
    found: NDArray[np.int64] = len(SPECIALS) + np.where(rng.random(count) < OWN_SHARE, own, shared)
    return found


def topic_examples(count: int, seed: int, words: int = 8) -> list[Example]:
    """Texts with their topic as label."""
    rng, tokenizer = np.random.default_rng(seed), topic_tokenizer()
    topics = rng.integers(0, TOPICS, count).tolist()
    texts = [" ".join(tokenizer.tokens(draw_words(rng, topic, words).tolist())) for topic in topics]
    return [TextExample(text, None, str(topic), PLACE) for text, topic in zip(texts, topics, strict=True)]


@cache
def pretrained() -> Checkpoint:
    """A model of 85,000 numbers that has read 8,000 documents with masked words."""
    shape = {"width": 64, "depth": 2, "heads": 2, "inner": 128, "max_length": 64}
    config = family_config(
        "bert", "tiny", vocab_size=topic_tokenizer().size, dropout=0.0, attention_dropout=0.0, **shape
    )
    model = new_model(config, {"masked_word": None})
    with torch.enable_grad():
        _read_documents(model.train())
    return Checkpoint(model=model.eval(), tokenizer=topic_tokenizer(), max_length=64)


def _read_documents(model: BertModel) -> None:
    source = ExampleSource(_documents(), DataSettings(length=LENGTH + 2, block=32))
    objective, optimizer = (
        ForPretraining(model, objective_rows(["mlm"])),
        torch.optim.AdamW(model.parameters(), lr=RATE),
    )
    rise_and_fall = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    for step in range(STEPS):
        total, count, _ = objective(*to_inputs(source.block(step), torch.device("cpu")))["mlm"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        rise_and_fall.step()


def _documents() -> RandomText:
    rng = np.random.default_rng(0)
    size = DOCUMENTS * LENGTH
    return RandomText(
        tokenizer=topic_tokenizer(),
        ids=np.concatenate([draw_words(rng, int(rng.integers(TOPICS)), LENGTH) for _ in range(DOCUMENTS)]),
        words=np.ones(size, dtype=np.uint8),
        sentence_starts=np.arange(0, size + 1, LENGTH),
        document_starts=np.arange(DOCUMENTS + 1),
        entities=np.empty((0, 2), dtype=np.int64),
    )


def prepared(train: int = 384, dev: int = 200) -> tuple[Prepared, FineTuneSettings]:
    """Labeled texts for the task of naming their topic, and settings that fit so small a model."""
    settings = read_settings(*SMALL_MODEL)
    labels = tuple(map(str, range(TOPICS)))
    task = build_task("classify", pretrained(), settings.reading, labels=labels)
    parts = []
    for seed, count in enumerate((train, dev), start=1):
        examples = topic_examples(count, seed)
        parts.append(Part(examples, [task.windows(example, number) for number, example in enumerate(examples)]))
    return Prepared(task, parts[0], parts[1], ()), settings
