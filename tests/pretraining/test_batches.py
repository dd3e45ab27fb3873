"""The loader: pure blocks that cover every token, with the distributions that the objectives promise."""

import hashlib
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from memory_corpus import CLS, FIRST, MASK, SEP, UNK, MemoryCorpus, corpus_of, random_corpus

from bertkit.errors import RequestError
from bertkit.pretraining.examples import packing
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.packing import WINDOW
from bertkit.text.shards.reader import open_shards
from bertkit.text.shards.writer import write_shards

OBJECTIVES = [("mlm",), ("rtd",), ("rtd", "fill"), ("causal",), ("mlm", "nsp"), ("sop", "mlm")]
MASKINGS = ["token", "whole-word", "n-gram", "entity"]


def restored(examples: Examples) -> np.ndarray:
    """The ids as they were before the corruption."""
    ids = examples.ids.copy()
    ids[examples.chosen] = examples.targets
    return ids


def rows(examples: Examples) -> list[tuple]:
    """Every example on its own: original and corrupted ids, segments, chosen places, label."""
    found, chosen = [], np.zeros(len(examples.ids), dtype=np.bool_)
    chosen[examples.chosen] = True
    original, stops = restored(examples), np.cumsum(examples.lengths)
    for number, stop in enumerate(stops):
        here = slice(stop - examples.lengths[number], stop)
        label = None if examples.pair_labels is None else int(examples.pair_labels[number])
        arrays = (original[here], examples.ids[here], examples.segments[here], np.flatnonzero(chosen[here]))
        found.append((*(tuple(array.tolist()) for array in arrays), label))
    return found


def sequence(source: ExampleSource, start: int, count: int) -> list[tuple]:
    """Examples start .. start + count of the endless sequence."""
    return rows(source.examples(np.arange(start, start + count)))


def checksum(examples: Examples) -> str:
    arrays = [examples.ids, examples.segments, examples.lengths, examples.chosen, examples.targets]
    arrays += [] if examples.pair_labels is None else [examples.pair_labels]
    content = b"".join(array.astype("<i8").tobytes() for array in arrays)
    return hashlib.sha256(content + bytes([examples.epoch])).hexdigest()[:16]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks that are quick to pack, where it does not matter how full blocks are."""
    monkeypatch.setattr(packing, "MAX_CHUNK_EXAMPLES", 1 << 13)
    monkeypatch.setattr(packing, "MAX_CHUNK_BLOCKS", 128)


@pytest.fixture(scope="module")
def corpus() -> MemoryCorpus:
    return random_corpus(300, with_names=True)


@pytest.mark.parametrize("objective", OBJECTIVES, ids="+".join)
@pytest.mark.usefixtures("small_chunks")
def test_sequences_are_wired_and_fit(corpus, objective):
    source = ExampleSource(corpus, DataSettings(objective=objective, length=64, block=200))
    examples = source.block(0)
    assert examples.lengths.sum() == len(examples.ids) == len(examples.segments)
    assert len(examples.chosen) == len(examples.targets)
    assert (np.diff(examples.chosen) > 0).all()
    for original, _, segments, chosen, label in rows(examples):
        middle = [SEP] if source.settings.pairs else []
        special = [token for token in original if token < FIRST]
        assert special == [CLS, *middle, SEP]
        assert (original[0], original[-1]) == (CLS, SEP)
        assert 3 <= len(original) <= 64
        first = original.index(SEP) + 1
        assert segments == (0,) * first + (1,) * (len(original) - first)
        assert all(original[place] >= FIRST for place in chosen)
        assert bool(chosen) == ("causal" not in objective)
        assert (label in (0, 1)) == bool(middle)


def test_left_to_right_is_left_alone(corpus):
    examples = ExampleSource(corpus, DataSettings(objective=("causal",))).block(3)
    assert MASK not in examples.ids
    assert examples.ids.dtype == examples.targets.dtype


documents = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=6)


@given(documents, st.integers(3, 40), st.integers(1, 9), st.integers(0, 100))
@hypothesis_settings(max_examples=30)
def test_every_token_is_in_every_epoch_exactly_once(documents, length, block, seed):
    corpus = corpus_of(documents)
    source = ExampleSource(corpus, DataSettings(length=length, block=block, seed=seed))
    count = source.examples_per_epoch
    for epoch in (0, 1, 5):
        text = [row[0][1:-1] for row in sequence(source, epoch * count, count)]
        assert sorted(token for piece in text for token in piece) == corpus.ids.tolist()
        ends = corpus.sentence_starts[corpus.document_starts] + FIRST
        home = [set(np.searchsorted(ends, piece, side="right").tolist()) for piece in text]
        assert all(len(documents) == 1 for documents in home)  # never two documents in one sequence


@pytest.mark.parametrize(("objective", "least"), [(("mlm", "sop"), 0.93), (("mlm", "nsp"), 0.76)])
def test_how_much_of_the_corpus_pairs_cover(corpus, objective, least):
    """95 % and 80 % an epoch: short pairs leave out the rest of their span, and false neighbors the true ones."""
    source = ExampleSource(corpus, DataSettings(objective=objective))
    seen = np.unique(restored(source.examples(np.arange(source.examples_per_epoch))))
    assert least < (seen >= FIRST).sum() / len(corpus.ids) < 1


def test_epochs_differ_in_order_cuts_and_masks(corpus):
    source = ExampleSource(corpus, DataSettings(length=64))
    count = source.examples_per_epoch
    first, second = sequence(source, 0, count), sequence(source, count, count)
    assert [row[0] for row in first] != [row[0] for row in second]
    same = {row[0]: row for row in first}
    again = [row for row in second if row[0] in same]
    assert 0 < len(again) < 0.5 * count  # short documents are never cut; most other cuts moved
    assert sum(same[row[0]][3] == row[3] for row in again if len(row[0]) > 30) < 3  # but masks are fresh


@pytest.mark.parametrize("objective", [("mlm",), ("mlm", "nsp")], ids="+".join)
def test_static_epochs_differ_in_order_alone(corpus, objective):
    source = ExampleSource(corpus, DataSettings(static=True, objective=objective, masking="n-gram"))
    count = source.examples_per_epoch
    first, second = sequence(source, 0, count), sequence(source, count, count)
    assert first != second
    assert sorted(map(str, first)) == sorted(map(str, second))


@pytest.mark.parametrize("objective", [("mlm",), ("mlm", "nsp"), ("mlm", "sop")], ids="+".join)
@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.usefixtures("small_chunks")
def test_examples_do_not_depend_on_the_size_of_blocks(objective, masking):
    """Ranks, accumulation and batch sizes only deal the same examples out differently; blocks cross epochs."""
    corpus = random_corpus(6, with_names=True)
    for block in (2, 40):
        settings = DataSettings(objective=objective, masking=masking, length=64, block=block)
        source = ExampleSource(corpus, settings)
        for number in (0, 3, 10**6):
            index = source.packing.block(number)
            straight = [row for each in index for row in sequence(source, each, 1)]
            assert rows(source.block(number)) == straight
    same = [sequence(ExampleSource(corpus, replace(settings, block=block)), 40, 20) for block in (1, 64)]
    assert same[0] == same[1]


@pytest.mark.parametrize("objective", [("mlm",), ("mlm", "nsp"), ("mlm", "sop")], ids="+".join)
@pytest.mark.parametrize(("length", "block"), [(128, 64), (512, 64)])
def test_packed_every_example_of_the_epoch_exactly_once_and_blocks_over_99_percent_full(objective, length, block):
    """The stated property, on documents of log-normal length; padded one by one they would fill 60 to 85 %."""
    source = ExampleSource(random_corpus(8_000), DataSettings(objective=objective, length=length, block=block))
    blocks, count = source.packing, source.examples_per_epoch
    members = [blocks.block(number) for number in range(blocks.blocks)]
    assert np.array_equal(np.sort(np.concatenate(members)), np.arange(blocks.examples))
    assert blocks.examples > count  # so the first epoch is whole, each of its examples once
    full = np.array([source._lengths(index).sum() for index in members]) / (block * length)
    assert full.mean() > 0.99
    assert 0.985 < full.min() <= full.max() <= 1
    assert source._lengths(np.arange(count)).mean() / length < 0.9
    assert abs(source.blocks_in_epoch - source._lengths(np.arange(count)).sum() / (block * length)) < 0.02 * count


def test_blocks_can_be_made_in_any_order_and_know_their_epoch(corpus):
    source = ExampleSource(corpus, DataSettings(block=50, masking="whole-word"))
    backward = {number: checksum(source.block(number)) for number in reversed(range(20))}
    assert backward == {number: checksum(source.block(number)) for number in range(20)}
    assert len(set(backward.values())) == 20
    assert source.block(0).epoch == 0
    epochs = 10_000 / source.blocks_in_epoch
    assert source.block(10_000).epoch == pytest.approx(epochs, abs=WINDOW / source.blocks_in_epoch + 1)


def test_a_far_block_is_as_near_as_the_first(corpus):
    source = ExampleSource(corpus, DataSettings(block=16))
    examples = source.block(10**12)
    assert examples.epoch == pytest.approx(10**12 / source.blocks_in_epoch, rel=1e-9, abs=WINDOW)
    assert 0.98 < len(examples.ids) / (16 * 128) <= 1


def test_seeds_give_other_examples(corpus):
    sums = {checksum(ExampleSource(corpus, DataSettings(seed=seed)).block(0)) for seed in (0, 1, 2, 2**64 - 1)}
    assert len(sums) == 4


PINNED = {
    ("mlm", "token"): "8a21a07019a55fdf-8a4f66bb80b3dc78",
    ("mlm", "whole-word"): "da529b32f2b66f91-2fde5d257c65ac2e",
    ("mlm", "n-gram"): "a17f5efe58170f47-2020329d9b76c7d7",
    ("mlm", "entity"): "c2052a501cd28726-8a5cc7eda85a657d",
    ("rtd", "token"): "e584b56be7979f7a-c6b62e4e1058f21d",
    ("causal", "token"): "3d390dff61391084-3ce75153cf2d06a0",
    ("mlm+nsp", "token"): "53d7f90b391ca69d-5af832f0f08a728a",
    ("mlm+sop", "n-gram"): "32cbcbe56e8bf667-fc7e209824cfebd8",
}


def pinned(objective: str, masking: str) -> str:
    # Its own corpus, all arithmetic: numpy's distributions may change from one version to the next, this may not.
    corpus = corpus_of([[3 + number * at % 40 for at in range(1, 12)] for number in range(1, 90)])
    words = (np.arange(len(corpus.ids)) % 4 != 3).astype(np.uint8)
    names = np.arange(0, len(words) - 10, 40)[:, None] + [0, 5]
    corpus = MemoryCorpus(**{**vars(corpus), "words": words, "entities": names})
    settings = DataSettings(objective=tuple(objective.split("+")), masking=masking, length=64, block=100, seed=5)
    source = ExampleSource(corpus, settings)
    return "-".join(checksum(source.block(number)) for number in (0, 77))


@pytest.mark.parametrize("which", PINNED, ids="-".join)
def test_pinned_blocks(which):
    """If this changes, a run that an older version began goes on with other examples: say so in the changelog."""
    assert pinned(*which) == PINNED[which]


def test_another_process_makes_the_same_blocks():
    code = "from test_batches import pinned; print(pinned('mlm+nsp', 'n-gram'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == pinned("mlm+nsp", "n-gram")


def units_chosen_whole(corpus: MemoryCorpus, examples: Examples, starts: np.ndarray) -> bool:
    """Whether tokens that go on with a unit are chosen exactly when the token before them is."""
    original = restored(examples)
    chosen = np.zeros(len(original), dtype=np.bool_)
    chosen[examples.chosen] = True
    text = np.flatnonzero(original >= FIRST)
    text = text[text > 0]
    goes_on = text[(starts[original[text] - FIRST] == 0) & (original[text - 1] >= FIRST)]
    assert len(goes_on) > 1000
    return bool((chosen[goes_on] == chosen[goes_on - 1]).all())


@pytest.mark.usefixtures("small_chunks")
def test_names_and_words_are_chosen_whole(corpus):
    joined = corpus.words.copy()
    for first, stop in corpus.entities:
        joined[first + 1 : stop] = 0
    assert joined.sum() < corpus.words.sum() - 1000
    for masking, starts in (("whole-word", corpus.words), ("entity", joined)):
        source = ExampleSource(corpus, DataSettings(masking=masking, objective=("mlm", "sop"), block=1000))
        assert units_chosen_whole(corpus, source.block(0), starts)
    tokens = ExampleSource(corpus, DataSettings(block=1000)).block(0)
    assert not units_chosen_whole(corpus, tokens, corpus.words)


@pytest.mark.usefixtures("small_chunks")
def test_special_tokens_in_the_text_are_never_chosen(corpus):
    unknown = corpus.ids.copy()
    unknown[::3] = UNK
    unknown[::7] = SEP
    for masking in MASKINGS:
        source = ExampleSource(MemoryCorpus(**{**vars(corpus), "ids": unknown}), DataSettings(masking=masking))
        examples = source.block(0)
        assert examples.targets.min() >= FIRST
        maskable = (restored(examples) >= FIRST).sum()
        assert abs(len(examples.chosen) / maskable - 0.15) < 0.02
    nothing = MemoryCorpus(**{**vars(corpus), "ids": np.full_like(corpus.ids, UNK)})
    assert len(ExampleSource(nothing, DataSettings(masking="n-gram")).block(0).chosen) == 0


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("objective", [("mlm",), ("mlm", "nsp"), ("mlm", "sop")], ids="+".join)
@pytest.mark.usefixtures("small_chunks")
def test_distributions_over_a_million_tokens(masking, objective):
    """15.0 +- 0.1 % chosen, of which 80/10/10 +- 0.3; half of the labels within four deviations, 2 points at 10,000."""
    corpus = random_corpus(3_000, distinct=False, with_names=True)
    source = ExampleSource(corpus, DataSettings(masking=masking, objective=objective, block=2_000))
    maskable = chosen = masked = other = labels = pairs = number = 0
    while maskable < 1_000_000:
        examples, number = source.block(number), number + 1
        maskable += (restored(examples) >= FIRST).sum()
        chosen += len(examples.chosen)
        now = examples.ids[examples.chosen]
        masked += (now == MASK).sum()
        other += ((now != MASK) & (now != examples.targets)).sum()
        labels += 0 if examples.pair_labels is None else examples.pair_labels.sum()
        pairs += len(examples.lengths)
    assert abs(chosen / maskable - 0.15) < 0.001
    assert abs(masked / chosen - 0.8) < 0.003
    assert abs(other / chosen - 0.1 * 994 / 995) < 0.003
    if source.settings.pairs:
        assert abs(labels / pairs - 0.5) < 4 * 0.5 / np.sqrt(pairs)


def test_defaults_are_those_of_the_papers():
    assert DataSettings().shares == (0.8, 0.1)
    assert DataSettings(objective=("rtd",)).shares == (0.85, 0.0)
    assert DataSettings(objective=("rtd", "fill")).shares == (1.0, 0.0)
    assert DataSettings(objective=("rtd",), mask_share=0.5, random_share=0.25).shares == (0.5, 0.25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"objective": ("mlm", "nps")},
            "objective=nps is unknown; choose from: mlm, rtd, causal, plm, bilm, fill",
        ),
        ({"objective": ()}, "needs exactly one of: mlm, rtd, causal"),
        ({"objective": ("nsp",)}, "objective=nsp needs exactly one of"),
        ({"objective": ("mlm", "rtd")}, "needs exactly one of"),
        ({"objective": ("rtd", "fill"), "mask_share": 0.8}, "mask_share=0.8 must be 1 with fill"),
        ({"objective": ("mlm", "fill")}, "has fill without rtd; mlm fills by itself"),
        ({"objective": ("mlm", "mlm")}, "names one of them twice"),
        ({"objective": ("mlm", "nsp", "sop")}, "two questions about each pair"),
        ({"objective": ("causal", "sop")}, "reads one text"),
        ({"masking": "words"}, "masking=words is unknown; choose from: token, whole-word, n-gram, entity"),
        ({"length": 2}, "length=2 leaves no room for text"),
        ({"length": 4, "objective": ("mlm", "sop")}, "length=4 leaves no room for text"),
        ({"rate": 0.0}, "rate=0.0 must be over 0"),
        ({"rate": float("nan")}, "rate=nan must be over 0"),
        ({"rate": 1.5}, "rate=1.5 must be over 0 and at most 1"),
        ({"mask_share": -0.1}, "mask_share=-0.1 must be in"),
        ({"random_share": 1.1}, "random_share=1.1 must be in"),
        ({"mask_share": 0.9, "random_share": 0.2}, "must be at most 1"),
        ({"short_share": 2}, "short_share=2 must be in"),
        ({"block": 0}, "block=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be in"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(RequestError) as caught:
        DataSettings(**settings)
    assert message in str(caught.value)


def test_a_corpus_that_will_not_do_is_refused(corpus):
    with pytest.raises(RequestError, match="hold 1 with text; put a blank line between documents, or use sop"):
        ExampleSource(corpus_of([[9, 9, 9]]), DataSettings(objective=("mlm", "nsp")))
    with pytest.raises(RequestError, match="hold no text"):
        ExampleSource(corpus_of([]), DataSettings())
    with pytest.raises(RequestError, match="hold no text"):
        ExampleSource(corpus_of([[1], [1]]), DataSettings(objective=("mlm", "sop")))
    with pytest.raises(RequestError, match="no block -1"):
        ExampleSource(corpus, DataSettings()).block(-1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, uncased_vocab):
    folder = tmp_path_factory.mktemp("shards")
    text = folder / "text.txt"
    story = "The dog from down the street ran up to Ada Lovelace {n}. It was unbelievably happy! Was she? Of course."
    text.write_text("\n\n".join("\n".join(story.format(n=n) for _ in range(n % 9 + 1)) for n in range(60)))
    (folder / "names.txt").write_text("Ada Lovelace\n")
    write_shards([text], uncased_vocab, folder / "out", processes=1, entities=folder / "names.txt", block_bytes=3000)
    return open_shards(folder / "out")


@pytest.mark.parametrize("objective", OBJECTIVES, ids="+".join)
@pytest.mark.usefixtures("small_chunks")
def test_real_shards_give_what_the_same_text_in_memory_gives(shards, objective):
    ids, words = shards.gather([0], [shards.tokens])
    memory = MemoryCorpus(ids.astype(np.int64), words, shards.sentence_starts, shards.document_starts, shards.entities)
    for masking in MASKINGS:
        settings = DataSettings(objective=objective, masking=masking, length=48, block=40)
        real = ExampleSource(shards, settings)
        stand_in = ExampleSource(memory, settings, real.ids)
        assert [checksum(real.block(n)) for n in (0, 9)] == [checksum(stand_in.block(n)) for n in (0, 9)]
    copied = pickle.loads(pickle.dumps(real))  # as worker processes get it
    assert checksum(copied.block(4)) == checksum(real.block(4))


def test_a_name_in_real_shards_is_masked_whole(shards):
    tokenizer = shards.tokenizer
    name = tuple(tokenizer.encode_ids(["Ada Lovelace"])[0])
    source = ExampleSource(shards, DataSettings(masking="entity", block=300, mask_share=1.0, random_share=0.0))
    both = 0
    for original, _, _, chosen, _ in rows(source.block(0)):
        for at in range(len(original) - len(name)):
            if original[at : at + len(name)] == name:
                hit = [place in chosen for place in range(at, at + len(name))]
                assert len(set(hit)) == 1
                both += hit[0]
    assert both > 20
