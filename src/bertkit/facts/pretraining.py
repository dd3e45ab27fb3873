"""Facts about pre-training: masking, pairs of texts, and losses.

Shares are measured over a few hundred thousand tokens here, and over a million in benchmarks. Other families are in
`families`; P22 and P24, which need fine-tuning, are in `finetuning`.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.facts.fact import Facts, Outcome, at_most, equal, holds
from bertkit.facts.random_text import equal_sentences, random_text
from bertkit.facts.setup import CPU, text_file
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel, new_model
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.examples.masking import Packed, n_gram_sizes, n_gram_starts
from bertkit.pretraining.examples.random import Ints, draw
from bertkit.pretraining.examples.show_masks import Shares, lines, masked_examples, originals, shares
from bertkit.pretraining.examples.spans import Ranges
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary
from bertkit.text.wordpiece import SPECIALS

facts = Facts()
mistakes = Facts()
PAIR_HEADS: dict[str, int | None] = {"masked_word": None, "next_sentence": None}


def examples(number: int = 0, **settings: Any) -> Examples:
    """One block of examples of the random text."""
    return ExampleSource(random_text(), DataSettings(**settings)).block(number)


def masked(**settings: Any) -> Shares:
    """The shares of masked, replaced and kept tokens in 4,000 sequences of up to 128 tokens."""
    source = ExampleSource(random_text(), DataSettings(block=4000, **settings))
    return shares(source.block(0), source.ids)


def pair_ranges(objective: str, pairs: int = 40_000) -> Ranges:
    """The ranges of the texts of many pairs."""
    source = ExampleSource(random_text(), DataSettings(objective=("mlm", objective), block=pairs))
    return source.ranges(0)


def small_model(heads: dict[str, int | None], family: str = "bert") -> BertModel:
    """A tiny model over the vocabulary of the random text."""
    return new_model(family_config(family, "tiny", vocab_size=random_text().tokenizer.size, init_std=0.2), heads).eval()


def word_numbers(data: Examples) -> Ints:
    """T: the number of each token's word; a word cut at the start of a sequence starts there."""
    ids = originals(data)
    starts = random_text().begins_word(ids)
    starts[1:] |= ids[:-1] < len(SPECIALS)
    return np.cumsum(starts)


def words_are_whole(data: Examples) -> bool:
    """Whether of every word all tokens are chosen, or none."""
    words, flags = word_numbers(data), np.zeros(len(data.ids), dtype=np.int64)
    flags[data.chosen] = 1
    chosen, sizes = np.bincount(words, flags), np.bincount(words)
    return bool(((chosen == 0) | (chosen == sizes)).all())


@facts("P1", "D160, D776-801", "only raw text is needed; the report counts words, sentences and unique words")
def raw_text() -> Outcome:
    with text_file("The cat sat. The cat ran away.\n\nA dog sat.\n" * 3) as path:
        corpus = make_vocabulary([path], VocabularySettings(size=40)).report["corpus"]
    names = ("words", "sentences", "mean_words_per_sentence", "median_words_per_sentence", "unique_words")
    # Three times 3, 4 and 3 words; unique after normalization: the, cat, sat, ran, away, a, dog, and the full stop.
    return equal([30, 9, 3.33, 3, 8], [corpus[name] for name in names])


@facts("P2", "D817-862, E799-805, B56", "15 % chosen; 12 % [MASK], 1.5 % random, 1.5 % kept; never a special token")
def fifteen_percent() -> Outcome:
    share = masked()
    percent = [100 * share.chosen * part for part in (1, share.masked, share.replaced, share.kept)]
    gaps = [abs(value - expected) for value, expected in zip(percent, (15, 12, 1.5, 1.5), strict=True)]
    special = bool((examples(block=1000).targets < len(SPECIALS)).any())
    measured = f"{', '.join(f'{value:.2f}' for value in percent)} % of {share.tokens:,}"
    return holds("15, 12, 1.5, 1.5 ± 0.1 %", measured, max(gaps) <= 0.1 and not special)


@facts("P2b", "D817-862", "masks are new in every epoch; with static=true they are the same in all")
def dynamic_or_static() -> Outcome:
    def same(static: bool) -> float:
        size = ExampleSource(random_text(), DataSettings()).examples_per_epoch
        source = ExampleSource(random_text(), DataSettings(static=static))
        epochs = (source.examples(epoch * size + np.arange(size)) for epoch in (0, 1))
        first, second = ({row.tobytes() for row in np.split(data.ids, np.cumsum(data.lengths)[:-1])} for data in epochs)
        return len(first & second) / len(first)

    return equal(["0%", "100%"], [f"{same(static):.0%}" for static in (False, True)])


@facts("P3", "B71, D826", "only chosen positions have a loss; a head that runs only there gives the same loss")
def chosen_only() -> Outcome:
    model, (batch, targets) = small_model({"masked_word": None}), to_inputs(examples(block=4), CPU)
    labels = torch.full_like(batch.ids, IGNORE).index_put((targets.chosen,), targets.words)
    with torch.enable_grad():
        logits = model.logits(batch, "masked_word").detach().requires_grad_()
        dense = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
        [gradient] = torch.autograd.grad(dense, logits)
    elsewhere = gradient[labels == IGNORE].abs().max().item()
    sparse = ForPretraining(model, objective_rows(["mlm"]))(batch, targets)["mlm"][0]
    gap = abs(sparse.item() / dense.item() - 1)
    return holds("gradient 0 elsewhere, ≤ 1e-5", f"{elsewhere:g}, {gap:.0e}", elsewhere == 0 and gap <= 1e-5)


@facts("P4", "D864-885", "pairs of lines, text and corrupted text, differ only at the chosen positions")
def lines_in_pairs() -> Outcome:
    sequences, _ = masked_examples(random_text(), DataSettings(), 20)
    uneven = [(a, b) for one in sequences for a, b in lines(one) if len(a.split()) != len(b.split())]
    changed = [{n for n, (a, b) in enumerate(zip(s.text, s.shown, strict=True)) if a != b} for s in sequences]
    only_chosen = all(change <= set(one.asked) for change, one in zip(changed, sequences, strict=True))
    return equal((True, True, []), (only_chosen, any(changed), uneven))


@facts("P5", "B78, D889, E818-820", "half of the second texts follow the first, half are from another document")
def next_sentences() -> Outcome:
    pairs = pair_ranges("nsp")
    assert pairs.labels is not None
    a, b = (random_text().document_of(pairs.starts[:, part]) for part in (0, 1))
    follows = pairs.starts[:, 1] == pairs.starts[:, 0] + pairs.lengths[:, 0]
    correct = np.where(pairs.labels == 1, a != b, (a == b) & follows)
    share = 100 * float(pairs.labels.mean())
    measured = f"{share:.2f} %, {correct.mean():.0%} correct"
    return holds("50 ± 0.5 %, 100% correct", measured, abs(share - 50) <= 0.5 and bool(correct.all()))


@facts("P6", "D895-901", "texts are spans, not sentences, of at most 512 tokens together; one pair in ten is shorter")
def spans_of_text() -> Outcome:
    text = equal_sentences(documents=4, sentences=50_900, tokens=1)  # 100 spans of 509 tokens in each document
    pairs = ExampleSource(text, DataSettings(objective=("mlm", "nsp"), length=512, block=20_000)).ranges(0)
    assert pairs.labels is not None
    sizes = pairs.lengths.sum(axis=1)[pairs.labels == 0] + 3
    short = 100 * float((sizes < 512).mean())
    return holds("512, 10 ± 1 %", f"{sizes.max()}, {short:.1f} %", sizes.max() == 512 and abs(short - 10) <= 1)


@facts("P7", "D891, D421", "the next-sentence head is a classifier with two classes on the pooled [CLS]")
def reads_first() -> Outcome:
    model, batch = small_model(PAIR_HEADS), Batch.pack([[2, 7, 3, 8, 3]])
    hidden = model(batch)
    changes = []
    for row in (0, 1, 4):
        other = hidden.clone()
        other[row] += 1
        change = model.read("next_sentence", other, batch) - model.read("next_sentence", hidden, batch)
        changes.append(bool(change.any()))
    shape = tuple(model.read("next_sentence", hidden, batch).shape)
    return equal(((1, 2), [True, False, False]), (shape, changes))


@facts("P8", "D903-907", "one example, both losses: mean over words plus mean over pairs, in one batch or in two")
def both_tasks() -> Outcome:
    model = small_model(PAIR_HEADS)
    settings: dict[str, Any] = {"objective": ("mlm", "nsp"), "length": 64}
    source = ExampleSource(random_text(), DataSettings(**settings))
    batch, targets = to_inputs(source.examples(np.arange(8)), CPU)
    words = model.logits(batch, "masked_word")[targets.chosen]
    expected = F.cross_entropy(words, targets.words) + F.cross_entropy(
        model.logits(batch, "next_sentence"), targets.pairs
    )
    module = ForPretraining(model, objective_rows(["mlm", "nsp"]))
    halves = [module(*to_inputs(source.examples(first + np.arange(4)), CPU)) for first in (0, 4)]
    means = [sum(half[name][0] for half in halves) / sum(half[name][1] for half in halves) for name in ("mlm", "pair")]
    return at_most(1e-5, abs((float(means[0] + means[1]) / expected.item()) - 1), "relative difference")


@facts("P9", "E816", "100,000 sentences give 50,000 pairs if two fill a sequence; each epoch has new pairs")
def pairs_of_sentences() -> Outcome:
    text = equal_sentences(documents=1000, sentences=100, tokens=10)
    return equal(50_000, ExampleSource(text, DataSettings(objective=("mlm", "nsp"), length=23)).examples_per_epoch)


@facts("P10", "D934-942", "whole-word masking: all pieces of a word are chosen or none, and still 15 %")
def whole_words() -> Outcome:
    whole = words_are_whole(examples(masking="whole-word", block=1000))
    by_token = words_are_whole(examples(block=1000))
    share = 100 * masked(masking="whole-word").chosen
    measured = f"never split: {whole}, {share:.2f} %; with token masking: {by_token}"
    return holds("never split, 15 ± 0.1 %", measured, whole and not by_token and abs(share - 15) <= 0.1)


@facts("P11", "D944-946", "n-grams of 1, 2, 3 words as 1 : 1/2 : 1/3; still 15 %, and words are never split")
def n_grams() -> Outcome:
    sizes = np.bincount(n_gram_sizes(np.random.default_rng(0).random(200_000)), minlength=4)[1:] / 200_000
    whole = words_are_whole(examples(masking="n-gram", objective=("mlm", "nsp"), block=1000))
    share = 100 * masked(masking="n-gram").chosen
    gap = np.abs(sizes - np.array([6, 3, 2]) / 11).max()
    measured = f"{', '.join(f'{size:.3f}' for size in sizes)}; never split: {whole}; {share:.2f} %"
    return holds("0.545, 0.273, 0.182; never split; 15 %", measured, gap < 0.004 and whole and abs(share - 15) <= 0.2)


@facts("P11b", "D944-946", "an n-gram never crosses a [SEP]: a new one starts after each")
def n_grams_end() -> Outcome:
    data = examples(objective=("mlm", "nsp"), block=1000)
    ids = originals(data)
    text = ids >= len(SPECIALS)
    packed = Packed(text, text & random_text().begins_word(ids), np.concatenate(([0], np.cumsum(data.lengths))))
    starts = n_gram_starts(packed, draw(0, np.arange(len(data.lengths))))
    first = text[1:] & ~text[:-1]
    texts = 2 * len(data.lengths)
    return equal((texts, texts), (int(first.sum()), int(starts[1:][first].sum())))


@facts("P12", "D950-956", "without pairs: one text per sequence, and every token once per epoch")
def no_pairs() -> Outcome:
    text, source = random_text(), ExampleSource(random_text(), DataSettings())
    size = source.examples_per_epoch
    epoch = source.examples(np.arange(size))
    tokens = int(epoch.lengths.sum()) - 2 * size
    return equal((None, 0, len(text.ids)), (epoch.pair_labels, int(epoch.segments.max()), tokens))


@facts("P13", "D958-962", "sentence order: always neighbors in one document, swapped half of the time")
def sentence_orders() -> Outcome:
    pairs = pair_ranges("sop")
    assert pairs.labels is not None
    rows = np.arange(len(pairs.labels))
    first, second = pairs.labels, 1 - pairs.labels  # the part that comes first in the document, and the other
    neighbors = pairs.starts[rows, first] + pairs.lengths[rows, first] == pairs.starts[rows, second]
    a, b = (random_text().document_of(pairs.starts[:, part]) for part in (0, 1))
    share, correct = 100 * float(pairs.labels.mean()), bool((neighbors & (a == b)).all())
    return holds("50 ± 0.5 %, all neighbors", f"{share:.2f} %, {correct}", abs(share - 50) <= 0.5 and correct)


@facts("P21", "E843", "ERNIE: the words of a name are masked together")
def names_together() -> Outcome:
    text, source = random_text(), ExampleSource(random_text(), DataSettings(masking="entity", block=4000))
    data, ranges = source.block(0), source.ranges(0)
    flags = np.zeros(len(data.ids), dtype=np.bool_)
    flags[data.chosen] = True
    begins = np.cumsum(data.lengths) - data.lengths + 1  # after each [CLS]
    names = []
    for begin, start, length in zip(begins, ranges.starts[:, 0], ranges.lengths[:, 0], strict=True):
        first = np.searchsorted(text.entities[:, 1], start, side="right")
        last = np.searchsorted(text.entities[:, 0], start + length)
        spans = begin + np.clip(text.entities[first:last] - start, 0, length)  # of names cut by the sequence, the rest
        names += [flags[slice(*span)] for span in spans]
    whole = all(name.all() or not name.any() for name in names)
    share = float(np.mean([name.any() for name in names]))
    measured = f"{len(names):,} names, {share:.1%} of them masked, each whole: {whole}"
    return holds("each whole, 15 ± 1 %", measured, whole and abs(share - 0.15) <= 0.01)


@facts("P25", "D156", "the heads of pre-training are dropped: the report names what is dropped and what is new")
def heads_dropped() -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_checkpoint(Checkpoint(model=small_model(PAIR_HEADS), tokenizer=random_text().tokenizer), path)
        report = load_checkpoint(path, heads={"classify": 2}).report
    dropped = sorted({name.split(".")[1] for name in report.dropped})
    new = ["heads.classify.out.bias", "heads.classify.out.weight"]
    return equal((["predictions", "seq_relationship"], new), (dropped, sorted(report.new)))


@mistakes("!D855", "D855-860", "writes 80, 20 and 20 %, which is 120 %; it is 80, 10 and 10 of the chosen")
def eighty_ten_ten() -> Outcome:
    share = masked()
    parts = [f"{round(100 * part)}%" for part in (share.masked, share.replaced, share.kept)]
    return equal(["80%", "10%", "10%"], parts)


@mistakes("!B56", "B56", "says 15 % of the words are replaced by [MASK]; 15 % are chosen, 12 % replaced by it")
def twelve_percent() -> Outcome:
    share = masked()
    return equal(("15%", "12%"), (f"{share.chosen:.0%}", f"{share.chosen * share.masked:.0%}"))
