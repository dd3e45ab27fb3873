"""Sentences to ids: the table of words against the library, for odd Unicode and hostile words too."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_helpers import slowly, unpacked, without_specials

from bertkit.text.shards.maker import tokenize_block
from bertkit.text.shards.sentence_ids import LibraryIds, sentence_texts
from bertkit.text.shards.table_ids import TableIds, load_encoder, words_are_independent
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import ROBERTA_TOKENS, load_backend
from bertkit.text.tokenizer_kinds.byte_level_bpe import byte_level_backend
from bertkit.text.wordpiece import SPECIALS

ODD = " \t\u00a0\u2028\u3000\x0b\x1c\x85\x00\u200b\u00ad\u0301\ufffd.!?。「#[]'-’éÉßİΣςA中가ﬁ😀\U0001e922\ue000aAbz1"
WORDS = [
    "The",
    "unaffable",
    "cat",
    "##s",
    "naïve",
    "Ελλάδος",
    "[MASK]",
    "[SEP]",
    "x" * 101,
    "U.S.",
    "\u200b",
    "日本語。",
]
paragraphs = st.one_of(
    st.text(
        st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\n")), max_size=40
    ),
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
)
corpora = st.lists(st.lists(paragraphs.map(str.strip).filter(bool), min_size=1, max_size=4), min_size=1, max_size=5)


def block(documents: list[list[str]]) -> bytes:
    return "\n\n".join("\n".join(document) for document in documents).encode()


@pytest.fixture(scope="session", params=["uncased", "cased"])
def vocabulary(request, uncased_vocab, cased_vocab) -> tuple[Tokenizer, TableIds]:
    path, lowercase = {"uncased": (uncased_vocab, True), "cased": (cased_vocab, False)}[request.param]
    tokenizer = Tokenizer.from_vocab(path, lowercase=lowercase)
    encoder = load_encoder(path)
    assert isinstance(encoder, TableIds)
    return tokenizer, encoder


@given(corpora)
@settings(max_examples=300)
def test_a_block_is_what_the_tokenizer_gives(vocabulary, documents):
    tokenizer, encoder = vocabulary
    documents = without_specials(documents)
    content = tokenize_block(block(documents), encoder)
    expected = slowly(documents, tokenizer)
    assert unpacked(content.arrays) == expected
    assert content.counts["documents"] == len(expected)
    assert content.counts["paragraphs"] == sum(map(len, documents))
    assert content.counts["words"] == sum(sum(starts) for document in expected for _, starts in document)


@cache
def twins(path: Path, room: int) -> tuple[TableIds, LibraryIds]:
    return TableIds(*load_backend(path), room=room), LibraryIds(*load_backend(path))


@given(st.lists(paragraphs, max_size=6), st.sampled_from([1, 3, 1000]))
@settings(max_examples=300)
def test_the_table_gives_what_the_library_gives(uncased_vocab, texts, room):
    quick, slow = (encoder.encode(texts) for encoder in twins(uncased_vocab, room))
    for name in ("ids", "words", "lengths"):
        assert getattr(quick, name).tolist() == getattr(slow, name).tolist()
        assert getattr(quick, name).dtype == getattr(slow, name).dtype


def test_the_table_stays_small(uncased_vocab):
    encoder = TableIds(*load_backend(uncased_vocab), room=500)
    encoder.encode([" ".join(f"w{i}" for i in range(1000))])
    assert len(encoder.table) <= 500
    encoder.encode(["y" * 5000, "é" * 5000, "a b"])
    assert b"a" in encoder.table
    assert all(len(word) <= 100 for word in encoder.table)


@pytest.mark.parametrize("slice_size", [1, 10, 10**6])
def test_slices_and_line_ends_change_nothing(uncased_vocab, slice_size):
    encoder = TableIds(*load_backend(uncased_vocab), slice_size=slice_size)
    texts = ["", "the cat\nsat.", "", "", "é", "a long sentence, of many words\n", "\n"]
    encoded = encoder.encode(texts)
    expected = LibraryIds(*load_backend(uncased_vocab)).encode(texts)
    assert encoded.lengths.tolist() == expected.lengths.tolist() == [0, 4, 0, 0, 1, 7, 0]
    assert encoded.ids.tolist() == expected.ids.tolist()


@pytest.mark.parametrize("kind", [TableIds, LibraryIds])
def test_special_pieces_in_a_text_are_ordinary_characters(uncased_vocab, kind):
    encoder = kind(*load_backend(uncased_vocab))
    tokenizer = Tokenizer.load(uncased_vocab)
    encoded = encoder.encode([f"a {name}, x{name}y" for name in SPECIALS])
    special = {tokenizer.vocab[name] for name in SPECIALS}
    assert not special & set(encoded.ids.tolist())
    assert tokenizer.tokens(encoder.encode(["[MASK] it"]).ids) == ["[", "mask", "]", "it"]


def test_a_word_spelled_like_a_special_piece_is_unknown(tmp_path):
    (tmp_path / "vocab.txt").write_text("pad\nunk\ncls\nsep\nmask\nthe\n")
    names = {f"{role}_token": role for role in ("pad", "unk", "cls", "sep", "mask")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**names, "do_lower_case": True}))
    assert load_encoder(tmp_path).encode(["the mask sep the Cls"]).ids.tolist() == [5, 1, 1, 5, 1]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> Path:
    """A RoBERTa-like tokenizer: all bytes, and a few merges that begin with the space."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("t", "h"), ("th", "e"), ("T", "h"), ("Ġ", "Th"), ("Ġ", "Ġ")]
    pieces = [*vars(ROBERTA_TOKENS).values(), *letters, *("".join(pair) for pair in merges)]
    backend = byte_level_backend(
        {piece: i for i, piece in enumerate(pieces)}, merges, ROBERTA_TOKENS, add_prefix_space=False
    )
    folder = tmp_path_factory.mktemp("byte-level")
    Tokenizer(backend, ROBERTA_TOKENS).save(folder)
    return folder


@given(
    st.lists(st.sampled_from(["The the.", "Then!", " The", "  the", "é.", "<mask>", "the"]), max_size=8).map(" ".join)
)
def test_byte_level_sentences_join_to_their_paragraph(byte_level, paragraph):
    tokenizer, encoder = Tokenizer.load(byte_level), load_encoder(byte_level)
    assert type(encoder) is LibraryIds
    paragraph = paragraph.replace("<mask>", "mask").strip()
    encoding = tokenizer.encode(paragraph)
    content = tokenize_block(paragraph.encode(), encoder)
    assert content.arrays["tokens"].tolist() == list(encoding.ids[1:-1])
    numbers = list(encoding.words[1:-1])
    assert content.arrays["words"].tolist() == [int(a != b) for a, b in zip(numbers, [None, *numbers], strict=False)]


def test_byte_level_masks_in_a_text_are_ordinary_characters(byte_level):
    tokenizer = Tokenizer.load(byte_level)
    ids = load_encoder(byte_level).encode(["the <mask> </s> end"]).ids.tolist()
    assert not {tokenizer.mask_id, tokenizer.sep_id} & set(ids)
    assert tokenizer.decode(ids) == "the <mask> </s> end"


def test_added_pieces_go_through_the_library(uncased_vocab):
    from tokenizers import AddedToken

    backend, _ = load_backend(uncased_vocab)
    assert words_are_independent(backend)
    backend.add_tokens([AddedToken("the cat")])
    assert not words_are_independent(backend)


def test_sentences_keep_the_space_before_them():
    paragraph = "One.  Two! 三。四"
    assert list(sentence_texts(paragraph)) == ["One.", "  Two!", " 三。", "四"]
    assert "".join(sentence_texts(paragraph)) == paragraph
