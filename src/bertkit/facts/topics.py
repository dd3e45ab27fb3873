"""An artificial language of three topics, a model pre-trained on it in seconds, and labeled texts for fine-tuning.

60 % of the words of a document are from the forty words of its topic, the others from twenty shared words. A model that
has read many documents knows which words belong together; one that has seen only a few labeled texts does not.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.data.examples import Example, TextExample
from bertkit.facts.random_text import RandomText, even_text
from bertkit.facts.setup import CPU, PLACE, make_part
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import FineTuneSettings, read_settings
from bertkit.model.model import BertModel, new_model
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.tasks.folder import build_task
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

TOPICS, WORDS, SHARED = 3, 40, 20  # topics, words of each, words that all topics share
TOPIC_SHARE = 0.6  # of the words of a document
DOCUMENTS, LENGTH = 4000, 30  # a document with [CLS] and [SEP] is a sequence of 32 tokens
STEPS, LEARNING_RATE = 220, 4e-3
# A model of 85,000 parameters needs a larger learning rate than one of 100 million.
SMALL_MODEL = ("learning_rate=2e-3", "batch=8")


@cache
def topic_tokenizer() -> Tokenizer:
    """A tokenizer in which every word is one piece."""
    topic_words = [f"t{topic}w{word}" for topic in range(TOPICS) for word in range(WORDS)]
    return Tokenizer.from_vocab([*SPECIALS, *topic_words, *(f"c{word}" for word in range(SHARED))])


def draw_words(rng: np.random.Generator, topic: int, count: int) -> NDArray[np.int64]:
    """The ids of a text on a topic."""
    topic_words = topic * WORDS + rng.integers(0, WORDS, count)
    shared = TOPICS * WORDS + rng.integers(0, SHARED, count)
    ids: NDArray[np.int64] = len(SPECIALS) + np.where(rng.random(count) < TOPIC_SHARE, topic_words, shared)
    return ids


def topic_examples(count: int, seed: int, words: int = 8) -> list[Example]:
    """Texts with their topic as label."""
    rng, tokenizer = np.random.default_rng(seed), topic_tokenizer()
    topics = rng.integers(0, TOPICS, count).tolist()
    texts = [" ".join(tokenizer.tokens(draw_words(rng, topic, words).tolist())) for topic in topics]
    return [TextExample(text, None, str(topic), PLACE) for text, topic in zip(texts, topics, strict=True)]


@cache
def pretrained() -> Checkpoint:
    """A model of 85,000 parameters, pre-trained with masked words on 8,000 documents."""
    shape = {"width": 64, "depth": 2, "heads": 2, "inner": 128, "max_length": 64}
    shape |= {"vocab_size": topic_tokenizer().size, "dropout": 0, "attention_dropout": 0}
    config = family_config("bert", "tiny", **shape)
    model = new_model(config, {"masked_word": None})
    with torch.enable_grad():
        _pretrain(model.train())
    return Checkpoint(model=model.eval(), tokenizer=topic_tokenizer(), max_length=64)


def _pretrain(model: BertModel) -> None:
    source = ExampleSource(_documents(), DataSettings(length=LENGTH + 2, block=32))
    objective = ForPretraining(model, objective_rows(["mlm"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    for step in range(STEPS):
        total, count, _ = objective(*to_inputs(source.block(step), CPU))["mlm"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        schedule.step()


def _documents() -> RandomText:
    rng = np.random.default_rng(0)
    ids = np.concatenate([draw_words(rng, int(rng.integers(TOPICS)), LENGTH) for _ in range(DOCUMENTS)])
    return even_text(topic_tokenizer(), ids, sentences=1, tokens=LENGTH)


def prepared(train: int = 384, dev: int = 200) -> tuple[Prepared, FineTuneSettings]:
    """Labeled texts for the classification of topics, and settings for a small model."""
    settings = read_settings(*SMALL_MODEL)
    labels = tuple(map(str, range(TOPICS)))
    task = build_task("classify", pretrained(), settings.reading, labels=labels)
    parts = [make_part(task, topic_examples(count, seed)) for seed, count in enumerate((train, dev), start=1)]
    return Prepared(task, parts[0], parts[1], ()), settings
