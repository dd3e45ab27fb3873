"""Reading shards: global indices, ranges, names, other processes; and every kind of damage named."""

import json
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from shard_helpers import TEXTS, everything, make_again, snapshot, write_made

from bertkit.errors import RequestError
from bertkit.text.shards import reader as shards
from bertkit.text.shards.reader import open_shards
from bertkit.text.shards.writer import write_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS


@pytest.fixture(scope="module")
def made_once(uncased_vocab, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_made(folder, uncased_vocab)
    return folder


@pytest.fixture
def made(made_once, tmp_path) -> Path:
    """A folder of several shards, with the texts and names it was made from beside it."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "made"


@pytest.fixture
def corpus(made) -> list[Path]:
    return sorted((made.parent / "texts").iterdir())


def test_the_manifest_says_what_is_there(made):
    opened = open_shards(made)
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["totals"]["tokens"] == opened.tokens == opened.sentence_starts[-1]
    assert manifest["totals"]["documents"] == opened.documents == len(opened.document_starts) - 1
    assert manifest["totals"]["words"] == opened.gather([0], [opened.tokens])[1].sum()
    assert manifest["tokenizer"] == opened.tokenizer.hash
    assert (manifest["vocabulary"], manifest["dtype"]) == (30522, "uint16")
    assert [source["name"] for source in manifest["sources"]] == ["empty-ish.txt", "one.txt", "three.txt", "two.jsonl"]
    assert manifest["sources"][1]["bytes"] == len(TEXTS["one.txt"].encode())
    assert opened.document_starts[-1] == opened.sentences
    for number, end in enumerate(opened.shard_starts[1:-1].tolist()):
        assert end in opened.sentence_starts[opened.document_starts], f"a document crosses shard {number}"


def test_names_have_their_places(made):
    opened = open_shards(made)
    texts = [opened.tokenizer.decode(opened.gather([a], [b - a])[0]) for a, b in opened.entities.tolist()]
    assert texts == ["new york", "paris"]
    assert opened.manifest["totals"]["entities"] == 2


def test_reading_is_zero_copy_and_stays_in_one_shard(made):
    opened = open_shards(made)
    ids, words = opened.read(2, 6)
    assert ids.base is not None
    assert not ids.flags.writeable
    assert (ids.tolist(), words.tolist()) == tuple(part.tolist() for part in opened.gather([2], [4]))
    border = int(opened.shard_starts[1])
    with pytest.raises(RequestError, match="reach over the end of shard 0"):
        opened.read(border - 1, border + 1)
    assert [len(part) for part in opened.read(opened.tokens, opened.tokens)] == [0, 0]
    for start, stop in [(-1, 2), (3, 2), (0, opened.tokens + 1)]:
        with pytest.raises(RequestError, match="were asked for"):
            opened.read(start, stop)


def test_gather_is_many_reads(made, monkeypatch):
    monkeypatch.setattr(shards, "MAX_OPEN_FILES", 2)  # fewer than shards: they are closed and opened again
    opened = open_shards(made)
    ids, words = (
        np.concatenate(parts) for parts in zip(*(opened.read(*pair) for pair in _shard_bounds(opened)), strict=True)
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(opened.tokens, size=20)
        lengths = np.minimum(rng.integers(0, rng.choice([5, 400]), size=20), opened.tokens - starts)
        found = opened.gather(starts, lengths)
        places = [range(a, a + n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        flat = [place for each in places for place in each]
        assert found[0].tolist() == ids[flat].tolist()
        assert found[1].tolist() == words[flat].tolist()
        assert found[0].dtype == np.uint16
    assert [len(part) for part in opened.gather([], [])] == [0, 0]
    for start, length in [(-1, 2), (0, opened.tokens + 1), (opened.tokens, 1), (3, -1)]:
        with pytest.raises(RequestError, match="outside the tokens"):
            opened.gather([0, start], [1, length])


def _shard_bounds(opened) -> list[tuple[int, int]]:
    return list(zip(opened.shard_starts[:-1].tolist(), opened.shard_starts[1:].tolist(), strict=True))


def test_gather_is_quick(made):
    opened = open_shards(made)
    starts = np.random.default_rng(0).integers(opened.tokens - 128, size=4096)
    lengths = np.full(4096, 128)
    began = time.perf_counter()
    opened.gather(starts, lengths)
    # 50 million tokens/s and more here; the loader needs 10, and the machine may be busy.
    assert 4096 * 128 / (time.perf_counter() - began) > 2e6


def test_a_shard_set_travels_to_other_processes(made):
    opened = open_shards(made)
    _ = opened.sentence_starts, opened.read(0, 1)
    raw = pickle.dumps(opened)
    assert len(raw) < 1000
    assert everything(pickle.loads(raw)) == everything(opened)


def test_a_corpus_of_one_document(uncased_vocab, tmp_path):
    (tmp_path / "one.txt").write_text("One.", encoding="utf-8")
    write_shards(str(tmp_path / "one.txt"), uncased_vocab, tmp_path / "single")
    assert everything(open_shards(tmp_path / "single")) == [[([2028, 1012], [1, 1])]]
    with pytest.raises(RequestError, match="holds no entity spans; make the shards with --entities"):
        _ = open_shards(tmp_path / "single").entities


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    pieces = [*SPECIALS, *(f"w{number}" for number in range(70_000))]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (tmp_path / "a.txt").write_text("w0 w69999 w65536\n")
    write_shards([tmp_path / "a.txt"], tmp_path / "vocab.txt", tmp_path / "out", processes=1)
    opened = open_shards(tmp_path / "out")
    ids, _ = opened.read(0, 3)
    assert (ids.tolist(), ids.dtype, opened.manifest["dtype"]) == ([5, 70_004, 65_541], np.uint32, "uint32")


def test_another_vocabulary_is_refused(made, cased_vocab, uncased_vocab):
    opened = open_shards(made)
    opened.require_tokenizer(Tokenizer.load(uncased_vocab))
    with pytest.raises(RequestError, match="made was made with another vocabulary"):
        opened.require_tokenizer(Tokenizer.load(cased_vocab))
    shutil.rmtree(made / "tokenizer")
    Tokenizer.load(cased_vocab).save(made / "tokenizer")
    with pytest.raises(RequestError, match="another vocabulary"):
        _ = open_shards(made).tokenizer


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


FILES = ["tokens.bin", "words.bin", "sentences.bin", "documents.bin", "entities.bin"]
DAMAGE = {
    "truncated": (_truncate, "bytes, not"),
    "flipped": (_flip, "is damaged"),
    "missing": (Path.unlink, "is missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_and_the_same_request_repairs_it(made, corpus, uncased_vocab, kind, name):
    before = snapshot(made)
    damage, words = DAMAGE[kind]
    shard = next(each for each in sorted(made.glob("shard-*")) if (each / name).stat().st_size > 0)
    damage(shard / name)
    with pytest.raises(RequestError, match=f"{shard.name}/{name} .*{words}.*given again, repairs it"):
        open_shards(made, verify=True)
    if kind != "flipped":
        with pytest.raises(RequestError, match=words):
            open_shards(made)
    report = make_again(corpus, uncased_vocab, made)
    assert report["kept"] == report["shards"] - 1
    assert snapshot(made) == before


def test_bounds_out_of_order_are_damage_even_unverified(made):
    path = made / "shard-00001" / "sentences.bin"
    numbers = np.fromfile(path, "<i8")
    numbers[1] = 10**9
    numbers.tofile(path)
    with pytest.raises(RequestError, match="sentences.bin is damaged: its bounds are not in order"):
        _ = open_shards(made).sentence_starts


def test_an_id_beyond_the_vocabulary_is_one_sentence(made):
    path = made / "shard-00001" / "tokens.bin"
    ids = np.fromfile(path, "<u2")
    ids[1] = 65535
    ids.tofile(path)
    opened = open_shards(made)
    with pytest.raises(RequestError, match="made is damaged: it holds the id 65535, and its vocabulary ends at 30521"):
        opened.gather([0], [opened.tokens])


def test_a_missing_shard_manifest_or_folder(made, tmp_path):
    shutil.rmtree(made / "shard-00001")
    with pytest.raises(RequestError, match="shard-00001/tokens.bin is missing"):
        open_shards(made)
    (made / "manifest.json").unlink()
    with pytest.raises(RequestError, match="made is unfinished; give the 'bertkit shards' command again"):
        open_shards(made)
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(RequestError, match="holds no shards; make some"):
            open_shards(folder)


def _changed(manifest, **changes):
    return json.dumps({**manifest, **changes})


BAD_MANIFESTS = {
    "torn": lambda manifest: json.dumps(manifest)[:-9],
    "no object": lambda manifest: "[1, 2]",
    "binary": lambda manifest: "\x00\ud800",
    "no shards": lambda manifest: _changed(manifest, shards=None),
    "fewer shards": lambda manifest: _changed(manifest, shards=manifest["shards"][:-2]),
    "other counts": lambda manifest: _changed(manifest, totals={**manifest["totals"], "tokens": 5}),
    "other type": lambda manifest: _changed(manifest, dtype="uint32"),
    "no type": lambda manifest: _changed(manifest, dtype="float64"),
    "hostile path": lambda manifest: json.dumps(manifest).replace("tokens.bin", "../../tokens.bin"),
}


@pytest.mark.parametrize("kind", BAD_MANIFESTS)
def test_a_damaged_manifest_is_one_sentence(made, kind):
    path = made / "manifest.json"
    text = BAD_MANIFESTS[kind](json.loads(path.read_text()))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RequestError, match="manifest.json is damaged .*repairs it"):
        open_shards(made)


def test_a_manifest_of_the_future_is_refused(made):
    path = made / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(RequestError, match="is of version 99, not 1"):
        open_shards(made)


def test_a_damaged_tokenizer_is_repaired(made, corpus, uncased_vocab):
    before = snapshot(made)
    (made / "tokenizer" / "tokenizer.json").write_text("{}")
    make_again(corpus, uncased_vocab, made)
    assert snapshot(made) == before
