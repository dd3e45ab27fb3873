"""Facts about trained models, measured on the bundled model (`bertkit.load()`).

It is small, and shows less than the documents say of BERT. Each claim states what it does, with a margin; a model with
random weights fails all of them.
"""

from functools import cache

import numpy as np
import torch

from bertkit.errors import RequestError
from bertkit.facts.fact import Facts, Outcome, holds
from bertkit.facts.setup import bundled
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
    "M23", "D338, D474-510", "the whole text is read at once: words at the end change all vectors; nothing is generated"
)
def whole_text_at_once() -> Outcome:
    short, longer = bundled().embed(["They walked to the bank", "They walked to the bank of the river"], pooling="none")
    shared = len(short) - 1  # without the last [SEP]
    cosines = _cosines(np.asarray(short)[:shared], np.asarray(longer)[:shared])
    try:
        bundled().write("The dog ran")
        message = "it generates"
    except RequestError as error:
        message = str(error)
    measured = f"cosines {cosines.min():.2f} to {cosines.max():.2f}; {message}"
    ok = cosines.max() < 0.995 and "cannot write" in message
    return holds("all below 0.995; write() is refused", measured, ok)


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: np.ndarray = (one * other).sum(axis=1) / lengths
    return cosines


@facts("F11", "E856", "a logistic regression on the vectors learns four topics from 24 sentences; BERT is frozen")
def logistic_regression() -> Outcome:
    model = bundled().model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train = [text for texts in TOPICS.values() for text in texts[:6]]
    dev = [text for texts in TOPICS.values() for text in texts[6:]]
    labels = np.repeat(np.arange(len(TOPICS)), 6)
    accuracy = float((predict_labels(bundled().embed(train), labels, bundled().embed(dev)) == labels).mean())
    same = all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    measured = f"{accuracy:.0%} of {len(dev)} new sentences; weights unchanged: {same}"
    return holds("over 85 %; chance is 25 %", measured, accuracy > 0.85 and same)


def by_trace(reading: Reading, head: LinkedHead, source: str, target: str) -> float:
    """The weight of a head from one token to another, from the model's trace."""
    row, column = reading.tokens.index(source), reading.tokens.index(target)
    return float(bundled().trace(reading.text).layers[head.layer - 1].weights[head.head - 1, row, column])


@facts(
    "I3",
    "D547-560, D699, E345",
    '`heads --from-to`: a head links "stuff" to "ridiculous", "it" to the animal more than to the street; "he" to '
    "Bert, but also to Ernie",
)
def linking_heads() -> Outcome:
    hat, street = read(bundled(), HAT), read(bundled(), STREET)
    pairs = ((hat, "stuff", "ridiculous"), (street, "it", "animal"), (street, "it", "street"), (hat, "he", "bert"))
    best = [link(reading, source, target)[0] for reading, source, target in pairs]
    off = max(abs(by_trace(pair[0], head, *pair[1:]) - head.weight) for pair, head in zip(pairs, best, strict=True))
    ernie = link(hat, "he", "Ernie")[0].weight
    stuff, animal, road, bert = (head.weight for head in best)
    shown = ", ".join(f"{s}-{t} {h.weight:.2f} ({h.name})" for (_, s, t), h in zip(pairs, best, strict=True))
    ok = stuff > 0.5 and animal > 0.2 and animal > 1.5 * road and min(bert, ernie) > 0.15 and off < 1e-5
    return holds("over 0.5; over 0.2 and 1.5 x street; both names over 0.15", f"{shown}, he-ernie {ernie:.2f}", ok)


@facts("I4b", "E427", 'one head of the bundled model attends to the next word, as from "the" to "store"')
def next_word_head() -> Outcome:
    heads = catalogue([read(bundled(), text) for text in (HAT, STREET, STORE)])
    best = max(heads, key=lambda head: head.next)
    weights = {head.name: head.weight for head in link(read(bundled(), STORE), "the", "store")}
    weight = weights[best.name]
    measured = f"head {best.name}, kind {best.kind}: {best.next:.0%} to the next token, the-store {weight:.2f}"
    return holds("next; over 80 %, over 0.8", measured, best.kind == "next" and best.next > 0.8 and weight > 0.8)


@cache
def senses(word: str, layer: int) -> SenseScores:
    """The scores of a word's two senses; the word is always at the same position of the sentence."""
    uses = [
        Use(f"The {word} {rest}.", 4, 4 + len(word), "facts", sense)
        for sense, rests in SENSES[word].items()
        for rest in rests
    ]
    scores = sense_scores(use_vectors(bundled(), uses, layer=layer), uses)
    assert scores is not None  # every use is labeled
    return scores


@facts(
    "I7", "E126, E197", "bank, party, cell: the nearest other use has the same sense; by the input embedding, half do"
)
def senses_apart() -> Outcome:
    last, first = ({word: senses(word, layer) for word in SENSES} for layer in (-1, 0))
    measured = ", ".join(
        f"{word} {scores.contextual:.0%} (silhouette {scores.silhouette:.2f}; layer 0 {first[word].contextual:.0%})"
        for word, scores in last.items()
    )
    separated = all(scores.contextual > 0.8 and (scores.silhouette or 0) > 0.3 for scores in last.values())
    ok = separated and all(scores.contextual < 0.6 for scores in first.values())
    return holds("over 80 %, silhouette over 0.3; layer 0 under 60 %", measured, ok)


@facts("I8", "A29, C84", "input embeddings solve most of 18 analogies such as king - man + woman = queen")
def arithmetic() -> Outcome:
    vocab, rows = bundled().tokenizer.vocab, bundled().model.state_dict()["encoder.embeddings.word.weight"].numpy()
    vectors = StaticVectors(tuple(sorted(vocab, key=vocab.__getitem__)), rows)
    nearest = {expression: vectors.arithmetic(expression, top=1)[0].word for expression in ANALOGIES}
    wrong = {expression: word for expression, word in nearest.items() if word != ANALOGIES[expression]}
    solved = len(ANALOGIES) - len(wrong)
    measured = f"{solved} of {len(ANALOGIES)}; wrong: {', '.join(f'{e} = {word}' for e, word in wrong.items())}"
    return holds("12 or more, queen among them", measured, solved >= 12 and "king - man + woman" not in wrong)


@facts("I12", "A12, C40", "cloze: a word that fits the whole sentence is among the top five, in most of ten sentences")
def cloze() -> Outcome:
    predicted = {text: {filled.word for filled in bundled().fill(text, top=5)} for text in BLANKS}
    fitting = sum(bool(predicted[text] & set(words)) for text, words in BLANKS.items())
    dog = bundled().fill(CLOZE, top=1)[0]
    measured = f'{fitting} of {len(BLANKS)}; "... ran up to me and [MASK]." gets {dog.word} {dog.probability:.2f}'
    return holds("7 or more", measured, fitting >= 7)


@facts("I12b", "A12, C40", 'the [MASK] of "The dog from down the street ..." attends more to dog than to street')
def cloze_attention() -> Outcome:
    trace = bundled().trace(CLOZE)
    mask, dog, street = (trace.tokens.index(token) for token in ("[MASK]", "dog", "street"))
    weights = torch.stack([layer.weights[:, mask] for layer in trace.layers])
    to_dog, to_street = weights[..., dog], weights[..., street]
    ratio = (to_dog.mean() / to_street.mean()).item()
    share = (to_dog > to_street).float().mean().item()
    measured = f"{to_dog.mean():.3f} and {to_street.mean():.3f}, {ratio:.2f} x; more in {share:.0%} of the heads"
    return holds("1.1 x or more", measured, ratio >= 1.1)
