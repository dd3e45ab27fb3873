"""The fast tokenizer, its readable twin and transformers give the same ids, segments, offsets and word numbers."""

import importlib.util
import random
import sys
import unicodedata
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.text.tokenizer import Encoding, Tokenizer

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tokenizer_parity.py"
VOCABULARIES = {"uncased": ("uncased_vocab", True), "cased": ("cased_vocab", False), "chinese": ("simbert", True)}


@pytest.fixture(scope="module")
def benchmark():
    """The generator of strings and the comparison, shared with the full run over five vocabularies."""
    spec = importlib.util.spec_from_file_location("tokenizer_parity", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tokenizer_parity"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def strings(benchmark) -> list[str]:
    return benchmark.property_strings(20_000, seed=1)


@pytest.fixture(scope="module", params=VOCABULARIES)
def released(request) -> tuple[str, Tokenizer, transformers.BertTokenizer]:
    fixture, lowercase = VOCABULARIES[request.param]
    path = request.getfixturevalue(fixture)
    path = path / "vocab.txt" if path.is_dir() else path
    pieces = {piece: number for number, piece in enumerate(path.read_text(encoding="utf-8").split("\n")) if piece}
    theirs = transformers.BertTokenizer(pieces, do_lower_case=lowercase)
    return request.param, Tokenizer.from_vocab(path, lowercase=lowercase), theirs


def theirs_of(encoded: transformers.BatchEncoding, i: int = 0) -> Encoding:
    return Encoding(
        tuple(encoded["input_ids"][i]),
        tuple(encoded["token_type_ids"][i]),
        tuple(encoded["offset_mapping"][i]),
        tuple(encoded.word_ids(i)),
    )


def test_the_strings_try_everything(strings):
    characters = set("".join(strings))
    assert len(strings) == 20_000
    assert len(set(strings)) > 19_000
    assert len(characters) > 50_000
    assert characters.issuperset("\0\x85\u200b\ufffd\u0301\u3000\u2028한👩中A!")
    kinds = {unicodedata.category(char) for char in characters}
    assert kinds == {unicodedata.category(chr(code)) for code in range(0x110000)} - {"Cs"}
    assert all(f"[{name}]" in "".join(strings) for name in ("PAD", "UNK", "CLS", "SEP", "MASK"))
    assert any(len(word) > 100 for text in strings for word in text.split())


def test_fast_equals_twin_equals_transformers(benchmark, strings, released):
    name, tokenizer, theirs = released
    some = strings if name == "uncased" else strings[:4000]
    found = [
        line
        for start in range(0, len(some), 1000)
        for line in benchmark.differences(some[start : start + 1000], tokenizer, theirs, VOCABULARIES[name][1])
    ]
    assert found == []


def test_pairs_equal_transformers(strings, released):
    _, tokenizer, theirs = released
    texts, pairs = strings[:300], strings[300:600]
    expected = theirs(texts, pairs, return_offsets_mapping=True)
    for i, ours in enumerate(tokenizer.encode_batch(texts, pairs)):
        assert ours == theirs_of(expected, i)
        assert ours.part == tuple(expected.sequence_ids(i))


def test_batches_equal_one_by_one(strings, released):
    _, tokenizer, _ = released
    texts = [*strings[:500], ""]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts, texts[::-1]) == list(map(tokenizer.encode, texts, texts[::-1]))
    assert tokenizer.encode_ids(texts) == [list(tokenizer.encode(text).ids[1:-1]) for text in texts]
    assert tokenizer.count(texts) == [len(tokenizer.encode(text)) for text in texts]


def test_saved_and_reloaded_equal(strings, released, tmp_path):
    _, tokenizer, _ = released
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    from_vocabulary = Tokenizer.load(tmp_path)
    texts = strings[:1000]
    expected = tokenizer.encode_batch(texts)
    assert again.encode_batch(texts) == expected
    assert from_vocabulary.encode_batch(texts) == expected
    encoded = theirs(texts, return_offsets_mapping=True)
    assert [theirs_of(encoded, i) for i in range(len(texts))] == expected
    assert tokenizer.hash == again.hash == from_vocabulary.hash


def test_words_given_apart_equal_transformers(strings, released):
    _, tokenizer, theirs = released
    sentences = [text.split(" ") for text in strings[:300]]
    expected = theirs(sentences, is_split_into_words=True, return_offsets_mapping=True)
    for i, ours in enumerate(tokenizer.encode_words_batch(sentences)):
        assert ours == theirs_of(expected, i)
        assert ours == tokenizer.encode_words(sentences[i])


@pytest.mark.parametrize("flags", [(True, False, True), (False, True, True), (True, None, False)])
def test_the_other_settings_equal_transformers(strings, uncased_vocab, flags):
    lowercase, strip_accents, split_cjk = flags
    tokenizer = Tokenizer.from_vocab(
        uncased_vocab, lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk
    )
    theirs = transformers.BertTokenizer(
        dict(tokenizer.vocab),
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=split_cjk,
    )
    encoded = theirs(strings[:1000], return_offsets_mapping=True)
    assert tokenizer.encode_batch(strings[:1000]) == [theirs_of(encoded, i) for i in range(1000)]


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text(text, benchmark, released):
    name, tokenizer, theirs = released
    assert list(benchmark.differences([text], tokenizer, theirs, VOCABULARIES[name][1])) == []


def test_decoding_equals_transformers(strings, released):
    _, tokenizer, theirs = released
    rng = random.Random(3)
    for text in rng.sample(strings, 200):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert tokenizer.tokens(ids) == theirs.convert_ids_to_tokens(list(ids))
