"""Facts about the tokenizer and the input format."""

import string
import tempfile
from collections import Counter
from functools import cache, partial
from pathlib import Path

from bertkit.config import family_config
from bertkit.facts.fact import Facts, Outcome, equal, holds
from bertkit.text import wordpiece
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.merges import FastPairCounts

facts = Facts()
fast_train = partial(wordpiece.train, count_pairs=FastPairCounts)


@cache
def small_corpus() -> str:
    """A corpus that is always available: three files of this package."""
    files = (Path(__file__).with_name(f"{name}.py") for name in ("model", "tasks", "tokenizer"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def word_counts() -> Counter[str]:
    """Words of the small corpus, lower-cased."""
    return Counter(word.text for word in wordpiece.basic_words(small_corpus(), lowercase=True))


@cache
def small() -> Tokenizer:
    """A tokenizer trained on the small corpus."""
    return Tokenizer.from_vocab(fast_train(word_counts(), 600), lowercase=True)


def split(tokenizer: Tokenizer, text: str) -> list[str]:
    """A text's tokens without [CLS] and [SEP]."""
    return tokenizer.tokens(tokenizer.encode(text).ids)[1:-1]


@facts("T1", "D236, D258", "the released uncased vocabulary has 30,522 entries", "uncased")
def uncased_size(uncased: Tokenizer) -> Outcome:
    return equal(30_522, uncased.size)


@facts("T1b", "D236, D258", "the released cased vocabulary has 28,996 entries", "cased")
def cased_size(cased: Tokenizer) -> Outcome:
    return equal(28_996, cased.size)


@facts("T1c", "D236, D258", "a trained vocabulary has exactly the size asked for")
def trained_size() -> Outcome:
    return equal([500, 600, 777], [len(set(fast_train(word_counts(), size))) for size in (500, 600, 777)])


@facts("T2", "D236", "60-80 % are whole words: 22,698 of several characters, 5,828 ## pieces, 994 unused", "uncased")
def shares(uncased: Tokenizer) -> Outcome:
    pieces = list(uncased.vocab)
    special = [piece for piece in pieces if piece.startswith("[") and piece.endswith("]") and len(piece) > 1]
    inner = sum(piece.startswith("##") and len(piece) > 2 for piece in pieces)
    whole = sum(len(piece) > 1 and not piece.startswith("##") for piece in pieces) - len(special)
    unused = sum(piece.startswith("[unused") for piece in special)
    return equal((22_698, "74.4%", 5_828, 994), (whole, f"{whole / len(pieces):.1%}", inner, unused))


SPLITS = {
    "embeddings": "em ##bed ##ding ##s",
    "ensurance": "en ##sur ##ance",
    "insured": "ins ##ured",
    "philammon": "phil ##am ##mon",
}


@facts("T3", "D234-248", "words that are not in the vocabulary are broken into pieces", "uncased")
def broken_words(uncased: Tokenizer) -> Outcome:
    return equal(list(SPLITS.values()), [" ".join(split(uncased, word)) for word in SPLITS])


@facts("T4", "E229", "## marks a continuation: play ##ing, if playing itself is not in the vocabulary")
def continuation() -> Outcome:
    tokenizer = Tokenizer.from_vocab([*wordpiece.SPECIALS, "play", "##ing"], lowercase=True)
    return equal(["play", "##ing"], split(tokenizer, "playing"))


@facts("T5", "D242-246", "unusual words are split into small pieces", "uncased")
def strange_word(uncased: Tokenizer) -> Outcome:
    return equal("k ##ro ##x ##ld ##yp ##h", " ".join(split(uncased, "kroxldyph")))


@facts("T6", "D248", "every piece has its own embedding row")
def one_row_per_piece() -> Outcome:
    from bertkit.model.model import new_model

    model = new_model(family_config("bert", "tiny", vocab_size=small().size))
    return equal(small().size, model.encoder.embeddings.word.weight.shape[0])


@facts("T7", "D250", "punctuation marks are separate tokens", "uncased")
def punctuation(uncased: Tokenizer) -> Outcome:
    return equal(["hat", ","], split(uncased, "hat,"))


@facts("T8", "D250", "every character but white space belongs to exactly one token (cased, accents kept)")
def all_characters_covered() -> Outcome:
    text = "Crème brûlée, naïve Café;  3.14 — (ok)"
    pieces = [*wordpiece.SPECIALS, *sorted({mark + c for c in text if c.strip() for mark in ("", "##")})]
    encoding = Tokenizer.from_vocab(pieces, lowercase=False).encode(text)
    covered = Counter(index for start, end in encoding.offsets for index in range(start, end))
    return equal({i: 1 for i, c in enumerate(text) if c.strip()}, dict(sorted(covered.items())))


@facts("T8b", "D250", "uncased lower-cases and strips accents: naïve Café is naive cafe", "uncased")
def accents(uncased: Tokenizer) -> Outcome:
    return equal(["naive", "cafe"], split(uncased, "naïve Café"))


@facts("T9", "D252", "997 single characters, each also as ## piece", "uncased")
def single_characters(uncased: Tokenizer) -> Outcome:
    return equal((997, 997), _singles(uncased))


@facts("T9b", "D252", "the same 997 in the cased vocabulary", "cased")
def single_characters_cased(cased: Tokenizer) -> Outcome:
    return equal((997, 997), _singles(cased))


@facts("T9c", "D252", "a trained vocabulary contains its whole alphabet, each character also as ## piece")
def alphabet_kept() -> Outcome:
    alphabet = {c for word in word_counts() for c in word}
    kept = {c for c in alphabet if c in small().vocab and f"##{c}" in small().vocab}
    return equal(len(alphabet), len(kept))


@facts("T10", "D258-269", "flabbergast, -s, -ed, -ing share fl ##ab ##berg ##ast", "uncased")
def shared_prefix(uncased: Tokenizer) -> Outcome:
    forms = [split(uncased, f"flabbergast{ending}") for ending in ("", "s", "ed", "ing")]
    return equal(["fl ##ab ##berg ##ast"] * 4, [" ".join(form[:4]) for form in forms])


@facts("T11", "D222-229, E227-231", "the tokenizer is saved with the model; after loading it splits texts equally")
def saved_and_loaded() -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        small().save(Path(folder))
        loaded = Tokenizer.load(Path(folder))
    lines = small_corpus().splitlines()[:500]
    same = sum(a.ids == b.ids for a, b in zip(small().encode_batch(lines), loaded.encode_batch(lines), strict=True))
    return equal(len(lines), same)


@facts("T12", "D231, E229", "the fast trainer gives the same vocabulary as the plain algorithm")
def fast_training() -> Outcome:
    slow = wordpiece.train(word_counts(), 700)
    fast = fast_train(word_counts(), 700)
    same = sum(a == b for a, b in zip(slow, fast, strict=True))
    return holds("700 equal entries", f"{same} equal entries", slow == fast)


@facts("T12b", "D231", "counts do not overflow: a pair with count 2^40 is still merged first")
def large_counts() -> Outcome:
    counts = {"the": 2**40, "cat": 2**33, "hat": 5}
    return equal("##he the", " ".join(fast_train(counts, 5 + 10 + 2)[-2:]))


@facts("T13", "D413-431, B82", "[CLS] is at position 0 of every text, pair and empty text")
def cls_first() -> Outcome:
    encodings = [small().encode("a word"), small().encode("a", "pair"), small().encode("")]
    return equal([small().cls_id] * 3, [encoding.ids[0] for encoding in encodings])


@facts("T13b", "D413-431", "the id of [CLS] is 101", "uncased")
def cls_is_101(uncased: Tokenizer) -> Outcome:
    return equal(101, uncased.encode("hello").ids[0])


@facts("T14", "B82, D458", "[CLS] A [SEP], and [CLS] A [SEP] B [SEP]")
def separators() -> Outcome:
    tokenizer = Tokenizer.from_vocab([*wordpiece.SPECIALS, *string.ascii_lowercase], lowercase=True)
    single, pair = tokenizer.encode("x"), tokenizer.encode("x", "y")
    shown = [" ".join(tokenizer.tokens(encoding.ids)) for encoding in (single, pair)]
    return equal(["[CLS] x [SEP]", "[CLS] x [SEP] y [SEP]"], shown)


@facts("T15", "B83, D462-466", "segment A for [CLS] A [SEP], segment B for B and the last [SEP]")
def segments() -> Outcome:
    tokenizer = Tokenizer.from_vocab([*wordpiece.SPECIALS, *string.ascii_lowercase], lowercase=True)
    return equal([0, 0, 0, 1, 1], list(tokenizer.encode("x", "y").segments))


def _singles(tokenizer: Tokenizer) -> tuple[int, int]:
    characters = [piece for piece in tokenizer.vocab if len(piece) == 1]
    return len(characters), sum(f"##{c}" in tokenizer.vocab for c in characters)
