"""Shares of words: they add up, they equal a slow twin's, and they find the words that count."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from topic_models import topic_classifier

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.facts.topics import topic_examples
from bertkit.inside.attribution.attribution import (
    MIN_DIFFERENCE,
    Request,
    WhySettings,
    find_target,
    from_sums,
    integrate,
    why,
)
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import ROBERTA_TOKENS
from bertkit.text.tokenizer_kinds.byte_level_bpe import byte_level_backend

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXT = "a cab up a hill."
TASKS = {
    "classify": ({"name": "classify"}, "classify", ("bad", "good", "so")),
    "multilabel": ({"name": "multilabel"}, "classify", ("name", "place")),
    "regress": ({"name": "regress", "center": 50.0, "spread": 10.0}, "classify", ("LABEL_0",)),
    "tag": ({"name": "tag"}, "tag", ("O", "B-LOC", "B-PER")),
    "answer": ({"name": "answer"}, "answer", ()),
}
FAMILIES = ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"]


@pytest.fixture(scope="module")
def tasked(tiny_bert):
    """`tasked("tag")`: a random model with the head of a task."""

    def make(task: str, family: str = "bert"):
        saved, head, labels = TASKS[task]
        outputs = {head: len(labels) or None}
        made = tiny_bert(family, heads=())
        model = new_model(made.model.config, outputs, seed=1).eval()
        return bertkit.Bert(replace(made.checkpoint, model=model, task=saved, labels=labels))

    return make


def asked(task: str) -> tuple[str, ...]:
    return ("where is it?", TEXT) if task == "answer" else (TEXT,)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_forward_from_sums_is_the_models_own(tiny_bert, family):
    bert = tiny_bert(family)
    batch = Batch.pack([[2, 5, 6, 7, 3], [2, 8, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            from_sums(bert.model, bert.model.encoder.embeddings.sum(batch), batch), bert.model(batch)
        )


@pytest.mark.parametrize("task", TASKS)
def test_shares_add_up_to_the_difference(tasked, task):
    found = why(tasked(task), *asked(task))
    assert found.gap < 0.01
    assert found.complete
    total = sum(each.share for each in found.words)
    assert total == pytest.approx(found.score - found.baseline_score, rel=0.0101, abs=MIN_DIFFERENCE)
    assert abs(found.score - found.baseline_score) > 10 * MIN_DIFFERENCE, "there is something to explain"
    assert all(each.share == pytest.approx(sum(share for _, share in each.pieces)) for each in found.words)


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_words_are_explained_in_every_family(tiny_bert, family):
    found = why(tiny_bert(family), "a cab up [MASK] hill", target="b")
    assert found.complete, found.gap
    assert found.target == "the word 'b' for the blank"
    blank = next(each for each in found.words if each.word == "[MASK]")
    assert blank.share == 0, "a blank is the same at both ends"


def byte_level_bert(head: str, outputs: int | None) -> bertkit.Bert:
    """A tiny RoBERTa over bytes, two of them joined: a space and a."""
    pieces = [*asdict(ROBERTA_TOKENS).values(), *sorted(ByteLevel.alphabet()), "\u0120a"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = byte_level_backend(vocab, [("\u0120", "a")], ROBERTA_TOKENS, add_prefix_space=False)
    config = family_config("roberta", "tiny", vocab_size=len(pieces), max_length=64, init_std=0.3)
    model = new_model(config, {head: outputs}, seed=1).eval()
    tokenizer = Tokenizer(backend, ROBERTA_TOKENS)
    return bertkit.Bert(
        Checkpoint(model=model, tokenizer=tokenizer, max_length=64, labels=("O", "B-X")[: outputs or 0])
    )


def test_byte_level_pieces_are_named_by_their_characters():
    bert = byte_level_bert("masked_word", None)
    with torch.no_grad():
        bert.model.heads["masked_word"].decoder.bias[bert.tokenizer.vocab["\u0120a"]] = 99  # what it fills
    found = why(bert, "it is<mask> é a")
    assert found.target == "the word 'a' for the blank"
    pieces = [piece for each in found.words for piece, _ in each.pieces]
    assert pieces == ["i", "t", "\u0120", "i", "s", "<mask>", "\u0120", "é", "é", "a"]
    tagged = why(byte_level_bert("tag", 2), "it is")
    assert "".join(piece for each in tagged.words for piece, _ in each.pieces).replace("\u0120", " ").split() == [
        "it",
        "is",
    ]


@pytest.mark.parametrize("baseline", ["mask", "pad", "zero"])
def test_a_slow_twin_agrees(tasked, baseline):
    """One point after the other, in the middle of 400 steps, the word table itself moved."""
    bert = tasked("classify")
    found = why(bert, TEXT, target="good", settings=WhySettings(baseline=baseline, steps=64))
    ids = torch.tensor(bert.tokenizer.encode(TEXT).ids)
    table = bert.model.encoder.embeddings.word.weight.detach()
    start = {"mask": table[bert.tokenizer.mask_id], "pad": table[bert.tokenizer.pad_id], "zero": 0 * table[0]}[baseline]
    way = table[ids] - start
    way[[0, -1]] = 0
    total = torch.zeros_like(way)
    batch = Batch(ids, torch.zeros_like(ids), (len(ids),))
    for point in (np.arange(400) + 0.5) / 400:
        words = (table[ids] - (1 - float(point)) * way).requires_grad_()
        rest = bert.model.encoder.embeddings.sum(batch).detach() - table[ids]
        logit = bert.model.read("classify", from_sums(bert.model, words + rest, batch), batch)[0, 1]
        total += torch.autograd.grad(logit, words)[0] / 400
    twin = (way * total).sum(dim=-1)[1:-1]
    pieces = [share for each in found.words for _, share in each.pieces]
    torch.testing.assert_close(torch.tensor(pieces), twin, atol=2e-3, rtol=1e-2)


def test_one_gradient_is_a_finite_difference(tasked):
    bert = tasked("classify")
    found = why(bert, TEXT, target="so", settings=WhySettings(method="gradient"))
    assert found.gap is None
    assert not found.complete
    ids, table = bert.tokenizer.encode(TEXT).ids, bert.model.encoder.embeddings.word.weight
    batch = Batch.pack([ids])
    with torch.no_grad():
        summed = bert.model.encoder.embeddings.sum(batch)
        scores = []
        for step in (1e-2, -1e-2):
            moved = summed.clone()
            moved[1] += step * table[ids[1]]
            scores.append(float(bert.model.read("classify", from_sums(bert.model, moved, batch), batch)[0, 2]))
    assert found.words[0].share == pytest.approx((scores[0] - scores[1]) / 2e-2, rel=2e-2, abs=1e-3)


def test_steps_are_doubled_until_the_shares_add_up(tasked):
    bert = tasked("classify")
    found = why(bert, TEXT, target="good", settings=WhySettings(steps=1))
    assert found.steps > 1
    assert found.complete


def test_a_gap_that_stays_is_said():
    class Jagged:
        """Shares that never add up, whatever the steps."""

        def shares(self, points, weights):
            return torch.tensor([1.0, 2.0])

    shares, steps, gap = integrate(Jagged(), 6.0, 16)
    assert (steps, gap, shares.tolist()) == (1024, 0.5, [1.0, 2.0])
    found = why(topic_classifier(), "t0w1 c2")
    assert "only with a gap of 50.0%, so treat them with care" in str(replace(found, gap=0.5))


def test_words_are_those_of_the_text_and_pieces_are_theirs(tasked):
    found = why(tasked("classify"), " Cab,\tup  é", "hill")
    texts = (" Cab,\tup  é", "hill")
    assert [each.word for each in found.words] == ["Cab", ",", "up", "é", "hill"]
    assert all(texts[each.part][each.start : each.end] == each.word for each in found.words)
    assert [piece for piece, _ in found.words[0].pieces] == ["c", "##a", "##b"]
    assert found.words[4].part == 1


def test_regression_is_in_the_units_of_the_data(tasked):
    bert = tasked("regress")
    assert why(bert, TEXT).score == pytest.approx(bert.classify(TEXT).value, rel=1e-4)


@torch.no_grad()
def test_the_scores_are_the_models_own(tasked):
    bert = tasked("tag")
    found = why(bert, TEXT, word="hill", target="B-PER")
    assert found.target == "the tag 'B-PER' of 'hill'"
    tokens = find_target(bert, Request(TEXT)).tokens
    place = list(tokens.words).index(4)
    assert found.score == pytest.approx(float(bert.model.logits(Batch.pack([tokens.ids]), "tag")[place, 2]), rel=1e-4)
    bert = tasked("answer")
    found = why(bert, "where?", TEXT, target="up a hill")
    ids = bert.tokenizer.encode("where?", TEXT)
    logits = bert.model.logits(Batch.pack([ids.ids], [ids.segments]), "answer")
    first = len(ids.ids) - 1 - 12 + 4  # of a c ##a ##b u ##p a h ##i ##l ##l . the fifth
    best = float(logits[first, 0] + logits[first + 6, 1])
    assert found.score == pytest.approx(best, rel=1e-4)
    assert why(bert, "where?", TEXT).target == f"the answer '{bert.answer('where?', TEXT).text}'"


def test_a_cut_text_is_explained_as_far_as_it_is_read(tasked):
    found = why(tasked("classify"), "a " * 100)
    assert found.cut_from == 102
    assert len(found.words) == 62
    assert found.complete


REFUSED = [
    ("classify", (TEXT,), {"target": "worse"}, "unknown label 'worse'; choose from: bad, good, so"),
    ("regress", (TEXT,), {"target": "good"}, "does not go with a model that gives a number"),
    ("tag", ("",), {}, "no word to tag"),
    ("tag", (TEXT,), {"word": "dog"}, "no word 'dog'; its words are: a, cab, up, hill, ."),
    ("tag", (TEXT, "b"), {}, "leave out the pair"),
    ("tag", ("a " * 100,), {}, "windows; only one can be explained"),
    ("answer", (TEXT,), {}, "needs the passage"),
    ("answer", (TEXT, "a"), {"target": "dog"}, "the passage has no 'dog'"),
    ("answer", ("a " * 40, "a"), {}, "shorten it"),
]


@pytest.mark.parametrize(("task", "texts", "options", "sentence"), REFUSED, ids=[row[3][:24] for row in REFUSED])
def test_what_cannot_be_explained_is_refused(tasked, task, texts, options, sentence):
    with pytest.raises(RequestError, match=sentence.replace("(", r"\(").replace("?", r"\?")):
        why(tasked(task), *texts, **options)


def test_a_filling_model_needs_a_blank_and_a_word_of_one_piece(bert):
    with pytest.raises(RequestError, match="no blank to explain: write \\[MASK\\]"):
        why(bert, TEXT)
    with pytest.raises(RequestError, match="not one piece"):
        why(bert, "a [MASK]", target="cab")
    with pytest.raises(RequestError, match="over the model's 64"):
        why(bert, "a " * 80 + "[MASK]")
    for settings in ({"method": "magic"}, {"baseline": "noise"}, {"steps": 0}):
        with pytest.raises(RequestError):
            WhySettings(**settings)


@pytest.mark.parametrize("text", ["", "   ", "\x00\x07", "\u202e\u200d"])
def test_an_empty_text_has_no_shares(tasked, text):
    found = why(tasked("classify"), text)
    assert found.gap < 0.01
    assert sum(abs(each.share) for each in found.words) == pytest.approx(abs(found.score - found.baseline_score), abs=1)
    assert str(found).startswith("Why the label ")


def test_the_words_of_a_topic_get_the_shares():
    """Taught texts: words of the topic speak for it, words that all topics share do not."""
    bert = topic_classifier()
    own, shared = [], []
    for example in topic_examples(30, seed=5):
        for each in why(bert, example.text, target=example.label).words:
            (own if each.word.startswith(f"t{example.label}") else shared).append(each.share)
    assert np.mean(own) > 5 * abs(np.mean(shared))


def test_hiding_the_first_words_costs_more_than_hiding_others():
    """The deletion test; on real data it is benchmarks/deletion.py."""
    bert, draw = topic_classifier(), np.random.default_rng(0)
    falls = {"top": [], "random": []}
    for example in topic_examples(40, seed=6):
        before = bert.classify(example.text).probabilities
        label = max(before, key=before.__getitem__)
        words = sorted(why(bert, example.text, target=label).words, key=lambda each: -each.share)
        for name, order in (("top", range(8)), ("random", draw.permutation(8))):
            text = list(example.text)
            for each in sorted((words[n] for n in list(order)[:3]), key=lambda word: -word.start):
                text[each.start : each.end] = "[MASK]"
            falls[name].append(before[label] - bert.classify("".join(text)).probabilities[label])
    assert np.mean(falls["top"]) > 1.5 * np.mean(falls["random"]) > 0
