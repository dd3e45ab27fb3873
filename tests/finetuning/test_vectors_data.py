"""What vectors learn from: lines, documents, pairs and scored pairs, told apart by what a file holds."""

import gzip
import json

import numpy as np
import pytest

from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.data import read_corpus, read_texts, scaled
from bertkit.finetuning.embeddings.settings import VectorTuning, read_vector_request

DOCUMENTS = """The first river runs to the sea. The second river runs to a lake. A third one dries up in summer.
It is known for its stones.

Another text begins here today. Yes. It goes on for a while. And then it ends at last.
"""


def test_lines_are_texts_of_their_own(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("One line. With two sentences.\nshort\n  Ünïcode 你好 😀  \nshort\n", encoding="utf-8")
    found = read_texts([path])
    assert found.kind == "twins"
    assert list(found.texts) == ["One line. With two sentences.", "short", "Ünïcode 你好 😀"]
    assert found.rows.tolist() == [[0], [1], [2], [1]]
    assert found.summary == "lines.txt: 4 texts, a line each"
    with pytest.raises(RequestError, match="has 0 texts or pairs"):
        read_texts([path], kind="neighbors")


def test_documents_give_neighboring_sentences(tmp_path):
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress(DOCUMENTS.encode()))
    found = read_texts([path])
    pairs = [(found.texts[a], found.texts[b]) for a, b in found.rows]
    assert found.kind == "neighbors"
    assert pairs == [
        ("The first river runs to the sea.", "The second river runs to a lake."),
        ("A third one dries up in summer.", "It is known for its stones."),
        ("It goes on for a while.", "And then it ends at last."),
    ], "Yes. is too short, and what stands around it is not next to each other"
    assert "1 sentences under 4 words" in found.summary
    assert read_texts([path], kind="twins").kind == "twins"


def test_jsonl_is_a_corpus_or_pairs(tmp_path):
    corpus, pairs = tmp_path / "c.jsonl", tmp_path / "p.jsonl"
    corpus.write_text(json.dumps({"text": DOCUMENTS.partition("\n\n")[0]}) + "\n")
    assert read_texts([corpus]).kind == "neighbors"
    rows = [{"question1": "how so", "question2": "why so"}, {"question1": "who", "question2": "which one"}]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_texts([pairs])
    assert found.kind == "pairs"
    assert found.texts[found.rows[1, 1]] == "which one"
    other = tmp_path / "o.jsonl"
    other.write_text("".join(json.dumps({"q": "how so", "a": f"like this {n}"}) + "\n" for n in range(3)))
    named = read_texts([other], Columns(text="q", pair="a"))
    assert (named.kind, named.rows.tolist()) == ("pairs", [[0, 1], [0, 2], [0, 3]])


def test_most_takes_an_equal_share_of_each_file(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {n}\n\n" for n in range(50)))
    found = read_corpus([tmp_path / "a.txt", tmp_path / "b.txt"], kind="twins", most=20)
    assert [text[0] for text in found.texts] == ["a"] * 10 + ["b"] * 10


def test_pairs_and_scores(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text("sentence1,sentence2,score\na,b,5\na,c,0\nd,b,2.5\n")
    found = read_texts([path])
    assert found.kind == "scores"
    assert found.rows.tolist() == [[0, 1], [0, 2], [3, 1]], "equal texts have one number"
    assert found.scores.tolist() == [5, 0, 2.5]
    assert scaled(found.scores, path).tolist() == [1, 0, 0.5]
    assert read_texts([path], kind="pairs").scores is None
    plain = tmp_path / "pairs.tsv"
    plain.write_text("query\tpassage\nwho is it\tit is ada\nwhere\tin rome\n")
    assert read_texts([plain]).kind == "pairs"


FAULTS = {
    "one row": ("a.csv", "sentence1,sentence2\na,b\n", {}, "has 1 texts or pairs"),
    "no second text": ("a.csv", "text,score\na,1\nb,2\n", {}, "line 2: a pair has two texts; name the second column"),
    "no scores": ("a.csv", "sentence1,sentence2\na,b\nc,d\n", {"kind": "scores"}, "no column looks like the label"),
    "torn score": ("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,high\n", {}, "line 3: 'score' holds 'high'"),
    "not scores": ("a.txt", "one\ntwo\nthree\n", {"kind": "scores"}, "gives twins, not scores; leave objective= out"),
    "empty": ("a.txt", "", {}, "a.txt"),
    "blank": ("a.txt", "\n \n\n", {}, "holds no text"),
    "one line": ("a.txt", "one\n", {}, "has 1 texts or pairs"),
    "torn JSON": ("a.jsonl", '{"text": "one"}\n{"text"\n', {}, "line 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, fault):
    name, content, options, sentence = FAULTS[fault]
    (tmp_path / name).write_text(content)
    with pytest.raises(RequestError) as error:
        read_texts([tmp_path / name], **options)
    assert sentence in str(error.value)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(RequestError, match="missing.txt"):
        read_texts([tmp_path / "missing.txt"])
    with pytest.raises(RequestError, match="missing.csv"):
        read_texts([tmp_path / "missing.csv"])
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(RequestError, match=r"bad.txt"):
        read_texts([tmp_path / "bad.txt"])
    with pytest.raises(RequestError, match="every pair has the score 3; there is nothing to learn"):
        scaled(np.full(4, 3, dtype=np.float32), tmp_path / "a.csv")


def test_settings_and_columns_come_from_one_list():
    settings, columns = read_vector_request("rank=8", "text=q", "pair=a", "minutes=1.5", "cache=none", "dropout=0.2")
    assert (settings.rank, settings.minutes, settings.cache, settings.dropout) == (8, 1.5, None, 0.2)
    assert (columns.text, columns.pair) == ("q", "a")
    assert VectorTuning(**settings.flat()) == settings


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("rnak=8", "unknown setting 'rnak'; choose from: batch,"),
        ("rank", "'rank' is not of the form key=value"),
        ("rank=many", "rank=many is not a whole number"),
        ("rank=-1", "rank=-1 must be at least 0"),
        ("batch=1", "batch=1 must be at least 2"),
        ("temperature=0", "temperature=0.0 must be over 0"),
        ("temperature=nan", "temperature=nan must be over 0"),
        ("minutes=0", "minutes=0.0 must be over 0"),
        ("warmup=2", "warmup=2.0 must be from 0 to 1"),
        ("dropout=1", "dropout=1.0 must be in [0, 1)"),
        ("objective=sing", "unknown objective 'sing'; choose from: auto,"),
        ("max_length=2", "max_length=2 must be at least 8"),
    ],
)
def test_a_wrong_setting_stops_at_the_door(pair, sentence):
    with pytest.raises(RequestError) as error:
        read_vector_request(pair)
    assert sentence in str(error.value)
