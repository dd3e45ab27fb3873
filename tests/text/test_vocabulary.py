"""Counting words in bounded memory, and the fast trainer against the slow one and against `tokenizers`."""

import itertools
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bertkit.cli.vocab import vocab
from bertkit.errors import BertkitError, RequestError
from bertkit.text.vocabulary import word_counts
from bertkit.text.vocabulary.build import VocabularySettings, kinds_of_pieces, make_vocabulary
from bertkit.text.vocabulary.merges import FastPairCounts
from bertkit.text.vocabulary.word_counts import WordCounter, count_corpus, merge_runs, read_run, split_chunk, write_run
from bertkit.text.wordpiece import SPECIALS, basic_words, train

fast_train = partial(train, count_pairs=FastPairCounts)
ODD = "aAé\u0301Éß漢İ\u200b\u00a0\u3000\x0b\x0c\x1c\x85\u2028\t\n .,'-_#$\x00\x7f\ufffd\U0001f600１ª"
odd_text = st.text(st.one_of(st.sampled_from(ODD), st.characters(codec="utf-8")), max_size=60)
LINES = [f"{a} {b}, {a}{c}. {c}{b}!" for a, b, c in itertools.product(["play", "run", "Öl"], ["ing", "s"], "xyz")]


def slow_counts(texts: list[str], *, lowercase: bool) -> Counter[str]:
    """The obvious twin of WordCounter."""
    return Counter(word.text for text in texts for word in basic_words(text, lowercase=lowercase))


@given(odd_text, st.booleans())
def test_chunks_split_as_the_slow_way_does(text, lowercase):
    expected = [word.text for word in basic_words(text, lowercase=lowercase)]
    assert split_chunk(text, lowercase=lowercase) == expected


@given(st.text(st.characters(max_codepoint=127), max_size=30), st.booleans())
def test_ascii_chunks_split_as_the_slow_way_does(text, lowercase):
    expected = [word.text for word in basic_words(text, lowercase=lowercase)]
    assert split_chunk(text, lowercase=lowercase) == expected


@given(st.lists(odd_text, max_size=6), st.booleans(), st.integers(1, 5))
def test_counts_equal_the_slow_way_whatever_is_spilled(tmp_path_factory, texts, lowercase, look_every):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_counts, "CHECK_EVERY", look_every)
        patch.setattr(word_counts, "MAX_RUNS", 3)
        counter = WordCounter(tmp_path_factory.mktemp("runs"), lowercase=lowercase, room=3)
        for text in texts:
            assert counter.add(text) == len(text.split())
        result = counter.result()
    expected = slow_counts(texts, lowercase=lowercase)
    assert result.unique == len(expected)
    assert result.total == expected.total()
    assert result.counts == {word: count for word, count in expected.items() if count >= result.least}
    assert len(result.counts) <= 3
    # Nothing that would have fitted was left out: the next rarer count would burst the room.
    if result.least > 1:
        next_rarer = max((count for count in expected.values() if count < result.least), default=0)
        assert sum(count >= next_rarer for count in expected.values()) > 3


@given(st.lists(odd_text, min_size=1, max_size=5))
@settings(max_examples=50)
def test_corpus_counts_equal_the_slow_way_through_files_and_sentences(tmp_path_factory, texts):
    texts = [text.replace("\0", "") for text in texts]
    path = tmp_path_factory.mktemp("corpus") / "a.txt"
    path.write_bytes("\n".join([*texts, "one more."]).encode())
    lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert count_corpus([path], lowercase=True).words.counts == slow_counts(lines, lowercase=True)


def test_words_and_sentences_of_a_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("One two three. Four!\nFive six.\n\nSeven, " + "x" * 101)
    heard: list[int] = []
    counted = count_corpus([tmp_path], lowercase=True, watch=heard.append)
    assert counted.sentences_by_length == {3: 1, 1: 1, 2: 2}
    assert (counted.report.documents, counted.report.sentences, counted.report.words) == (2, 4, 8)
    assert counted.report.unique_words == len(counted.words.counts) == 7 + 3
    assert heard[-1] == (tmp_path / "a.txt").stat().st_size
    [(reason, note)] = counted.report.notes.items()
    assert reason == "word over 100 characters, left out of the vocabulary"
    assert (note.count, note.first) == (1, "begins 'xxxxxxxxxxxxxxxxxxxx'")


def test_runs_merge_and_counts_do_not_overflow(tmp_path):
    huge = 2**64 + 1
    write_run(tmp_path / "1", sorted({"a": huge, "é": 2, "b": 1}.items()))
    write_run(tmp_path / "2", sorted({"a": huge, "\U0001f600": 3, "\uffff": 1}.items()))
    merged = list(merge_runs(map(read_run, [tmp_path / "1", tmp_path / "2"])))
    assert merged == [("a", 2 * huge), ("b", 1), ("é", 2), ("\uffff", 1), ("\U0001f600", 3)]


def test_a_run_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    counter = WordCounter(tmp_path / "file", lowercase=True, room=1)
    counter.add("two words")
    with pytest.raises(BertkitError, match="cannot be written"):
        counter.result()


def outcome(function, *arguments, **options) -> list[str] | None:
    try:
        return function(*arguments, **options)
    except RequestError:
        return None


words = st.text(st.sampled_from("abcé漢"), min_size=1, max_size=9) | st.text(st.sampled_from("ab"), max_size=9)


@given(
    st.dictionaries(words, st.integers(1, 9) | st.sampled_from([2**62, 2**63, 2**70]), max_size=20),
    st.integers(1, 70) | st.integers(15, 30),
    st.sampled_from([1, 2, 3, 1000]),
    st.integers(1, 5),
)
@settings(max_examples=400, deadline=None)
def test_fast_training_equals_slow_training(counts, size, alphabet_limit, min_count):
    options = {"alphabet_limit": alphabet_limit, "min_count": min_count}
    assert outcome(fast_train, counts, size, **options) == outcome(train, counts, size, **options)


def test_fast_training_equals_slow_training_on_real_words(uncased_vocab):
    """A few hundred words with Zipf's counts, trained until nothing can be merged any more."""
    entries = [word for word in uncased_vocab.read_text(encoding="utf-8").split("\n") if word.isalpha()]
    counts = {word: 100_000 // rank for rank, word in enumerate(entries[3000:3300], start=1)}
    with pytest.raises(RequestError, match=r"at most ([\d,]+) pieces") as caught:
        fast_train(counts, 10**6)
    most = int(str(caught.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    trained = fast_train(counts, most)
    assert trained == train(counts, most)
    assert len(trained) == len(set(trained)) == most
    assert set(counts) <= set(trained)  # merged to the end, every word is a piece


def test_training_in_slices_gives_the_same(monkeypatch):
    counts = {"".join(letters): i + 1 for i, letters in enumerate(itertools.product("abc", repeat=4))}
    expected = fast_train(counts, 60)
    monkeypatch.setattr("bertkit.text.vocabulary.merges.POSITIONS_PER_SLICE", 7)
    assert fast_train(counts, 60) == expected


def test_pieces_come_in_order():
    pieces = fast_train({"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}, 24)
    alphabet = [piece for char in "bghnpsu" for piece in (char, f"##{char}")]
    # u+g 20, u+n 16, h+ug 15, p+un 12, then 5 times hug+s before p+ug by order of strings.
    assert pieces == [*SPECIALS, *alphabet, "##ug", "##un", "hug", "pun", "hugs"]


def test_a_piece_reached_in_two_ways_is_one_piece():
    """Text never gives words with "#" inside, counts made by hand may: "#" + "###" is "##", like "##" + "#"."""
    for seed in range(30):
        rng = random.Random(seed)
        counts = {"".join(rng.choices("a#", k=rng.randint(1, 9))): rng.randint(1, 9) for _ in range(15)}
        for size in (10, 20, 30):
            assert outcome(fast_train, counts, size) == outcome(train, counts, size)


def theirs(lines: list[str], size: int) -> set[str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(lines, trainer)
    return set(tokenizer.get_vocab())


def without_ties(seed: int) -> dict[str, int]:
    """Words over disjoint letters, and beginnings of them, so that no two pairs are ever equally frequent."""
    rng = random.Random(seed)
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", 24)
    frequencies = rng.sample(range(2, 60), 18)
    counts = {}
    for word in ("".join(letters[start : start + 4]) for start in range(0, 24, 4)):
        # A pair is as frequent as all the words that reach that far.
        longest, longer, long = sorted(frequencies.pop() for _ in range(3))
        counts |= {word: longest, word[:3]: longer - longest, word[:2]: long - longer}
    return {word: count for word, count in counts.items() if count}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("merges", [1, 7, 18])
def test_the_tokenizers_library_finds_the_same_pieces(seed, merges):
    counts = without_ties(seed)
    characters = {char for word in counts for char in word}
    # Theirs has the ## form of a character only where it occurs, ours has both forms of each.
    their_letters = characters | {piece for word in counts for piece in _letters(word)}
    lines = [word for word, count in counts.items() for _ in range(count)]
    their_pieces = theirs(lines, len(SPECIALS) + len(their_letters) + merges)
    our_pieces = fast_train(counts, len(SPECIALS) + 2 * len(characters) + merges)
    our_letters = {piece for char in characters for piece in (char, f"##{char}")}
    assert len(their_pieces - their_letters) == len(SPECIALS) + merges
    assert their_pieces - their_letters == set(our_pieces) - our_letters


def _letters(word: str) -> list[str]:
    return [word[0], *(f"##{char}" for char in word[1:])]


def test_kinds_of_the_released_vocabulary(uncased_vocab):
    pieces = uncased_vocab.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    kinds = kinds_of_pieces(pieces)
    assert kinds == {"special": 5 + 994, "characters": 997, "continuations": 5828, "whole_words": 22698}


def test_whole_road_has_exactly_the_size_and_reports(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    vocabulary = make_vocabulary([path], VocabularySettings(size=60))
    counts = slow_counts(LINES, lowercase=True)
    assert vocabulary.pieces == train(counts, 60)
    report = vocabulary.report
    assert sum(report["pieces"].values()) == report["size"] == 60
    characters = {char for word in counts for char in word}
    assert report["alphabet"] == {
        "kept": len(characters),
        "cut": 0,
        "cut_share_of_text": 0.0,
        "first_cut": [],
    }
    assert report["corpus"]["words"] == sum(len(line.split()) for line in LINES)
    assert report["peak_memory_bytes"] > 10_000_000


def test_mean_and_median_words_per_sentence(tmp_path):
    (tmp_path / "a.txt").write_text("One. Two! Three four. Now five words are here.", encoding="utf-8")
    corpus = make_vocabulary([tmp_path], VocabularySettings(size=38)).report["corpus"]
    assert (corpus["mean_words_per_sentence"], corpus["median_words_per_sentence"]) == (2.25, 1)


def test_cut_characters_are_reported_with_their_share(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa aaa bb cc dd ee", encoding="utf-8")
    report = make_vocabulary([tmp_path], VocabularySettings(size=9, alphabet_limit=2)).report
    assert report["alphabet"]["kept"] == 2
    assert report["alphabet"]["first_cut"] == ["c", "d", "e"]
    assert report["alphabet"]["cut_share_of_text"] == pytest.approx(6 / 15)


def test_the_command_tells_words_and_different_ones(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("one, two! one? two; two", encoding="utf-8")
    vocab([tmp_path / "a.txt"], tmp_path / "out", size=25)
    assert "words               5; 6 different ones, normalized and cut at punctuation\n" in capsys.readouterr().out


def test_an_extension_has_the_alphabet_that_it_had(tmp_path):
    with pytest.raises(RequestError, match="the characters are those of model; leave out --alphabet-limit"):
        vocab([tmp_path], tmp_path / "out", extend=Path("model"), alphabet_limit=9)


@pytest.mark.parametrize("name", ["size", "min_count", "alphabet_limit"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(RequestError, match=f"{name}=0 must be at least 1"):
        VocabularySettings(**{name: 0})


def test_too_small_and_too_large_sizes_name_the_remedy():
    counts = {"ab": 3, "ba": 2}
    with pytest.raises(RequestError, match="ask for at least 9"):
        fast_train(counts, 8)
    assert len(fast_train(counts, 9)) == 9
    with pytest.raises(RequestError, match="gives at most 11 pieces and 30,522 were asked for"):
        fast_train(counts, 30522)
    assert fast_train(counts, 11)[-2:] == ["ab", "ba"]


def test_no_words_at_all(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\x01\x02", encoding="utf-8")
    with pytest.raises(RequestError, match="gives at most 5 pieces"):
        make_vocabulary([tmp_path], VocabularySettings(size=100))
