"""Facts about languages other than English: what cased tokenizers keep (P20), and what uncased French loses (F14)."""

from functools import cache
from itertools import product

from bertkit.config import family_config
from bertkit.data.examples import Example, TextExample
from bertkit.facts.fact import Facts, Outcome, holds
from bertkit.facts.setup import PLACE, make_part, text_file
from bertkit.facts.tokenizer import split
from bertkit.finetuning.explore.features import gold, layer_features, predict_labels
from bertkit.model.model import new_model
from bertkit.tasks.classify import Classify
from bertkit.tasks.metrics.classes import accuracy
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
# Two words that differ only in accents: the first has label "a", the second "b".
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
    """The tokenizer of a vocabulary trained on a text."""
    with text_file(text) as path:
        vocabulary = make_vocabulary([path], VocabularySettings(size=size, lowercase=lowercase, min_count=1))
    return Tokenizer.from_vocab(vocabulary.pieces, lowercase=lowercase)


def is_kept(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the joined tokens are the text without its spaces."""
    return "".join(piece.removeprefix("##") for piece in split(tokenizer, text)) == "".join(text.split())


@facts("P20", "E840-842", "one cased vocabulary keeps all letters and accents of five languages (without transfer)")
def many_languages() -> Outcome:
    text = "\n".join(LANGUAGES.values())
    cased, uncased = (tokenizer_of(text, lowercase=lowercase, size=180) for lowercase in (False, True))
    by_cased, by_uncased = (
        [name for name, sentence in LANGUAGES.items() if is_kept(tokenizer, sentence)] for tokenizer in (cased, uncased)
    )
    characters = len(split(cased, LANGUAGES["Chinese"]))
    measured = f"cased {', '.join(by_cased)}; uncased {', '.join(by_uncased) or 'none'}; Chinese in {characters} tokens"
    ok = by_cased == list(LANGUAGES) and by_uncased == ["Chinese"] and characters == len(LANGUAGES["Chinese"])
    return holds("cased all five, uncased only Chinese, a token for each of 11 characters", measured, ok)


def french(*, test: bool) -> list[Example]:
    """Every word in four of the six frames, or for `test` in the other two; the label is its index in its pair."""
    examples: list[Example] = []
    for (frame_number, frame), (number, pair) in product(enumerate(FRAMES), enumerate(PAIRS)):
        if ((frame_number + number) % 3 == 0) == test:
            rows = zip(pair.split(), ("a", "b"), strict=True)
            examples += [TextExample(frame.format(word), None, label, PLACE) for word, label in rows]
    return examples


def accent_accuracy(*, cased: bool) -> float:
    """The accuracy of a logistic regression on the vectors of a random model (`--features`)."""
    texts = "\n".join([*FRAMES, *20 * PAIRS])  # repeated, so that most of these words become one token
    tokenizer = tokenizer_of(texts, lowercase=not cased)
    task = Classify(tokenizer=tokenizer, limit=32, labels=("a", "b"))
    train, dev = (make_part(task, french(test=test)) for test in (False, True))
    model = new_model(family_config("bert", "tiny", vocab_size=tokenizer.size)).eval()
    vectors = [layer_features(model, task, part)[:, -1] for part in (train, dev)]
    return accuracy(gold(task, dev), predict_labels(vectors[0], gold(task, train), vectors[1]))


@facts("F14", "E865", "French: a classifier on a cased model separates pêche and péché; on an uncased model not")
def accents_matter() -> Outcome:
    cased, uncased = accent_accuracy(cased=True), accent_accuracy(cased=False)
    measured = f"{cased:.0%} and {uncased:.0%} of {len(french(test=True))} sentences"
    return holds("cased over 90 %, uncased 50 %, which is chance", measured, cased > 0.9 and uncased == 0.5)
