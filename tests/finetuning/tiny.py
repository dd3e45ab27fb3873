"""A model of a few thousand numbers over sixty words, and files that it can learn from in seconds."""

import json
import random
from dataclasses import replace
from pathlib import Path

import torch

from bertkit.checkpoint.adapters import PartUpdate, adaptable
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_adapter, save_checkpoint
from bertkit.config import family_config, override
from bertkit.model.low_rank import LowRankUpdate
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer

GOOD = ("good", "great", "fine", "lovely")
BAD = ("bad", "poor", "dull", "awful")
NAMES = ("ada", "alan", "grace")
PLACES = ("london", "paris", "rome")
FILLER = ("the", "film", "was", "a", "very", "in", "and", "of", "it", "is", "who", "lives", "where", "does", "live")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *NAMES, *PLACES, *FILLER, ".", "?", "e", "##x"]


def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(PIECES)


def tiny_folder(
    folder: Path, family: str = "bert", *, seed: int = 0, max_length: int = 64, causal: bool = False
) -> Path:
    """A saved model without heads."""
    shape = {"depth": 2, "width": 32, "heads": 2, "inner": 64, "max_length": max_length, "vocab_size": len(PIECES)}
    config = family_config(family, "tiny", **shape, pad_id=0, dropout=0.1, attention_dropout=0.1)
    model = new_model(override(config, f"causal={causal}"), {}, seed=seed)
    save_checkpoint(Checkpoint(model=model, tokenizer=tokenizer(), max_length=max_length), folder)
    return folder


def tiny_adapter(trunk: Path, folder: Path, seed: int = 0) -> Path:
    """A saved adapter for `classify` with random updates of rank 2 of every linear map."""
    task = {"name": "classify", "labels": ["no", "yes"]}
    checkpoint = replace(load_checkpoint(trunk, heads={"classify": 2}, seed=seed), task=task, labels=("no", "yes"))
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    updates = [
        PartUpdate(name, number, LowRankUpdate(draw(len(weight) // len(parts), 2), draw(2, weight.shape[1])))
        for name, parts in adaptable(checkpoint.model, native=False).items()
        for number in range(len(parts))
        for weight in [checkpoint.model.get_parameter(name)]
    ]
    save_adapter(checkpoint, folder, trunk, (2, 2.0), updates)
    return folder


def filler(draw: random.Random) -> list[str]:
    return draw.choices(FILLER, k=draw.randint(1, 8))


def sentence(draw: random.Random, *words: str) -> str:
    """The words among others, in order."""
    parts = []
    for word in words:
        parts += [*filler(draw), word]
    return " ".join([*parts, *filler(draw)])


def write_classes(path: Path, rows: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    lines = ["text\tlabel"]
    for _ in range(rows):
        label = draw.choice(("positive", "negative"))
        lines.append(f"{sentence(draw, draw.choice(GOOD if label == 'positive' else BAD))}\t{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_labels(path: Path, rows: int, seed: int = 0) -> Path:
    """Any of two labels: whether a name is there, whether a place is there."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        labels = [label for label in ("name", "place") if draw.random() < 0.5]
        words = [draw.choice(NAMES if label == "name" else PLACES) for label in labels]
        lines.append(json.dumps({"text": sentence(draw, *words), "labels": labels}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_numbers(path: Path, rows: int, seed: int = 0) -> Path:
    """How many good words: 100, 200 or 300, so that the scale is not the model's."""
    draw = random.Random(seed)
    lines = ["text\tscore"]
    for _ in range(rows):
        count = draw.randint(1, 3)
        lines.append(f"{sentence(draw, *draw.choices(GOOD, k=count))}\t{100 * count}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_tags(path: Path, rows: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    tags = {**dict.fromkeys(NAMES, "B-PER"), **dict.fromkeys(PLACES, "B-LOC")}
    blocks = []
    for _ in range(rows):
        words = sentence(draw, draw.choice(NAMES), draw.choice(PLACES)).split()
        blocks.append("\n".join(f"{word} {tags.get(word, 'O')}" for word in words))
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def write_questions(path: Path, rows: int, seed: int = 0) -> Path:
    """Who (a name) or where (a place), some without an answer."""
    draw = random.Random(seed)
    questions = []
    for number in range(rows):
        name, place, who = draw.choice(NAMES), draw.choice(PLACES), draw.random() < 0.5
        there = draw.random() < 0.8
        passage = sentence(draw, name, place) if there else sentence(draw, place if who else name)
        text = name if who else place
        answers = [{"text": text, "answer_start": passage.split(" ").index(text)}] if there else []
        for answer in answers:
            answer["answer_start"] = len(" ".join(passage.split(" ")[: answer["answer_start"]])) + 1
        question = {"id": str(number), "question": "who lives ?" if who else "where ?", "answers": answers}
        question["is_impossible"] = not there
        questions.append({"context": passage, "qas": [question]})
    content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": questions}]}
    path.write_text(json.dumps(content))
    return path


def write_choices(path: Path, rows: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        right = draw.randrange(3)
        choices = [draw.choice(GOOD if place == right else BAD) for place in range(3)]
        lines.append(json.dumps({"question": sentence(draw, "film"), "choices": choices, "label": right}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_ranked(path: Path, rows: int, seed: int = 0) -> Path:
    """Which text of three praises the film: 1 for it, 0 for the others."""
    draw = random.Random(seed)
    lines = []
    for number in range(rows):
        texts = [sentence(draw, draw.choice(words)) for words in (GOOD, BAD, PLACES)]
        scores = [1, 0, 0]
        order = draw.sample(range(3), 3)
        query = f"film {number} ?"
        lines.append(
            json.dumps({"query": query, "texts": [texts[n] for n in order], "scores": [scores[n] for n in order]})
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def write_ratings(path: Path, rows: int, seed: int = 0) -> Path:
    """How much each word is liked: a number with a fraction for each."""
    draw = random.Random(seed)
    liked = {**dict.fromkeys(GOOD, 30.5), **dict.fromkeys(BAD, 10.5)}
    lines = []
    for _ in range(rows):
        words = sentence(draw, draw.choice(GOOD), draw.choice(BAD)).split()
        lines.append(json.dumps({"words": words, "ratings": [liked.get(word, 20.0) for word in words]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_copies(path: Path, rows: int, seed: int = 0) -> Path:
    """Names and places, to be written in turned order."""
    draw = random.Random(seed)
    lines = ["source\ttarget"]
    for _ in range(rows):
        name, place = draw.choice(NAMES), draw.choice(PLACES)
        lines.append(f"{name} lives in {place}\t{place} {name}")
    path.write_text("\n".join(lines) + "\n")
    return path


WRITERS = {
    "classify": (write_classes, ".tsv"),
    "multilabel": (write_labels, ".jsonl"),
    "regress": (write_numbers, ".tsv"),
    "tag": (write_tags, ".conll"),
    "answer": (write_questions, ".json"),
    "choose": (write_choices, ".jsonl"),
    "rank": (write_ranked, ".jsonl"),
    "rate-words": (write_ratings, ".jsonl"),
    "write": (write_copies, ".tsv"),
}


def files(folder: Path, task: str, train: int = 256, dev: int = 64) -> tuple[Path, Path]:
    write, ending = WRITERS[task]
    return write(folder / f"train{ending}", train, seed=1), write(folder / f"dev{ending}", dev, seed=2)
