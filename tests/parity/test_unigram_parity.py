"""Unigram tokenizers: transformers', ours and the readable twin give the same ids, offsets and words."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from unigram_models import REFERENCES, REPLACED, charsmap, reference, scored_pieces

from bertkit.text.shards.sentence_ids import LibraryIds
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.tokenizer_files import ROBERTA_TOKENS
from bertkit.text.unigram import segment

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tokenizer_parity.py"
ODD = [
    "",
    " ",
    "a  b\t\n c ",
    "\ufb01ne \u2460 \uff21\uff21 e\u0301t\u00e9 \u00bd\u2026",
    "soft\u00adhyphen\u200bspace\x07 \u3000wide",
    "\u4e2d\u6587 \ud55c \u0437\u0434\u0440\u0430 \U0001f600\U0001f469\u200d\U0001f467 \ufdfa",
    "<mask> a<mask>b <s> </s> <pad> <unk> \u2581 \u2581\u2581x",
    "word " * 3000,
    "x" * 20_000,
    "\u0301\u0301 \ufffd \U0010ffff",
]


@pytest.fixture(scope="module")
def strings() -> list[str]:
    spec = importlib.util.spec_from_file_location("tokenizer_parity", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tokenizer_parity"] = module
    spec.loader.exec_module(module)
    return [*ODD, *module.property_strings(3000, seed=5)]


@pytest.fixture(scope="module", params=REFERENCES)
def both(request, tmp_path_factory) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    """Our tokenizer from the folder that transformers' wrote, and that one."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = reference(request.param)
    theirs.save_pretrained(folder)
    return Tokenizer.load(folder), theirs


def theirs_of(encoded: transformers.BatchEncoding, i: int) -> Encoding:
    ids = tuple(encoded["input_ids"][i])
    return Encoding(ids, (0,) * len(ids), tuple(encoded["offset_mapping"][i]), tuple(encoded.word_ids(i)))


def test_the_vocabulary_is_one_to_learn_from():
    pieces = [piece for piece, _ in scored_pieces()]
    assert len(pieces) == 600
    assert sum(piece.startswith("\u2581") and len(piece) > 3 for piece in pieces) > 50
    assert len(set(pieces)) == len(pieces)


def test_the_normalizer_replaces_what_it_lists():
    from tokenizers.normalizers import Precompiled

    normalizer = Precompiled(charsmap(REPLACED))
    for source, target in REPLACED.items():
        assert normalizer.normalize_str(f"a{source}b").replace("e\u0301", "\u00e9") == f"a{target}b"
    assert normalizer.normalize_str("plain \u4e2d") == "plain \u4e2d"


def test_single_texts_equal_transformers(strings, both):
    ours, theirs = both
    expected = theirs(strings, return_offsets_mapping=True)
    for i, encoding in enumerate(ours.encode_batch(strings)):
        assert encoding == theirs_of(expected, i), strings[i]
    assert ours.encode("").ids == (ours.cls_id, ours.sep_id)
    some = strings[:200]
    assert ours.encode_batch(some) == [ours.encode(text) for text in some]
    assert ours.encode_ids(some) == [list(ours.encode(text).ids[1:-1]) for text in some]


def test_pairs_equal_transformers(strings, both):
    ours, theirs = both
    texts, pairs = strings[:300], strings[300:600]
    expected = theirs(texts, pairs, return_offsets_mapping=True)
    for i, encoding in enumerate(ours.encode_batch(texts, pairs)):
        assert encoding == theirs_of(expected, i)
        assert encoding.part == tuple(expected.sequence_ids(i))
    cls, sep = ours.cls_id, ours.sep_id
    assert ours.encode("", "").ids == (cls, sep, sep, sep)


def test_given_words_equal_transformers(strings, both):
    ours, theirs = both
    sentences = [text.split(" ") for text in strings[:300]]
    expected = theirs(sentences, is_split_into_words=True, return_offsets_mapping=True)
    for i, encoding in enumerate(ours.encode_words_batch(sentences)):
        assert encoding == theirs_of(expected, i)


def test_decoding_equals_transformers(strings, both):
    ours, theirs = both
    for text in strings[:300]:
        ids = ours.encode(text).ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.tokens(ids) == theirs.convert_ids_to_tokens(list(ids))
    assert ours.decode(ours.encode("the  cat sat").ids) == "the cat sat"


def test_saved_and_reloaded_equal(strings, both, tmp_path):
    ours, _ = both
    ours.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.hash == ours.hash
    texts, pairs = strings[:500], strings[500:1000]
    expected = ours.encode_batch(texts, pairs)
    assert again.encode_batch(texts, pairs) == expected
    encoded = theirs(texts, pairs, return_offsets_mapping=True)
    assert [theirs_of(encoded, i) for i in range(len(texts))] == expected
    assert theirs.mask_token_id == ours.mask_id


def test_a_bare_tokenizer_json_gets_robertas_special_tokens(both, tmp_path):
    ours, _ = both
    ours.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    assert Tokenizer.load(tmp_path).encode("the cat", "a dog") == ours.encode("the cat", "a dog")


def test_pieces_say_where_words_start(both):
    ours, _ = both
    ids = ours.encode("the catalog <mask>").ids
    assert [ours.starts_word(number) for number in ids] == [
        piece.startswith("\u2581") or piece in ("<s>", "</s>", "<mask>") for piece in ours.tokens(ids)
    ]
    assert "".join(ours.shown(ours.encode("the catalog"), "the catalog")[1:-1]) == "thecatalog"


def test_shards_hold_the_same_ids(strings, both):
    ours, _ = both
    texts = [text for text in strings if "<" not in text][:500]
    encoded = LibraryIds(Backend.from_str(ours._backend.to_str()), ROBERTA_TOKENS).encode(texts)
    assert encoded.ids.tolist() == [number for ids in ours.encode_ids(texts) for number in ids]
    words = [[word for word in ours.encode(text).words if word is not None] for text in texts]
    assert encoded.words.sum() == sum(len(set(indices)) for indices in words)


def cut_by_twin(backend: Backend, text: str) -> list[str]:
    """The fast tokenizer's words, each cut by the twin."""
    model = json.loads(backend.to_str())["model"]
    words = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
    return [piece for word, _ in words for piece in segment(word, dict(map(tuple, model["vocab"])))]


def test_the_twin_cuts_words_as_the_fast_one(strings, both):
    ours, _ = both
    backend = Backend.from_str(ours._backend.to_str())
    backend.encode_special_tokens = True
    texts = [text for text in strings if not any(name in text for name in ("<", "x" * 1000))]
    assert len(texts) > 2000
    for text in texts[:1500]:
        assert cut_by_twin(backend, text) == backend.encode(text, add_special_tokens=False).tokens, text


SCORES = st.floats(-12, 0).map(lambda score: round(score, 1))  # ties are frequent


@settings(max_examples=300)
@given(
    pieces=st.dictionaries(st.text("ab\u00e9\u4e2d", min_size=1, max_size=4), SCORES, max_size=20),
    word=st.text("ab\u00e9\u4e2d!?", max_size=30),
)
def test_the_twin_on_any_vocabulary(pieces, word):
    from tokenizers.models import Unigram

    scores = {"<unk>": 0.0, **pieces}
    backend = Backend(Unigram(list(scores.items()), unk_id=0))
    assert segment(word, scores) == backend.encode(word, add_special_tokens=False).tokens
