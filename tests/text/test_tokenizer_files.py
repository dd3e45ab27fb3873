"""The tokenizer's files: every layout it reads, what transformers makes of what it writes, the faults it names."""

import json
import time
from pathlib import Path

import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer
from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram, WordLevel

from bertkit.errors import RequestError
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.wordpiece import SPECIALS

PIECES = [*SPECIALS, "the", "un", "##aff", "##able", "cat", ",", "A", "中"]
SENTENCES = ["Hello world, hello again.", "The cat doesn't sit; naïve cafés 😀 do!", "  spaces   and\ttabs\n", ""]


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.from_vocab(PIECES)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    """A folder with the vocab.json and merges.txt of a small byte-level BPE."""
    trainer = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(SENTENCES * 3, vocab_size=330, min_frequency=2, special_tokens=names)
    folder = tmp_path_factory.mktemp("roberta")
    trainer.save_model(str(folder))
    return folder


def write_vocabulary(path: Path, pieces: list[str] = PIECES, end: str = "\n") -> Path:
    path.write_bytes("".join(f"{piece}{end}" for piece in pieces).encode())
    return path


def test_line_ends_and_blank_ends_do_not_matter(tmp_path):
    expected = Tokenizer.from_vocab(PIECES).hash
    for i, end in enumerate(["\n", "\r\n"]):
        path = write_vocabulary(tmp_path / f"{i}.txt", end=end)
        assert Tokenizer.from_vocab(path).hash == expected
        path.write_bytes(path.read_bytes() + b"\n\r\n\n")
        assert Tokenizer.from_vocab(path).hash == expected
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip())
        assert Tokenizer.from_vocab(str(path)).hash == expected


def test_a_blank_line_between_keeps_its_id(tmp_path):
    """SciBERT's released vocabulary has one."""
    path = write_vocabulary(tmp_path / "vocab.txt", [*PIECES[:6], "", *PIECES[6:]])
    tokenizer = Tokenizer.from_vocab(path)
    assert tokenizer.size == len(PIECES) + 1
    assert tokenizer.encode("un").ids == (2, 7, 3)


def test_pieces_of_white_space_are_pieces(tmp_path):
    """The released Chinese vocabulary lists U+2028, which is a line end to some readers."""
    path = write_vocabulary(tmp_path / "vocab.txt", [*PIECES, "\u2028", "\x85", "last"])
    assert Tokenizer.from_vocab(path).vocab["last"] == len(PIECES) + 2


def test_a_folder_with_a_vocabulary_and_settings(tmp_path):
    write_vocabulary(tmp_path / "vocab.txt", ["<p>", "<u>", "<c>", "<e>", "<m>", "A", "á", "中文"])
    names = {"pad_token": "<p>", "unk_token": "<u>", "cls_token": "<c>", "sep_token": {"content": "<e>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names | {"mask_token": "wrong"}))
    settings = {"mask_token": "<m>", "do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "BertTokenizerFast"}))
    for path in (tmp_path, tmp_path / "vocab.txt"):
        tokenizer = Tokenizer.load(path)
        assert tokenizer.tokens(tokenizer.encode("A á 中文 <m> x").ids) == [
            "<c>",
            "A",
            "á",
            "中文",
            "<m>",
            "<u>",
            "<e>",
        ]
    tokenizer.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs("A á 中文 <m> x")["input_ids"] == list(tokenizer.encode("A á 中文 <m> x").ids)


def test_without_settings_a_vocabulary_with_capitals_is_cased(tmp_path, cased_vocab, uncased_vocab, simbert):
    assert not Tokenizer.load(cased_vocab).lowercase
    assert Tokenizer.load(uncased_vocab).lowercase
    assert Tokenizer.load(simbert).lowercase
    amino_acids = write_vocabulary(tmp_path / "vocab.txt", [*SPECIALS, *"LAGVESIKRDTPNQFYMHCW"])
    tokenizer = Tokenizer.load(amino_acids)
    assert (tokenizer.size, tokenizer.lowercase) == (25, False)
    assert tokenizer.encode("E V Q").ids == (2, 9, 8, 18, 3)


def test_a_tokenizer_json_is_read_without_its_cuts(minilm, uncased_vocab):
    """This one is saved with truncation at 128 and padding to 128."""
    tokenizer = Tokenizer.load(minilm)
    assert len(tokenizer.encode("cat")) == 3
    assert len(tokenizer.encode("cat " * 600)) == 602
    assert tokenizer.hash == Tokenizer.from_vocab(uncased_vocab).hash
    assert Tokenizer.load(minilm / "tokenizer.json").hash == tokenizer.hash


def test_the_hash_knows_every_setting():
    variants = [{}, {"lowercase": False}, {"strip_accents": False}, {"split_cjk": False}]
    hashes = [Tokenizer.from_vocab(PIECES, **variant).hash for variant in variants]
    hashes.append(Tokenizer.from_vocab([*PIECES, "more"]).hash)
    hashes.append(Tokenizer.from_vocab([*PIECES[:-2], *PIECES[:-3:-1]]).hash)
    assert len(set(hashes)) == 6
    # Shards made years ago carry this: it must not move.
    assert hashes[0] == "deb6f7234f560292f726a56f16a4c9df420addb44c0952a8539c9886b1f14ae8"


def test_a_bare_tokenizer_json_gets_its_special_tokens(tmp_path):
    backend = Backend(WordLevel({"x": 0}))
    state = json.loads(backend.to_str())
    state["model"] = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: i for i, piece in enumerate(PIECES)},
    }
    state["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the [MASK]", "cat").ids == (2, 5, 4, 3, 9, 3)
    tokenizer.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs("the [MASK]", "cat")["input_ids"] == [2, 5, 4, 3, 9, 3]
    assert Tokenizer.load(tmp_path / "saved").hash == tokenizer.hash


def test_a_unigram_tokenizer_json(tmp_path):
    """ALBERT's kind."""
    pieces = [
        ("<pad>", 0.0),
        ("<unk>", 0.0),
        ("[CLS]", 0.0),
        ("[SEP]", 0.0),
        ("[MASK]", 0.0),
        ("ca", -1.0),
        ("t", -2.0),
    ]
    Backend(Unigram(pieces, unk_id=1)).save(str(tmp_path / "tokenizer.json"))
    names = {"pad_token": "<pad>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("cat[MASK]").ids == (2, 5, 6, 4, 3)
    tokenizer.save(tmp_path / "saved")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")("cat[MASK]")["input_ids"] == [2, 5, 6, 4, 3]


def test_extra_pieces_of_a_tokenizer_json_survive(tmp_path, small):
    backend = Backend.from_str(small._backend.to_str())
    backend.add_tokens(["gadolinium"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.size == len(PIECES) + 1
    tokenizer.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    expected = (2, 5, len(PIECES), 3)
    assert tokenizer.encode("the gadolinium").ids == expected == tuple(theirs("the gadolinium")["input_ids"])
    assert Tokenizer.load(tmp_path / "saved").encode("the gadolinium").ids == expected


def roberta_reference(folder: Path, **options) -> transformers.RobertaTokenizer:
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    return transformers.RobertaTokenizer.from_pretrained(folder, mask_token=mask, **options)


def equals_reference(ours: Encoding, theirs: transformers.BatchEncoding, i: int) -> bool:
    same = list(ours.ids) == theirs["input_ids"][i] and list(ours.words) == theirs.word_ids(i)
    return same and list(ours.offsets) == theirs["offset_mapping"][i] and not any(ours.segments)


@pytest.mark.parametrize("space", [False, True])
def test_roberta_equals_transformers(roberta, tmp_path, space):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((roberta / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": space}))
    tokenizer = Tokenizer.load(tmp_path)
    theirs = roberta_reference(tmp_path, add_prefix_space=space)
    texts = [*SENTENCES, "hello <mask> again <mask>", "中\u0301\x00 \u3000x", " a  b ", "<s> </s>"]
    pairs = texts[::-1]
    singles, both = (theirs(*parts, return_offsets_mapping=True) for parts in ((texts,), (texts, pairs)))
    assert all(equals_reference(ours, singles, i) for i, ours in enumerate(tokenizer.encode_batch(texts)))
    for i, ours in enumerate(tokenizer.encode_batch(texts, pairs)):
        assert equals_reference(ours, both, i)
        assert ours.part == tuple(both.sequence_ids(i))
    assert not tokenizer.lowercase


def test_roberta_words_given_apart_have_their_spaces(roberta):
    tokenizer = Tokenizer.load(roberta)
    theirs = roberta_reference(roberta, add_prefix_space=True)
    sentences = [["hello", "world"], ["cafés", "do", "!"], []]
    expected = theirs(sentences, is_split_into_words=True, return_offsets_mapping=True)
    encodings = tokenizer.encode_words_batch(sentences)
    assert all(equals_reference(ours, expected, i) for i, ours in enumerate(encodings))
    assert tokenizer.decode(encodings[0].ids) == " hello world"


def test_roberta_saved_and_reloaded(roberta, tmp_path):
    tokenizer = Tokenizer.load(roberta)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.RobertaTokenizer)
    encoded = theirs(SENTENCES, return_offsets_mapping=True)
    encodings = tokenizer.encode_batch(SENTENCES)
    assert all(equals_reference(ours, encoded, i) for i, ours in enumerate(encodings))
    assert theirs("a <mask>")["input_ids"] == list(tokenizer.encode("a <mask>").ids)
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash
    (tmp_path / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash
    assert tokenizer.decode(tokenizer.encode(SENTENCES[1]).ids) == SENTENCES[1]


def test_saving_twice_replaces(small, tmp_path):
    Tokenizer.from_vocab([*SPECIALS, "old"]).save(tmp_path)
    small.save(tmp_path)
    assert Tokenizer.load(tmp_path).hash == small.hash
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"vocab\.txt is empty"),
        (b"\n\n", r"vocab\.txt is empty"),
        (b"[PAD]\n[UNK]\n[CLS]\n[MASK]\nx\n", r"vocab\.txt has no \[SEP\]; add what is missing"),
        (b"x\n", r"has no \[PAD\] and no \[UNK\] and no \[CLS\] and no \[SEP\] and no \[MASK\]"),
        (b"[PAD]\na\n[UNK]\na\n", r"lists 'a' twice, in line 2 and line 4"),
        (b"[PAD]\n\n[UNK]\n\nx\n", r"lists '' twice, in line 2 and line 4"),
        (b"[PAD]\n\xff\n", r"vocab\.txt, line 2: not UTF-8"),
        (b"[PAD]\na\0b\n", r"vocab\.txt, line 2: a NUL byte"),
        ("[PAD]\n[UNK]\n".encode("utf-16"), r"line 1: a NUL byte; this is no text file, or one in UTF-16"),
        (b"[PAD]\na\rb\n", r"line 2: 'a\\rb' is no text of one line"),
    ],
)
def test_a_faulty_vocabulary_is_named(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    for read in (Tokenizer.from_vocab, Tokenizer.load):
        with pytest.raises(RequestError, match=message):
            read(path)


def test_a_faulty_list_of_pieces_is_named():
    with pytest.raises(RequestError, match=r"the vocabulary lists 'the' twice, in entry 6 and entry 7"):
        Tokenizer.from_vocab([*SPECIALS, "the", "the"])
    with pytest.raises(RequestError, match=r"the vocabulary is empty"):
        Tokenizer.from_vocab([])
    for bad in (None, 7, "a\nb", "\ud800"):
        with pytest.raises(RequestError, match=r"the vocabulary, entry 6: .* is no text of one line"):
            Tokenizer.from_vocab([*SPECIALS, bad])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_lower_case": "false"}, r"give 'false' as do_lower_case; give true or false"),
        ({"strip_accents": 1}, r"give 1 as strip_accents"),
        ({"mask_token": 4}, r"give 4 as mask_token; give a str"),
        ({"mask_token": {"content": None}}, r"give None as mask_token"),
        ({"mask_token": "<blank>"}, r"vocab\.txt has no <blank>"),
    ],
)
def test_faulty_settings_are_named(tmp_path, settings, message):
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(RequestError, match=message):
        Tokenizer.load(tmp_path)


def test_pieces_known_to_an_added_tokens_file_alone_are_not_lost(tmp_path):
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "added_tokens.json").write_text('{"[MASK]": 4}')
    assert Tokenizer.load(tmp_path).size == len(PIECES)
    (tmp_path / "added_tokens.json").write_text('{"gadolinium": 13}')
    with pytest.raises(RequestError, match=r"added_tokens\.json adds 'gadolinium' to the vocabulary"):
        Tokenizer.load(tmp_path)


def test_one_id_for_two_pieces_is_refused(tmp_path):
    state = whole_state()
    state["model"]["vocab"]["again"] = 5
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(RequestError, match=r"tokenizer\.json gives one id to two pieces"):
        Tokenizer.load(tmp_path)


def test_gaps_between_ids_are_kept(tmp_path):
    state = whole_state()
    state["model"]["vocab"]["far"] = 40
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.size, tokenizer.encode("far").ids) == (41, (2, 40, 3))
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("far").ids == (2, 40, 3)
    assert not (tmp_path / "saved" / "vocab.txt").exists()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs("far")["input_ids"] == [2, 40, 3]


def test_missing_files_are_named(tmp_path):
    with pytest.raises(RequestError, match=r"nothing does not exist; name a folder"):
        Tokenizer.load(tmp_path / "nothing")
    with pytest.raises(RequestError, match=r"holds no tokenizer; put a tokenizer\.json"):
        Tokenizer.load(tmp_path)
    with pytest.raises(RequestError, match=r"vocab\.txt cannot be read: No such file"):
        Tokenizer.from_vocab(tmp_path / "vocab.txt")
    (tmp_path / "spiece.model").write_bytes(b"\x0a")
    with pytest.raises(
        RequestError, match=r"SentencePiece model, which bertkit does not read; put the tokenizer\.json"
    ):
        Tokenizer.load(tmp_path)


def whole_state() -> dict:
    return json.loads(Tokenizer.from_vocab(PIECES)._backend.to_str())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_torn_tokenizer_json(tmp_path, share):
    whole = json.dumps(whole_state())
    (tmp_path / "tokenizer.json").write_text(whole[: int(share * len(whole))])
    with pytest.raises(RequestError, match=r"tokenizer\.json is not whole JSON .* in line 1, column"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}, r"holds a WordLevel model; bertkit reads"),
        ({"model": None}, r"is not a tokenizer\.json that can be read: "),
        ({"model": {"type": "WordPiece", "vocab": {}}}, r"is not a tokenizer\.json that can be read: "),
        ({"normalizer": {"type": "Hostile"}}, r"is not a tokenizer\.json that can be read: "),
        ({"pre_tokenizer": 7}, r"is not a tokenizer\.json that can be read: "),
        ({"version": "9.0"}, r"is not a tokenizer\.json that can be read: "),
    ],
)
def test_a_foreign_tokenizer_json(tmp_path, change, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole_state() | change))
    with pytest.raises(RequestError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "holds a JSON list"), ("[" * 100_000, "nested too deeply|not whole JSON"), ("nul", "not whole JSON")],
)
def test_hostile_json(tmp_path, text, message):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(RequestError, match=message):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_json_without_its_special_pieces(tmp_path):
    state = whole_state()
    del state["model"]["vocab"]["[MASK]"]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(RequestError, match=r"tokenizer\.json has no \[MASK\]"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ("{}", "", r"vocab\.json has no <pad>"),
        ('{"a": "b"}', "", r"vocab\.json is no vocabulary"),
        ('{"a": 0, "b": 0}', "", r"vocab\.json is no vocabulary: it must give each of its 2 pieces an id"),
        ('{"a": 1099511627776}', "", r"vocab\.json is no vocabulary"),
        ('{"a": [0]}', "", r"vocab\.json is no vocabulary"),
        ('{"\\ud800": 0}', "", r"vocab\.json is no vocabulary"),
        ('{"a": 0}', "", r"vocab\.json has no <pad>"),
        (None, "#version: 0.2\nlonely\n", r"merges\.txt, line 2: 'lonely' is no pair"),
        (None, "h zzz\n", r"merges\.txt, line 1: 'h zzz' is no pair"),
        (None, None, r"merges\.txt cannot be read: No such file"),
    ],
)
def test_faulty_byte_level_files(roberta, tmp_path, vocab, merges, message):
    (tmp_path / "vocab.json").write_text(vocab or (roberta / "vocab.json").read_text())
    if merges is not None:
        (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(RequestError, match=message):
        Tokenizer.load(tmp_path)


def test_a_class_that_cuts_words_first_is_refused(tmp_path):
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(RequestError, match=r"belongs to a BertJapaneseTokenizer, which bertkit reads from a"):
        Tokenizer.load(tmp_path)


def test_a_million_characters_in_bytes(roberta):
    tokenizer = Tokenizer.load(roberta)
    began = time.monotonic()
    for text in ("hello world " * 83_334, "a" * 1_000_000, "\0" * 1_000_000):
        assert len(tokenizer.encode(text)) > 2
    assert time.monotonic() - began < 30
