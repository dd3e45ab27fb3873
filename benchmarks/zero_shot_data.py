"""Data of `zero_shot.py`: inference sets to teach an entailment head, and tasks with descriptions of their labels.

The descriptions were written before any score was seen, and are not changed. Of a task, at most 500 test rows are used:
the first ones in an order that is drawn with a fixed seed.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertkit.files import whole_file
from bertkit.text.corpus import CorpusReport, read_lines

SEED = 23
HELD_OUT = 500  # last rows of SNLI's and of MNLI's file: hypotheses of one premise stand together
EMOTIONS = 3000  # texts of GoEmotions, with the emotion that they show and one that they do not
ROWS = 500  # of a task at most
NEUTRAL = 27
INFERENCE = ("snli/dev.jsonl.zst", "glue-mnli/dev_matched.jsonl.zst")
EMOTION_FORMS = ("The writer expresses {}.", "This text shows {}.", "The feeling here is {}.")

Row = Mapping[str, str]
Labeled = tuple[list[str], list[str]]  # texts and their labels


@dataclass(frozen=True)
class ZeroTask:
    """A task to classify without labelled rows: its test file, and a description of each label."""

    file: str
    tuning: str  # the file of other rows, on which the decision that is shipped is fitted
    labels: Mapping[str, str]


TASKS = {
    "trec6": ZeroTask(
        "trec6/TREC_10.label",
        "trec6/train_5500.label.zst",
        {
            "ABBR": "The question asks what an abbreviation stands for.",
            "DESC": "The question asks for a description, a definition or a reason.",
            "ENTY": "The question asks for a thing, such as an animal, a color, a food or an event.",
            "HUM": "The question asks for a person or a group of people.",
            "LOC": "The question asks for a place, such as a city or a country.",
            "NUM": "The question asks for a number, such as a date, a distance or an amount of money.",
        },
    ),
    "snips": ZeroTask(
        "intent-snips/test.tsv",
        "intent-snips/dev.tsv",
        {
            "AddToPlaylist": "The user wants to add a song or an artist to a playlist.",
            "BookRestaurant": "The user wants to book a table at a restaurant.",
            "GetWeather": "The user asks about the weather.",
            "PlayMusic": "The user wants to listen to music.",
            "RateBook": "The user wants to rate a book.",
            "SearchCreativeWork": "The user wants to find a book, a film, a song or another creative work.",
            "SearchScreeningEvent": "The user asks when or where a film is shown at the cinema.",
        },
    ),
    "sst2": ZeroTask(
        "glue-sst2/dev.tsv", "glue-sst2/train.tsv.zst", {"0": "This film is bad.", "1": "This film is good."}
    ),
    "ag-news": ZeroTask(
        "ag-news/test.tsv.zst",
        "ag-news/train_10k_subset.tsv.zst",
        {
            "World": "This news is about world politics, governments and conflicts.",
            "Sports": "This news is about sports.",
            "Business": "This news is about business, companies and the economy.",
            "Sci/Tech": "This news is about science and technology.",
        },
    ),
}


def task_rows(data: Path, file: str, labels: Mapping[str, str], rows: int = ROWS) -> Labeled:
    """Texts and labels of a task's file, in a fixed random order."""
    read = _questions if ".label" in file else _table
    found = [row for row in read(data / file) if row[1] in labels]
    random.Random(SEED).shuffle(found)
    texts, golds = zip(*found[:rows], strict=True)
    return list(texts), list(golds)


def inference_rows(data: Path) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows): premise, hypothesis, and whether it follows, contradicts or neither."""
    train, held = list[Row](), list[Row]()
    for file in INFERENCE:
        rows = [json.loads(line) for line in _lines(data / file)]
        rows = [_pair(row["premise"], row["hypothesis"], row["label"]) for row in rows]
        train, held = train + rows[:-HELD_OUT], held + rows[-HELD_OUT:]
    for file in ("cad-nli/original.train.tsv", "cad-nli/revised_combined.train.tsv.zst"):
        train += [_pair(*line.split("\t")) for line in list(_lines(data / file))[1:]]
    train += list(_emotion_rows(data))
    random.Random(SEED).shuffle(train)
    return train, held


def plain_texts(options: argparse.Namespace) -> None:
    """Write texts of many kinds without labels, for a variant that learns a teacher's cosines: of none of TASKS."""
    data, draw = options.data, random.Random(SEED)
    pairs = [json.loads(line) for file in INFERENCE for line in _lines(data / file)]
    articles = json.loads("".join(_lines(data / "squad/dev-v1.1.json.zst")))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    common = [json.loads(line)["question"] for line in _lines(data / "commonsenseqa/train.jsonl.zst")]
    texts = _some([pair["premise"] for pair in pairs], 6000, draw)
    texts += _some([pair["hypothesis"] for pair in pairs], 8000, draw)
    texts += _some([asked["question"] for paragraph in paragraphs for asked in paragraph["qas"]], 7000, draw)
    sentences = [part.strip() + "." for paragraph in paragraphs for part in paragraph["context"].split(". ")]
    texts += _some(sentences, 4000, draw)
    texts += _some([question["stem"] for question in common], 4000, draw)
    choices = {choice["text"] for question in common for choice in question["choices"]}
    concepts = sorted({question["question_concept"] for question in common} | choices)
    draw.shuffle(concepts)
    texts += [f"This is about {concept}." for concept in concepts[:4000]]
    texts += _some([line.split("\t")[0] for line in _lines(data / "goemotions/train.tsv.zst")], 7000, draw)
    texts += [form.format(name) for name in _lines(data / "goemotions/labels.txt") for form in EMOTION_FORMS]
    draw.shuffle(texts)
    with whole_file(options.out) as draft:
        draft.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _some(texts: Iterable[str], count: int, draw: random.Random) -> list[str]:
    """Different texts of 12 to 160 characters."""
    found = sorted({" ".join(text.split()) for text in texts if 12 <= len(text) <= 160})
    draw.shuffle(found)
    return found[:count]


def _emotion_rows(data: Path) -> Iterator[Row]:
    """Texts of GoEmotions with one emotion: a statement that names it follows, one that names another does not."""
    names, draw = list(_lines(data / "goemotions/labels.txt")), random.Random(SEED)
    rows = [line.split("\t") for line in _lines(data / "goemotions/train.tsv.zst")]
    single = [(text, int(label)) for text, label, _ in rows if "," not in label and int(label) != NEUTRAL]
    for text, label in draw.sample(single, EMOTIONS):
        other = draw.choice([number for number in range(NEUTRAL) if number != label])
        form = draw.choice(EMOTION_FORMS)
        yield _pair(text, form.format(names[label]), "entailment")
        yield _pair(text, form.format(names[other]), "contradiction")


def _pair(premise: str, hypothesis: str, label: str) -> Row:
    return {"text": premise, "pair": hypothesis, "label": label}


def _questions(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path, "latin-1"):
        kind, text = line.split(" ", 1)
        yield text, kind.split(":")[0]


def _table(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        text, _, label = line.rpartition("\t")
        yield text.strip(), label.strip()


def _lines(path: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    return (line for _, line in read_lines(path, report=CorpusReport(), encoding=encoding) if line)
