"""Do contextual vectors know senses apart, where static vectors cannot? Three tests on real sentences.

    python benchmarks/senses.py --corpus wiki.txt.zst --wic wic.jsonl.zst --model MODEL --vectors DIR --out RESULT.json

Words with senses: uses of a word whose sentence has a cue of one sense and none of the other ("bank" with river, or
with money). The cue is then taken out of the sentence, so that what is read no longer holds what labeled it. No person
labeled them, and a cue can mislead: these are silver labels.

Made-up words: two words that have nothing in common are both replaced by one that does not exist; which one stood there
is the sense. These labels are exact.

Score: how often the nearest other use has the same sense. One static vector for a word is the same in all its uses, so
every other use is equally near: chance. The fair static contrast is the mean of the static vectors of the ten words
around. WiC: whether two sentences use a word alike, by a threshold on the cosine that is fitted on other words.
"""

import argparse
import hashlib
import json
import platform
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import bertkit
from bertkit.data.tables import Columns, open_table
from bertkit.files import whole_file
from bertkit.inside.senses.scores import neighbor_accuracy, units
from bertkit.inside.senses.senses import context_vectors, sense_scores, use_vectors
from bertkit.inside.senses.uses import Use, read_uses
from bertkit.inside.static.files import open_vectors

EACH = 100  # uses of each sense, at most
CUES = {
    "bank": ("river stream shore creek canal", "money loan account financial investment deposit credit"),
    "cell": ("prison jail prisoner inmate police", "membrane nucleus protein tissue bacteria dna blood"),
    "bass": ("fish lake fishing river freshwater", "guitar drums vocals band singer piano"),
    "rock": ("lava stone sedimentary volcanic cliff mineral", "band album music guitar singer"),
    "star": ("planet galaxy astronomers sun constellation telescope", "film movie actor actress television"),
    "plant": ("leaves flowers seeds roots soil garden", "factory nuclear manufacturing workers reactor coal"),
    "spring": ("summer autumn winter march april", "water hot mineral wells thermal"),
    "match": ("football tennis wrestling cricket goal", "fire lit flame burn smoke"),
    "court": ("judge law supreme legal trial", "tennis basketball players indoor badminton"),
    "bat": ("cricket baseball pitcher hitter batsman", "mammal species insects wings nocturnal"),
    "cabinet": ("minister government prime president parliament", "wooden drawers furniture kitchen shelves"),
    "mercury": ("planet sun venus orbit mars", "metal liquid poisoning element gold"),
}
PAIRS = (
    "guitar river",
    "doctor island",
    "bread castle",
    "judge flower",
    "horse novel",
    "winter engine",
    "painter volcano",
)
MADE_UP = "blick"
ENDINGS = ("", "s", "es", "d", "ed", "ing", "er", "ers", "ly")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "wic", "model", "vectors", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(2)
    bert, static = bertkit.load(options.model), open_vectors(options.vectors)
    words = {word: cued(word, cues, options.corpus) for word, cues in CUES.items()}
    made_up = {pair: replaced(pair, options.corpus) for pair in PAIRS}
    layers = range(bert.model.config.depth + 1)
    result = {
        "what": "share of uses whose nearest other use has the same sense: contextual vectors beside static ones",
        "machine": {"cores": 2, "python": platform.python_version(), "torch": torch.__version__},
        "model": repr(bert),
        "static vectors": dict(static.record),
        "words with cues, the cues taken out": table(bert, static, words),
        "two words replaced by one made-up word": table(bert, static, made_up),
        "mean contextual accuracy by layer, words with cues": {
            str(layer): round(float(np.mean([layer_accuracy(bert, uses, layer) for uses in words.values()])), 4)
            for layer in layers
        },
        "WiC": wic(bert, static, options.wic),
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2, ensure_ascii=False))


def cued(word: str, cues: tuple[str, str], corpus: Path) -> list[Use]:
    """Uses with a cue of one sense alone, without that cue, and at most EACH of a sense."""
    patterns = [re.compile(rf"\b({'|'.join(words.split())})(s|es)?\b", re.IGNORECASE) for words in cues]
    found: dict[str, list[Use]] = {words.split()[0]: [] for words in cues}
    for use in read_uses(word, [corpus], most=100_000):
        hits = [pattern.search(use.sentence) is not None for pattern in patterns]
        if sum(hits) == 1:
            which = hits.index(True)
            sense, sentence = cues[which].split()[0], " ".join(patterns[which].sub(" ", use.sentence).split())
            if place := re.search(rf"(?<!\w){word}(?!\w)", sentence, re.IGNORECASE):
                found[sense].append(Use(sentence, *place.span(), use.source, sense))
    return balanced(found)


def replaced(pair: str, corpus: Path) -> list[Use]:
    """Uses of two words, both written as one that does not exist."""
    found = {}
    for word in pair.split():
        pattern = re.compile(rf"(?<!\w){word}(?!\w)", re.IGNORECASE)
        uses = read_uses(word, [corpus], most=EACH)
        written = [replace(use, sentence=pattern.sub(MADE_UP, use.sentence), sense=word) for use in uses]
        found[word] = [replace(use, end=use.start + len(MADE_UP)) for use in written]
    return balanced(found)


def balanced(found: dict[str, list[Use]]) -> list[Use]:
    """As many uses of each sense as of the rarest, spread evenly over the text."""
    size = min(EACH, *(len(uses) for uses in found.values()))
    return [uses[n * len(uses) // size] for uses in found.values() for n in range(size)]


def table(bert, static, sets: dict[str, list[Use]]) -> dict[str, object]:
    rows = {}
    for word, uses in sets.items():
        scores = sense_scores(use_vectors(bert, uses), uses, static)
        rows[word] = {"uses": len(uses), "contextual": scores.contextual, "static": scores.static}
        rows[word] |= {"mean of static vectors around": scores.neighbors, "silhouette": scores.silhouette}
    mean = {name: float(np.mean([row[name] for row in rows.values()])) for name in next(iter(rows.values()))}
    rows["mean"] = mean | {"uses": sum(row["uses"] for row in rows.values())}
    return {word: {name: round(value, 4) for name, value in row.items()} for word, row in rows.items()}


def layer_accuracy(bert, uses: list[Use], layer: int) -> float:
    return neighbor_accuracy(use_vectors(bert, uses, layer=layer), [use.sense for use in uses])


def wic(bert, static, path: Path) -> dict[str, object]:
    """Threshold and layer chosen on four fifths of the words, accuracy on the rest."""
    rows = [row.values for row in open_table(path, Columns()).rows]
    pairs, labels, held_out = [], [], []
    for row in rows:
        sides = [wic_use(row["word"], row[name]) for name in ("sentence1", "sentence2")]
        if all(sides):
            pairs.append(sides)
            labels.append(bool(int(row["label"])))
            held_out.append(hashlib.sha256(row["word"].encode()).digest()[0] % 5 == 0)
    truth, dev = np.array(labels), np.array(held_out)
    uses = [use for pair in pairs for use in pair]
    scores = {}
    for layer in range(1, bert.model.config.depth + 1):
        scores[f"layer {layer}"] = fitted(pair_cosines(use_vectors(bert, uses, layer=layer)), truth, dev)
    best = max(scores, key=lambda name: scores[name]["train"])
    around = fitted(pair_cosines(context_vectors(static, uses)), truth, dev)
    majority = max(float(truth[dev].mean()), 1 - float(truth[dev].mean()))
    return {
        "pairs used": len(pairs),
        "pairs whose word was not found by its endings": len(rows) - len(pairs),
        "held out": int(dev.sum()),
        "contextual": scores[best] | {"layer": best},
        "mean of static vectors around": around,
        "static, one vector per word (the larger class)": round(majority, 4),
    }


def wic_use(word: str, sentence: str) -> Use | None:
    """Where the word stands, with a common ending or none; None where its form is irregular."""
    stems = {word, word.rstrip("e"), re.sub("y$", "i", word), word + word[-1]}
    for stem in sorted(stems, key=len, reverse=True):
        if place := re.search(rf"(?<!\w){re.escape(stem)}({'|'.join(ENDINGS)})(?!\w)", sentence, re.IGNORECASE):
            return Use(sentence, *place.span(), "WiC")
    return None


def pair_cosines(vectors: np.ndarray) -> np.ndarray:
    ways = units(vectors)
    return (ways[::2] * ways[1::2]).sum(axis=1)


def fitted(cosines: np.ndarray, truth: np.ndarray, dev: np.ndarray) -> dict[str, float]:
    """The threshold that is best on the words to learn from, and how it does on the others."""
    cuts = np.unique(cosines[~dev])
    best = max(cuts, key=lambda cut: ((cosines[~dev] >= cut) == truth[~dev]).mean())
    right = (cosines >= best) == truth
    return {"train": round(float(right[~dev].mean()), 4), "held out": round(float(right[dev].mean()), 4)}


if __name__ == "__main__":
    main()
