"""Facts about what a trained model does, measured on the model inside the package (`bertkit.load()`).

It is small, and it does less than the documents say of BERT. Each claim says what it does, with a margin; a model with
random weights fails every one of them.
"""

from functools import cache

import numpy as np
import torch

from bertkit.errors import RequestError
from bertkit.facts.bundled import bundled
from bertkit.facts.fact import Facts, Outcome, Vocabularies, holds
from bertkit.facts.trained_texts import ANALOGIES, BLANKS, SENSES, TOPICS
from bertkit.finetuning.explore.features import predict_labels
from bertkit.inside.look.heads import LinkedHead, catalogue, link
from bertkit.inside.look.reading import Reading, read
from bertkit.inside.senses.senses import SenseScores, sense_scores, use_vectors
from bertkit.inside.senses.uses import Use
from bertkit.inside.static.vectors import StaticVectors

facts = Facts()
HAT = "Bert notices the hat, but chooses not to engage Ernie since he knows it'll lead to some ridiculous stuff."
STREET = "The animal didn't cross the street because it was too tired."
STORE = "I went to the store."
CLOZE = "The dog from down the street ran up to me and [MASK]."


@facts(
    "M23",
    "D338, D474-510",
    "the whole text at once: what is added at the end changes every vector before it; nothing is generated",
)
def read_again(_: Vocabularies) -> Outcome:
    short, longer = bundled().embed(["They walked to the bank", "They walked to the bank of the river"], pooling="none")
    shared = len(short) - 1  # all but the last [SEP]
    cosines = _cosines(np.asarray(short)[:shared], np.asarray(longer)[:shared])
    try:
        bundled().write("The dog ran")
        refused = "it generates"
    except RequestError as error:
        refused = str(error)
    measured = f"cosines {cosines.min():.2f} to {cosines.max():.2f}; {refused}"
    return holds("all below 0.995; write() is refused", measured, cosines.max() < 0.995 and "cannot write" in refused)


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: np.ndarray = (one * other).sum(axis=1) / lengths
    return cosines


@facts(
    "F11",
    "E856",
    "a logistic regression on the model's vectors learns four subjects from 24 sentences; BERT stays as it is",
)
def logistic_regression(_: Vocabularies) -> Outcome:
    model = bundled().model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train = [text for texts in TOPICS.values() for text in texts[:6]]
    dev = [text for texts in TOPICS.values() for text in texts[6:]]
    subject = np.repeat(np.arange(len(TOPICS)), 6)
    right = float((predict_labels(bundled().embed(train), subject, bundled().embed(dev)) == subject).mean())
    same = all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    measured = f"{right:.0%} of {len(dev)} new sentences; weights unchanged: {same}"
    return holds("over 85 %; guessing gives 25 %", measured, right > 0.85 and same)


def by_trace(reading: Reading, found: LinkedHead, source: str, target: str) -> float:
    """The weight that a listed head gives, read from the model's trace: from one token to one token."""
    at, to = reading.tokens.index(source), reading.tokens.index(target)
    return float(bundled().trace(reading.text).layers[found.layer - 1].weights[found.head - 1, at, to])


@facts(
    "I3",
    "D547-560, D699, E345",
    '`heads --link`: some head links "stuff" to "ridiculous", "it" to the animal more than to the street; "he" not to '
    "Bert alone, but to Ernie as well",
)
def linking_heads(_: Vocabularies) -> Outcome:
    hat, street = read(bundled(), HAT), read(bundled(), STREET)
    pairs = ((hat, "stuff", "ridiculous"), (street, "it", "animal"), (street, "it", "street"), (hat, "he", "bert"))
    best = [link(reading, source, target)[0] for reading, source, target in pairs]
    off = max(abs(by_trace(pair[0], one, *pair[1:]) - one.weight) for pair, one in zip(pairs, best, strict=True))
    ernie = link(hat, "he", "Ernie")[0].weight
    stuff, animal, road, bert = (one.weight for one in best)
    shown = ", ".join(
        f"{s}-{t} {one.weight:.2f} ({one.layer}-{one.head})" for (_r, s, t), one in zip(pairs, best, strict=True)
    )
    right = stuff > 0.5 and animal > 0.2 and animal > 1.5 * road and min(bert, ernie) > 0.15 and off < 1e-5
    return holds("over 0.5; over 0.2 and 1.5 x street; both names over 0.15", f"{shown}, he-ernie {ernie:.2f}", right)


@facts("I4b", "E427", 'one head of the bundled model looks at the next word, as from "the" to "store"')
def next_word_head(_: Vocabularies) -> Outcome:
    heads = catalogue([read(bundled(), text) for text in (HAT, STREET, STORE)])
    best = max(heads, key=lambda head: head.next)
    linked = {(one.layer, one.head): one.weight for one in link(read(bundled(), STORE), "the", "store")}
    weight = linked[best.layer, best.head]
    measured = (
        f"head {best.layer}-{best.head}, called {best.kind}: {best.next:.0%} to the next token, the-store {weight:.2f}"
    )
    return holds("next; over 80 %, over 0.8", measured, best.kind == "next" and best.next > 0.8 and weight > 0.8)


@cache
def senses(word: str, layer: int) -> SenseScores:
    """The uses of a word in its two senses, always at the same place of the sentence."""
    uses = [
        Use(f"The {word} {rest}.", 4, 4 + len(word), "facts", sense)
        for sense, rests in SENSES[word].items()
        for rest in rests
    ]
    found = sense_scores(use_vectors(bundled(), uses, layer=layer), uses)
    assert found is not None  # every use is labeled
    return found


@facts(
    "I7",
    "E126, E197",
    "two senses of bank, party, cell: the nearest other use has the same sense; by the input embedding, half do",
)
def senses_apart(_: Vocabularies) -> Outcome:
    last, first = ({word: senses(word, layer) for word in SENSES} for layer in (-1, 0))
    measured = ", ".join(
        f"{word} {found.contextual:.0%} (silhouette {found.silhouette:.2f}; layer 0 {first[word].contextual:.0%})"
        for word, found in last.items()
    )
    apart = all(found.contextual > 0.8 and (found.silhouette or 0) > 0.3 for found in last.values())
    return holds(
        "over 80 %, silhouette over 0.3; layer 0 under 60 %",
        measured,
        apart and all(found.contextual < 0.6 for found in first.values()),
    )


@facts(
    "I8",
    "A29, C84",
    "sums of the bundled model's input embeddings answer most of 18 questions such as king - man + woman: queen",
)
def arithmetic(_: Vocabularies) -> Outcome:
    vocab, rows = bundled().tokenizer.vocab, bundled().model.state_dict()["encoder.embeddings.word.weight"].numpy()
    vectors = StaticVectors(tuple(sorted(vocab, key=vocab.__getitem__)), rows)
    said = {question: vectors.arithmetic(question, top=1)[0].word for question in ANALOGIES}
    right = [question for question, answer in ANALOGIES.items() if said[question] == answer]
    wrong = ", ".join(f"{question} = {said[question]}" for question in ANALOGIES if question not in right)
    measured = f"{len(right)} of {len(ANALOGIES)}; wrong: {wrong}"
    return holds("12 or more, queen among them", measured, len(right) >= 12 and "king - man + woman" in right)


@facts(
    "I12", "A12, C40", "cloze: a word that fits the whole sentence is among the first five, in most of ten sentences"
)
def cloze(_: Vocabularies) -> Outcome:
    fits = {text: {each.word for each in bundled().fill(text, top=5)} & set(words) for text, words in BLANKS.items()}
    found = sum(map(bool, fits.values()))
    dog = bundled().fill(CLOZE, top=1)[0]
    measured = f'{found} of {len(BLANKS)}; "... the dog ran up to me and [MASK]." gets {dog.word} {dog.probability:.2f}'
    return holds("7 or more", measured, found >= 7)


@facts(
    "I12b",
    "A12, C40",
    "the blank of 'The dog from down the street ran up to me and ___' looks more at dog than at street, on average",
)
def cloze_looks(_: Vocabularies) -> Outcome:
    trace = bundled().trace(CLOZE)
    blank, dog, street = (trace.tokens.index(token) for token in ("[MASK]", "dog", "street"))
    weights = torch.stack([layer.weights[:, blank] for layer in trace.layers])
    at_dog, at_street = weights[..., dog], weights[..., street]
    ratio = (at_dog.mean() / at_street.mean()).item()
    share = (at_dog > at_street).float().mean().item()
    measured = f"{at_dog.mean():.3f} and {at_street.mean():.3f}, {ratio:.2f} x; more in {share:.0%} of the heads"
    return holds("1.1 x or more", measured, ratio >= 1.1)
