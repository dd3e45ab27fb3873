"""Fast steps beside their slow twins, and whether vectors learn what they should."""

import numpy as np
import pytest
import torch

from bertkit.errors import BertkitError, RequestError
from bertkit.inside.static.blocks import BLOCK_LENGTH, BlockMaker, kept_share, sampling_table, window_weights
from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.glove import GloveTables, count_pairs, count_pairs_plain
from bertkit.inside.static.settings import METHODS, read_settings, static_settings
from bertkit.inside.static.tables import MAX_STRENGTH, SubwordTable, WordTable
from bertkit.inside.static.training import cbow, cbow_by_words, skip_gram, skip_gram_by_pairs, train_vectors
from bertkit.inside.static.vectors import bucket, ngram_buckets, ngrams

pytestmark = pytest.mark.usefixtures("_one_thread")


def random_corpus(words: int = 40, size: int = 3000, seed: int = 0) -> WordCorpus:
    rng = np.random.default_rng(seed)
    ids = rng.zipf(1.3, size).clip(1, words).astype(np.int32) - 1
    ids[:words] = np.arange(words)
    starts = np.concatenate([[0], np.sort(rng.choice(np.arange(1, size), size // 12, replace=False)), [size]])
    counts = np.bincount(ids, minlength=words)
    order = np.argsort(-counts, kind="stable")
    return WordCorpus(tuple(f"w{n}" for n in order), counts[order], np.argsort(order)[ids].astype(np.int32), starts)


def topics(size: int = 4000, seed: int = 0) -> WordCorpus:
    """Sentences of one of four topics, each with ten words of its own, among ten words that all share."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.permutation([*rng.integers(10 * t, 10 * t + 10, 6), *rng.integers(40, 50, 3)])
        for t in rng.integers(4, size=size)
    ]
    ids = np.concatenate(rows).astype(np.int32)
    words = tuple(f"{'topic' if n < 40 else 'all'}{n}" for n in range(50))
    return WordCorpus(words, np.bincount(ids, minlength=50), ids, np.arange(0, len(ids) + 1, 9))


def first_blocks(corpus: WordCorpus, **numbers):
    settings = static_settings("skip-gram", subsample=0.0, **numbers)
    return next(BlockMaker.of(corpus, settings).blocks(0, 0))[1]


@pytest.mark.parametrize(("fast", "slow"), [(skip_gram, skip_gram_by_pairs), (cbow, cbow_by_words)])
@pytest.mark.parametrize("window", [1, 3])
def test_a_step_equals_its_slow_twin(fast, slow, window):
    blocks = first_blocks(random_corpus(size=150), window=window)
    assert len(blocks.centers) >= 3
    x, y = torch.randn(2, 40, 7).unbind()
    # A small rate keeps every row under MAX_STRENGTH, which the twins do not know of.
    expected = slow(x, y, blocks, 1e-3, 5)
    inputs, outputs = WordTable(x.clone()), WordTable(y.clone())
    fast(inputs, outputs, blocks, 1e-3, 5)
    for ours, theirs, before in zip((inputs.rows, outputs.rows), expected, (x, y), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert (ours - before).abs().max() > 1e-3


def test_blocks_hold_every_pair_of_the_text_once_with_its_share():
    corpus, window = random_corpus(size=400), 3
    found: dict[tuple[int, int], float] = {}
    for _, blocks in BlockMaker.of(corpus, static_settings(subsample=0.0, window=window)).blocks(0, 0):
        for centers, contexts, weights in zip(blocks.centers, blocks.contexts, blocks.weights, strict=True):
            for place, other in weights.nonzero().tolist():
                pair = int(centers[place]), int(contexts[other])
                found[pair] = found.get(pair, 0) + float(weights[place, other])
    expected: dict[tuple[int, int], float] = {}
    for start, stop in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
        words = corpus.ids[start:stop].tolist()
        for a, one in enumerate(words):
            for b, other in enumerate(words):
                if 0 < abs(a - b) <= window:
                    expected[one, other] = expected.get((one, other), 0) + (window - abs(a - b) + 1) / window
    assert found.keys() == expected.keys()
    assert all(found[pair] == pytest.approx(expected[pair], rel=1e-5) for pair in expected)


def test_blocks_are_a_function_of_the_seed():
    corpus = random_corpus()
    one, same, other = (
        list(BlockMaker.of(corpus, static_settings(seed=seed, subsample=0.01)).blocks(0, 0)) for seed in (1, 1, 2)
    )
    assert all(
        torch.equal(a.samples, b.samples) and torch.equal(a.centers, b.centers)
        for (_, a), (_, b) in zip(one, same, strict=True)
    )
    assert not torch.equal(one[0][1].samples, other[0][1].samples)


def test_drawn_words_follow_the_count_to_the_three_quarters():
    counts = np.array([1000, 100, 10, 1])
    drawn = np.bincount(sampling_table(counts).numpy(), minlength=4) / (1 << 22)
    np.testing.assert_allclose(drawn, counts**0.75 / (counts**0.75).sum(), atol=1e-6)


def test_frequent_words_are_passed_over_as_in_word2vec():
    counts = np.array([60_000, 1_000, 10])
    share = kept_share(counts, 1e-3)
    frequency = counts[0] / counts.sum()
    assert share[0] == pytest.approx((1e-3 / frequency) ** 0.5 + 1e-3 / frequency, rel=1e-5)
    assert share[2] == 1
    assert (kept_share(counts, 0.0) == 1).all()


def test_the_band_counts_neighbors_by_nearness_and_never_the_word_itself():
    weights = window_weights(static_settings(window=4))
    assert weights.shape == (BLOCK_LENGTH, BLOCK_LENGTH + 8)
    assert weights[5, 5:14].tolist() == [0.25, 0.5, 0.75, 1, 0, 1, 0.75, 0.5, 0.25]
    assert weights[5].sum() == 5


def test_a_row_moves_no_farther_than_its_limit():
    table, steps = WordTable(torch.zeros(3, 2)), torch.ones(100, 2)
    ids = torch.tensor([0] * 99 + [1])
    table.add(ids, steps.clone(), torch.full((100,), 0.1))
    torch.testing.assert_close(table.rows, torch.tensor([[99 * MAX_STRENGTH / 9.9] * 2, [1.0] * 2, [0.0] * 2]))


@pytest.mark.parametrize(("threads", "total"), [(1, MAX_STRENGTH), (2, 2 * MAX_STRENGTH), (16, 3 * MAX_STRENGTH)])
def test_all_threads_together_move_a_row_no_farther_than_three(threads, total):
    shared = WordTable(torch.zeros(2, 1))
    for _ in range(threads):
        shared.for_thread(threads).add(torch.zeros(100, dtype=torch.int64), torch.ones(100, 1), torch.ones(100))
    assert shared.rows[0].item() == pytest.approx(total, rel=1e-4)  # float32 sums


def test_subword_rows_give_means_and_take_whole_steps():
    rows = torch.randn(9, 4)
    bags = [[0, 3, 4], [1], [2, 4, 8, 8]]
    table = SubwordTable(rows.clone(), bags).for_thread(1)
    ids = torch.tensor([[2, 0], [0, 1]])
    means = torch.stack([rows[bag].mean(dim=0) for bag in bags])
    torch.testing.assert_close(table.read(ids), means[ids])
    torch.testing.assert_close(table.all(), means)
    steps, expected = torch.randn(4, 4), rows.clone()
    table.add(ids.flatten(), steps.clone(), torch.full((4,), 1e-3))
    for word, step in zip(ids.flatten().tolist(), steps, strict=True):
        for row in bags[word]:
            expected[row] += step
    torch.testing.assert_close(table.rows, expected)


def test_ngrams_are_those_of_the_paper():
    assert list(ngrams("where", 3, 3)) == ["<wh", "whe", "her", "ere", "re>"]
    assert "<where>" not in list(ngrams("where", 3, 7))
    assert list(ngrams("a", 3, 6)) == []  # <a> is the word itself
    assert bucket("a", 2**32) == 0xE40C292C  # published for 32-bit FNV-1a
    assert ngram_buckets("\U0001f600\u0301é", 3, 4, 100) == ngram_buckets("\U0001f600\u0301é", 3, 4, 100)


@pytest.mark.parametrize("window", [1, 5])
def test_near_counts_equal_their_slow_twin(window, monkeypatch):
    corpus = random_corpus()
    expected = count_pairs_plain(corpus, window)
    for counted in (1_000_000, 100):  # stretches that end inside sentences must not lose or double a pair
        monkeypatch.setattr("bertkit.inside.static.glove.WORDS_AT_ONCE", counted)
        near = count_pairs(corpus, window)
        found = dict(zip(zip(near.one.tolist(), near.other.tolist(), strict=True), near.counts.tolist(), strict=True))
        assert found == pytest.approx(dict(expected), rel=1e-5)


def test_a_glove_step_equals_automatic_differentiation():
    settings = static_settings("glove", width=6)
    tables = GloveTables(10, settings)
    one, other, counts = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 3]), torch.tensor([0.5, 30.0, 400.0])
    rows = [each.clone().requires_grad_() for each in tables.rows]
    x, y = rows[0][one], rows[1][other]
    product = (x[:, :-1] * y[:, :-1]).sum(dim=1) + x[:, -1] + y[:, -1]
    loss = ((counts / 100).clamp(max=1) ** 0.75 * (product - counts.log()) ** 2 / 2).sum()
    slopes = torch.autograd.grad(loss, rows)
    tables.step(one, other, counts, 0.05)
    for now, before, slope in zip(tables.rows, rows, slopes, strict=True):
        torch.testing.assert_close(now, (before - 0.05 * slope / (1 + slope**2).sqrt()).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_words_of_one_topic_come_to_lie_together(method):
    corpus = topics()
    numbers = {"glove": {"epochs": 15}}.get(method, {"epochs": 3, "subsample": 0.0, "buckets": 500})
    vectors = train_vectors(corpus, static_settings(method, width=16, window=4, **numbers), threads=2)
    right = sum(corpus.words.index(vectors.nearest(f"topic{n}", 1)[0].word) // 10 == n // 10 for n in range(40))
    assert right >= 36, "chance is 8 of 40"
    assert np.linalg.norm(vectors.vectors, axis=1).max() < 100


@pytest.mark.parametrize("method", METHODS)
def test_one_thread_gives_the_same_vectors_each_time(method):
    settings = static_settings(method, width=8, epochs=1, buckets=50)
    one, same = (train_vectors(random_corpus(), settings, threads=1).vectors for _ in range(2))
    assert (one == same).all()
    assert one.dtype == np.float32


def test_two_words_and_a_lone_sentence_are_enough():
    corpus = WordCorpus(("a", "b"), np.array([3, 2]), np.array([0, 1, 0, 1, 0], np.int32), np.array([0, 5]))
    for method in METHODS:
        found = train_vectors(corpus, static_settings(method, width=4, buckets=10), threads=2)
        assert found.vectors.shape == (2, 4)


def test_torch_has_its_threads_back_after_training():
    before = torch.get_num_threads()
    train_vectors(random_corpus(), static_settings(width=4, epochs=1), threads=2)
    assert torch.get_num_threads() == before


def test_a_failure_in_a_thread_is_heard(monkeypatch):
    def fail(*_):
        raise RuntimeError("a thread failed")

    monkeypatch.setitem(
        __import__("bertkit.inside.static.training", fromlist=["STEP_FUNCTIONS"]).STEP_FUNCTIONS, "skip-gram", fail
    )
    with pytest.raises(RuntimeError, match="a thread failed"):
        train_vectors(random_corpus(), static_settings(), threads=2)


def test_even_an_absurd_rate_stays_finite_and_what_does_not_is_refused(monkeypatch):
    corpus = random_corpus(words=5, size=20_000)
    settings = static_settings("skip-gram", rate=10.0, epochs=3, width=3)
    assert np.isfinite(train_vectors(corpus, settings, threads=1).vectors).all()
    monkeypatch.setattr("bertkit.inside.static.tables.MAX_STRENGTH", 1e30)
    with pytest.raises(BertkitError, match="grew without bound at rate=10.0; try a smaller one"):
        train_vectors(corpus, settings, threads=1)


@pytest.mark.parametrize(
    ("method", "pairs", "said"),
    [
        ("word2vec", [], "unknown method 'word2vec'; choose from: cbow, fasttext, glove, skip-gram"),
        ("cbow", ["windw=3"], "unknown setting 'windw'; choose from: buckets"),
        ("cbow", ["window"], "setting 'window' needs a value"),
        ("cbow", ["window=x"], "window=x is not a whole number"),
        ("cbow", ["window=0"], "window=0 must be from 1 to 50"),
        ("cbow", ["rate=nan"], "rate=nan must be from"),
        ("fasttext", ["shortest=7"], "shortest=7 must not be over longest=6"),
    ],
)
def test_wrong_settings_stop_at_the_door(method, pairs, said):
    with pytest.raises(RequestError, match=said):
        read_settings(method, pairs)
