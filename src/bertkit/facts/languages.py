"""Facts about other languages than English: what cased tokenizers keep (P20), and what French loses without (F14)."""

import tempfile
from functools import cache
from itertools import product
from pathlib import Path

from bertkit.config import family_config
from bertkit.data.examples import Example, TextExample
from bertkit.facts.fact import Facts, Outcome, Vocabularies, holds
from bertkit.facts.tokenizer import split
from bertkit.facts.topics import PLACE
from bertkit.finetuning.explore.features import gold, layer_features, predict_labels
from bertkit.model.model import new_model
from bertkit.tasks.classify import Classify
from bertkit.tasks.metrics.classes import accuracy
from bertkit.tasks.task import Dataset
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary

facts = Facts()
LANGUAGES = {
    "German": "Die Äpfel fallen früh, und der Bär mag süße Äpfel.",
    "French": "Où est l'élève ? Il a mangé une pêche très mûre à Noël.",
    "Russian": "Зима пришла рано, и река замёрзла.",
    "Greek": "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.",
    "Chinese": "你好，北京的冬天很冷。",
}
# Two words that differ in accents alone: the second of each is the label "b".
PAIRS = ("pêche péché", "côte côté", "mur mûr", "jeune jeûne", "tache tâche", "sur sûr", "marche marché", "roder rôder")
FRAMES = (
    "Il a écrit {} sur le tableau.",
    "Voici le mot {} dans un livre.",
    "Elle lit {} à voix haute.",
    "Nous cherchons {} depuis hier.",
    "Le professeur répète {} trois fois.",
    "Mon frère ne sait pas épeler {}.",
)


@cache
def tokenizer_of(text: str, *, lowercase: bool, size: int = 110) -> Tokenizer:
    """What `bertkit vocab` makes of a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text(text, encoding="utf-8")
        made = make_vocabulary([path], VocabularySettings(size=size, lowercase=lowercase, min_count=1))
    return Tokenizer.from_vocab(made.pieces, lowercase=lowercase)


def kept(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the tokens, put together again, are the text without its spaces."""
    return "".join(piece.removeprefix("##") for piece in split(tokenizer, text)) == "".join(text.split())


@facts(
    "P20",
    "E840-842",
    "cased: one vocabulary keeps every letter and accent of five languages (transfer is not measured)",
)
def many_languages(_: Vocabularies) -> Outcome:
    text = "\n".join(LANGUAGES.values())
    cased, uncased = (tokenizer_of(text, lowercase=lowercase, size=180) for lowercase in (False, True))
    whole = [name for name, sentence in LANGUAGES.items() if kept(cased, sentence)]
    also = [name for name, sentence in LANGUAGES.items() if kept(uncased, sentence)]
    characters = len(split(cased, LANGUAGES["Chinese"]))
    measured = f"cased {', '.join(whole)}; uncased {', '.join(also) or 'none'}; Chinese in {characters} tokens"
    right = whole == list(LANGUAGES) and also == ["Chinese"] and characters == len(LANGUAGES["Chinese"])
    return holds("cased all five, uncased Chinese alone, a token for each of 11 characters", measured, right)


def french(*, asked: bool) -> list[Example]:
    """Every word in four of the six frames, or in the two that are left; which word of its pair it is, is the label."""
    made: list[Example] = []
    for (frame_number, frame), (number, pair) in product(enumerate(FRAMES), enumerate(PAIRS)):
        if ((frame_number + number) % 3 == 0) == asked:
            rows = zip(pair.split(), ("a", "b"), strict=True)
            made += [TextExample(frame.format(word), None, label, PLACE) for word, label in rows]
    return made


def told_apart(*, cased: bool) -> float:
    """How often a logistic regression on a fresh model's vectors names the right word of a pair (`--features`)."""
    texts = "\n".join([*FRAMES, *20 * PAIRS])  # so frequent that most of these words become one token
    tokenizer = tokenizer_of(texts, lowercase=not cased)
    task = Classify(tokenizer=tokenizer, limit=32, labels=("a", "b"))
    train, dev = (
        Dataset(examples, [task.windows(example, number) for number, example in enumerate(examples)])
        for examples in (french(asked=False), french(asked=True))
    )
    model = new_model(family_config("bert", "tiny", vocab_size=tokenizer.size)).eval()
    vectors = [layer_features(model, task, part)[:, -1] for part in (train, dev)]
    return accuracy(gold(task, dev), predict_labels(vectors[0], gold(task, train), vectors[1]))


@facts("F14", "E865", "French: a classifier on a cased model tells pêche from péché; an uncased model reads both alike")
def accents_matter(_: Vocabularies) -> Outcome:
    cased, uncased = told_apart(cased=True), told_apart(cased=False)
    measured = f"{cased:.0%} and {uncased:.0%} of {len(french(asked=True))} sentences"
    return holds("cased over 90 %, uncased 50 %: a guess", measured, cased > 0.9 and uncased == 0.5)
