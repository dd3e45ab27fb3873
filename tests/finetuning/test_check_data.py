"""What `check_data` finds, each fault planted in a small file, and that clean files come out clean."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from bertkit.data.tables import Columns, Location
from bertkit.errors import RequestError
from bertkit.finetuning.check.check_data import check_data, token_counts
from bertkit.finetuning.check.faults import folded
from bertkit.tasks.read import read_examples
from bertkit.text.tokenizer import Tokenizer

HERE = Location(Path("a.tsv"), 1)


@pytest.fixture
def write(tmp_path):
    def make(name: str, *rows: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        return path

    return make


@pytest.fixture(scope="module")
def tokenizer(uncased_vocab):
    return Tokenizer.load(uncased_vocab)


CLEAN = ["text\tlabel", *(f"sentence number {n}\t{'no' if n % 2 else 'yes'}" for n in range(20))]


def found(report, part="notes") -> dict[str, tuple[int, str]]:
    return {finding.what: (finding.count, finding.first) for finding in getattr(report, part)}


def test_a_clean_file_has_nothing_to_say(write):
    report = check_data(write("train.tsv", *CLEAN))
    assert (report.task, report.stops, report.notes) == ("classify", (), ())
    assert report.files[0].labels == {"yes": 10, "no": 10}
    assert report.files[0].examples == 20


def test_repeated_and_contradicting_examples(write):
    path = write("train.tsv", *CLEAN, "Sentence  NUMBER 0\tyes", "sentence number 1\tyes")
    notes = found(check_data(path))
    assert notes["repeated examples with the same label"] == (1, f"the first is {path}, line 22, as in line 2")
    count, first = notes["repeated examples with another label"]
    assert (count, first) == (1, f"the first is {path}, line 23, as in line 3, as 'yes' and as 'no'")


def test_leaks_exact_and_folded(write):
    train = write("train.tsv", *CLEAN)
    dev = write("dev.tsv", "text\tlabel", "sentence number 3\tno", "SENTENCE number 4 \tyes", "unseen\tno", "new\tyes")
    notes = found(check_data(train, dev))
    exact = f"the first is {dev}, line 2, as in {train}, line 5"
    assert notes["dev examples that are in train, letter by letter"] == (1, f"{exact} (25.0% of dev)")
    assert notes["dev examples that are in train, case and spaces aside"] == (2, f"{exact} (50.0% of dev)")
    same = found(check_data(train, write("same.tsv", "text\tlabel", "sentence number 3\tno", "x\tyes")))
    assert "dev examples that are in train, case and spaces aside" not in same


def test_a_pair_leaks_only_as_a_pair(write):
    train = write("train.tsv", "sentence1\tsentence2\tlabel", "a\tb\t0", "c\td\t1")
    dev = write("dev.tsv", "sentence1\tsentence2\tlabel", "a\td\t0", "ab\t\t1")
    assert not any("in train" in what for what in found(check_data(train, dev)))


def test_labels(write):
    many = [f"text {n}\tcommon" for n in range(60)]
    train = write("train.tsv", "text\tlabel", *many, "x\trare", "y\tRare", "z\trare")
    dev = write("dev.tsv", "text\tlabel", "w\tcommon", "v\tnever seen")
    report = check_data(train, dev)
    notes = found(report)
    assert "'common' has 60 rows, 'Rare' 1" in notes["uneven labels"][1]
    assert notes["labels with under 5 rows"][0] == 2
    assert notes["labels that differ in case or spaces only"] == (2, f"'rare' in {train}")
    assert found(report, "stops")["labels in dev that are not in train"][0] == 1
    only = check_data(write("one.tsv", "text\tlabel", "a\tx", "b\tx"), task="classify")
    assert "every row" in found(only, "stops")["one label only"][1]
    flat = check_data(write("flat.tsv", "sentence1\tsentence2\tscore", "a\tb\t2.5", "c\td\t2.5"), task="regress")
    assert "one number only" in found(flat, "stops")


def test_spoiled_characters(write):
    spoiled = ["caf\ufffd\tx", "cafÃ©\ty", "it\x92s\tx", "a &amp; b<br />\ty", " \tx"]
    path = write("train.tsv", "text\tlabel", *spoiled, "café, naïve Ångström â €\ty")
    notes = found(check_data(path))
    assert len(notes) == 6, notes
    for line, word in enumerate(["U+FFFD", "Latin-1", "control", "HTML", "empty"], start=2):
        (first,) = [first for what, (_, first) in notes.items() if word in what]
        assert f"{path}, line {line}" in first
    assert "labels with under 5 rows" in notes


def test_rows_that_cannot_be_used_are_all_counted(write):
    rows = ['{"text": "a", "label": "x"}', "{", '{"text": "b"}', '{"text": "c", "label": "y"}', '{"label": "x"}']
    report = check_data(write("train.jsonl", *rows))
    (stop,) = report.stops
    assert (stop.count, len(stop.more)) == (3, 2)
    assert "line 2" in stop.first
    assert report.files[0].examples == 2


def test_a_file_without_labels_is_read_and_stops(write):
    report = check_data(write("test.tsv", "index\tsentence", "0\ta", "1\tA"))
    assert "no labels" in found(report, "stops")
    assert report.files[0].examples == 2
    assert "repeated examples with the same label" in found(report)


def test_a_file_that_cannot_be_read_raises(write, tmp_path):
    (tmp_path / "bad.tsv").write_bytes(b"text\tlabel\n\xff\t1\n")
    with pytest.raises(RequestError, match="line 2"):
        check_data(tmp_path / "bad.tsv")
    with pytest.raises(RequestError, match="does not exist|cannot be read"):
        check_data(write("train.tsv", *CLEAN), tmp_path / "missing.tsv")


def test_broken_tags(write):
    good = ["B-PER", "I-PER", "O", "B-LOC"]
    rows = [line for _ in range(5) for line in (*(f"w {tag}" for tag in good), "")]
    path = write("train.conll", *rows, "x O", "y I-LOC", "z B-LOC")
    report = check_data(path)
    assert report.task == "tag"
    (stop,) = report.stops
    assert stop.what == "sentences with tags that IOB2 forbids"
    assert stop.first.startswith(f"{path}, line 26, word 2")
    with pytest.raises(RequestError, match="line 26"):
        read_examples("tag", path)
    assert check_data(write("clean.conll", *rows)).stops == ()


def test_answers_that_are_not_in_the_passage(write):
    def question(number: int, start: int) -> dict:
        return {"id": str(number), "question": f"q{number}", "answers": [{"text": "Ada", "answer_start": start}]}

    paragraphs = [{"context": "Ada was here.", "qas": [question(1, 0), question(2, 4), question(3, -3)]}]
    train = write("train.json", json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    one = [{"context": "ADA was  here.", "qas": [{"id": "9", "question": "new", "answers": []}]}]
    dev = write("dev.json", json.dumps({"data": [{"title": "t", "paragraphs": one}]}))
    report = check_data(train, dev)
    (stop,) = report.stops
    assert stop.count == 2
    assert "question 2 (id 2)" in stop.first
    assert found(report)["dev questions on a passage of train"][0] == 1
    assert report.files[1].labels == {"no answer": 1}


def test_lengths_are_those_of_the_tokenizer(write, tokenizer):
    path = write("train.tsv", "text\tlabel", "one two three\tx", f"{'word ' * 30}\ty")
    report = check_data(path, tokenizer=tokenizer, limit=16)
    lengths = report.files[0].lengths
    assert lengths is not None
    assert (lengths.longest, lengths.over, lengths.limit) == (32, 1, 16)
    assert found(report)["examples over 16 tokens"][0] == 1
    assert check_data(path).files[0].lengths is None


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXT, st.none() | TEXT), min_size=1, max_size=5))
def test_counts_equal_those_of_whole_encodings(tokenizer, pairs):
    examples = [TextExample(text, pair, None, HERE) for text, pair in pairs]
    assert token_counts(examples, tokenizer) == [len(tokenizer.encode(text, pair)) for text, pair in pairs]


def test_counts_of_the_other_kinds(tokenizer):
    asked = QuestionExample("1", "who ran", "Ada ran home", (), "", HERE)
    chosen = ChoiceExample("who ran", ("a", "a long long answer"), 0, HERE)
    both = [len(tokenizer.encode("who ran", "Ada ran home")), len(tokenizer.encode("who ran", "a long long answer"))]
    assert token_counts([asked, chosen], tokenizer) == both
    tagged = TaggedExample(("Unbelievably", "so"), None, HERE)
    assert token_counts([tagged], tokenizer) == [len(tokenizer.encode_words(tagged.words))]


@given(TEXT)
def test_folding_is_idempotent_and_blind_to_case_and_space(text):
    assert folded(folded(text)) == folded(f" {text}\t") == folded(text)


def test_the_report_prints_and_goes_through_json(write):
    path = write("train.tsv", *CLEAN, "sentence number 1\tyes")
    report = check_data(path)
    lines = str(report).splitlines()
    assert lines[0] == "task      classify"
    assert lines[1] == f"file      {path}: text = text, label = label (2 labels, 21 rows)"
    assert lines[2] == "labels    yes 11 (52.4%), no 10 (47.6%)"
    assert lines[3].startswith("note: repeated examples with another label: 1; ")
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["files"][0]["labels"] == {"yes": 11, "no": 10}
    assert plain["notes"][0]["count"] == 1


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        (["text,score", "a,1", "b,2"], "regress"),
        (["text,label", "a,1", "b,2"], "classify"),
        (["text,label", "a,1.5", "b,2.25"], "regress"),
        (["text,label", "a,x|y", "b,x"], "multilabel"),
        (["text,toxic,rude", "a,0,1", "b,1,1"], "multilabel"),
        (["question,passage,label", "a,b,true", "c,d,false"], "classify"),
    ],
)
def test_the_task_is_guessed(write, rows, task):
    assert check_data(write("train.csv", *rows), columns=Columns()).task == task
