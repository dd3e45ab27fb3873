"""Every format for every task, and every fault with its file, its line and a remedy."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data import delimited
from bertkit.data.columns import named_columns
from bertkit.data.examples import AnswerSpan, ChoiceExample, QuestionExample, TaggedExample, TextExample
from bertkit.data.tables import SAMPLE, Columns, Location, NoLabels
from bertkit.errors import RequestError
from bertkit.finetuning.prepare import DataFiles, read_files
from bertkit.predict.files.rows import open_source
from bertkit.tasks.read import guess_task, read_examples, scan_examples
from bertkit.tasks.table import TASKS

PASSAGE = "Ada Lovelace was born in London 😀 in 1815."


@pytest.fixture
def write(tmp_path):
    """`write("a.tsv", text)` gives the path of a file in a folder of its own."""

    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def squad(*questions: dict, passage: object = PASSAGE) -> str:
    return json.dumps({"data": [{"title": "Ada", "paragraphs": [{"context": passage, "qas": list(questions)}]}]})


def born(**changes) -> dict:
    return {"id": "q1", "question": "Where?", "answers": [{"text": "London", "answer_start": 25}]} | changes


def texts(path: Path, task: str = "classify", **columns) -> list[tuple]:
    read = read_examples(task, path, Columns(**columns)).examples
    return [(e.text, e.pair, e.label) for e in read]


def refused(task: str, path: Path, *words: str, columns: Columns | None = None, error: type = RequestError) -> None:
    with pytest.raises(error) as caught:
        read_examples(task, path, columns)
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in (str(path), *words):
        assert word in sentence, sentence


# --- GLUE's own files -----------------------------------------------------------------------------------------------

GLUE = {
    "sst2": ("classify", "sentence\tlabel\na fine film \t1\n", ("a fine film ", None, "1")),
    "cola": ("classify", "gj04\t0\t*\tThey drank the pub.\ngj04\t1\t\tYes.\n", ("They drank the pub.", None, "0")),
    "mrpc": (
        "classify",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t"A quote, he said.\tHe "quoted" it.\n',
        ('"A quote, he said.', 'He "quoted" it.', "1"),
    ),
    "stsb": (
        "regress",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
        ("A plane.", "An air plane.", 5.0),
    ),
    "sts-original": (
        "regress",
        'main-news\tX\t2012\t1\t2.5\tA "b\tC.\nmain-news\tX\t2012\t2\t5\tD.\tE.\tsource\tsource\n',
        ('A "b', "C.", 2.5),
    ),
    "sts-semeval": (
        "regress",
        "4.4\tThe problem is old.\tAn old problem.\n",
        ("The problem is old.", "An old problem.", 4.4),
    ),
    "rte": ("classify", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n", ("A.", "B.", "entailment")),
    "qnli": ("classify", "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n", ("Who?", "He.", "entailment")),
    "qqp": (
        "classify",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tHow?\tHow so?\t1\n",
        ("How?", "How so?", "1"),
    ),
    "mnli": (
        "classify",
        "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t1\t1n\tfiction\t(A)\tA.\tB.\tneutral\tcontradiction\n",
        ("A.", "B.", "contradiction"),
    ),
    "wnli": ("classify", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t0\n", ("A.", "B.", "0")),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue_files(write, name):
    task, content, first = GLUE[name]
    path = write("train.tsv", content)
    assert texts(path, task)[0] == first
    assert guess_task(path) == task


def test_a_glue_test_file_has_no_labels_and_says_so(write):
    path = write("test.tsv", "index\tsentence\n0\tBill left.\n")
    refused("classify", path, "label=", "index, sentence", error=NoLabels)
    read = read_examples("classify", path, labeled=False)
    assert read.examples == [TextExample("Bill left.", None, None, Location(path, 2))]


def test_labels_are_not_read_where_they_are_not_asked_for(write):
    path = write("a.tsv", "sentence\tlabel\ngood\t\n")
    assert read_examples("classify", path, labeled=False).examples[0].label is None


def test_torn_rows_of_quora_and_rows_without_agreement_are_left_out_and_said(write):
    torn = write("train.tsv", GLUE["qqp"][1] + "torn\n5\t6\t7\tWhy?\tWhy not?\t0\n")
    read = read_examples("classify", torn)
    assert [e.location.line for e in read.examples] == [2, 4]
    assert f"1 rows left out as is usual, the first at {torn}, line 3" in read.summary
    nli = write(
        "dev.jsonl",
        '{"gold_label": "-", "sentence1": "a", "sentence2": "b"}\n' * 2
        + '{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}\n',
    )
    assert [e.label for e in read_examples("classify", nli).examples] == ["neutral"]
    assert len(read_examples("classify", nli, labeled=False).examples) == 3


# --- tables ---------------------------------------------------------------------------------------------------------


def test_what_was_guessed_is_said(write):
    path = write("train.tsv", "sentence\tlabel\n" + "good\t1\nbad\t0\n" * 3)
    assert read_examples("classify", path).summary == f"{path}: text = sentence, label = label (2 labels, 6 rows)"


def test_csv_keeps_quotes_line_ends_and_the_line_where_a_row_begins(write):
    path = write("a.csv", 'text,label\n"one, ""two""\nthree",yes\nfour,no\n')
    read = read_examples("classify", path).examples
    assert [(e.text, e.label, e.location.line) for e in read] == [('one, "two"\nthree', "yes", 2), ("four", "no", 4)]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_files_called_csv_hold_other_marks_as_well(write, mark):
    assert texts(write("a.csv", f"text{mark}label\ngood{mark}1\n")) == [("good", None, "1")]


def test_tabs_with_the_quotes_of_csv_are_known_by_the_whole_file(write):
    quoted = '"He said ""no""."\tx\nplain\ty\n'
    assert texts(write("a.tsv", quoted))[0][0] == 'He said "no".'
    assert texts(write("b.tsv", quoted + 'one " alone\ty\n'))[0][0] == '"He said ""no""."'
    assert texts(write("a.tsv", quoted), quotes=False)[0][0] == '"He said ""no""."'
    assert texts(write("c.tsv", '"all"\tx\n"of it"\ty\n'))[0][0] == '"all"'


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1), st.sampled_from("ab")),
        min_size=1,
    )
)
def test_csv_reads_what_csv_writes(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows([("text", "label"), *rows])
    assert texts(path) == [(text, None, label) for text, label in rows]


CSV_TABS = {  # tab-separated files that only CSV's rules can read: (content, texts)
    "a line end inside a cell": ('text\tlabel\n"one\ntwo"\tx\nthree\ty\n', ["one\ntwo", "three"]),
    "in the last column": ('label\ttext\nx\t"one\n\ntwo"\ny\tthree\n', ["one\n\ntwo", "three"]),
    "a tab inside a cell": ('text\tlabel\n"one\ttwo"\tx\nthree\ty\n', ["one\ttwo", "three"]),
    "doubled quotes across lines": ('text\tlabel\n"a ""b""\nc"\tx\nd\ty\n', ['a "b"\nc', "d"]),
    "a quote inside a plain cell": ('text\tlabel\n"one\ntwo"\tx\n5" disk\ty\n', ["one\ntwo", '5" disk']),
    "without a header": ('"one\ntwo"\tx\nthree\ty\n', ["one\ntwo", "three"]),
}


@pytest.mark.parametrize("name", CSV_TABS)
def test_tabs_are_read_as_csv_where_nothing_else_gives_every_row_its_columns(write, name):
    content, expected = CSV_TABS[name]
    read = read_examples("classify", write("a.tsv", content))
    assert [example.text for example in read.examples] == expected
    assert "quotes read as in CSV" in read.summary


@pytest.mark.parametrize("stdin", [False, True])
def test_prediction_reads_tabs_as_training_does_and_the_first_lines_of_stdin_may_end_inside_a_row(
    write, monkeypatch, stdin
):
    path = write("a.tsv", "text\tlabel\n" + "one\tx\n" * (SAMPLE - 4) + '"two\nlines"\tx\n"three\nlines"\ty\nfour\ty\n')
    if stdin:
        monkeypatch.setattr(delimited, "STDIN", path)
    source = open_source(TASKS["classify"], path, Columns())
    assert [row.values["text"] for row in source.table.rows][-3:] == ["two\nlines", "three\nlines", "four"]
    assert "quotes read as in CSV" in source.note


LITERAL_TABS = {  # files whose quotes are text: (content, texts)
    "stray quotes": ('text\tlabel\na "b" c\tx\nsay "d\ty\n', ['a "b" c', 'say "d']),
    "a lone quote at the start of a cell": ('text\tlabel\n"one\tx\ntwo\ty\n', ['"one', "two"]),
    "two of them": ('text\tlabel\n"one\tx\ntwo\tx\nthree"\ty\n', ['"one', "two", 'three"']),
    "enclosed, but not after a cell's end": ('text\tlabel\n"a" b\tx\nc\ty\n', ['"a" b', "c"]),
}


@pytest.mark.parametrize("name", LITERAL_TABS)
def test_quotes_that_could_be_text_stay_text(write, name):
    content, expected = LITERAL_TABS[name]
    read = read_examples("classify", write("a.tsv", content))
    assert [example.text for example in read.examples] == expected
    assert "read as in CSV" not in read.summary


def test_stray_quotes_around_a_torn_row_do_not_swallow_the_rows_between_them(write):
    rows = '"one\tx\n' + "two\tx\n" * 3 + "torn\n" + "three\tx\n" * 3 + 'four"\ty\n'
    refused("classify", write("a.tsv", "text\tlabel\n" + rows), "line 6", "1 columns where the header has 2")


@given(st.lists(st.tuples(st.text(st.sampled_from('ab \n"')), st.sampled_from("xy")), min_size=1, max_size=4))
def test_tabs_read_what_csv_writes_unless_that_can_be_read_literally(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tabs") / "a.tsv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, "excel-tab", lineterminator="\n").writerows([("text", "label"), *rows])
    lines = [tuple(line.split("\t")) for line in path.read_text().split("\n")[1:] if line.strip()]
    literal = all(len(cells) == 2 for cells in lines) and not any('"' in text for text, _ in rows)
    expected = lines if literal else rows
    assert texts(path) == [(text, None, label) for text, label in expected]


def test_a_header_is_known_by_names_or_by_what_is_under_it(write):
    assert texts(
        write("a.tsv", "verdict\tremark\n" + "good\tI like it\nbad\tI do not\n" * 6), label="verdict", text="remark"
    )[0] == ("I like it", None, "good")
    unknown = write(
        "b.tsv", "verdict\tremark\n" + "".join(f"{'good' if n % 2 else 'bad'}\tThis is remark {n}\n" for n in range(12))
    )
    assert len(texts(unknown, text="2", label="1")) == 12
    assert len(texts(write("c.tsv", "pos\tgood movie\nneg\tbad movie\n" * 9))) == 18
    assert len(texts(write("d.tsv", "pos\tgood movie\nneg\tbad movie\n"))) == 2
    assert len(texts(write("e.tsv", "text\tlabel\ngood\tx\n"), header=False, text="1", label="2")) == 2


def test_columns_can_be_named_in_any_case_and_by_number(write):
    path = write("a.csv", "Body,Title,Stars\nlong text,short,4\n")
    assert texts(path, text="body", pair="Title", label="stars") == [("long text", "short", "4")]
    assert texts(path, text="1", label="3") == [("long text", None, "4")]
    refused("classify", path, "no column 'star'", "Body, Title, Stars", columns=Columns(label="star"))


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, lambda b: pyarrow.compress(b, "zstd", asbytes=True)]
)
def test_compressed_files_read_alike(write, pack):
    suffix = {gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}.get(pack, ".zst")
    packed = pack(b"text\tlabel\ngood\t1\n" * 1)
    assert texts(write(f"a.tsv{suffix}", packed)) == [("good", None, "1")]
    refused("classify", write(f"b.tsv{suffix}", packed[: len(packed) // 2]), "cut off or damaged")


def test_jsonl_json_and_parquet_agree(write, tmp_path):
    rows = [{"text": "good", "label": 1, "extra": None}, {"text": "bad 😀", "label": 0, "extra": "x"}]
    lines = write("a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    whole = write("a.json", json.dumps(rows))
    parquet = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet)
    assert texts(lines) == texts(whole) == texts(parquet) == [("good", None, "1"), ("bad 😀", None, "0")]
    assert str(read_examples("classify", parquet).examples[1].location) == f"{parquet}, row 2"


def test_parquet_files_give_numbered_labels_their_names(tmp_path):
    features = {"tokens": {"feature": {"dtype": "string"}}, "ner_tags": {"feature": {"names": ["O", "B-PER"]}}}
    note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    path = tmp_path / "ner.parquet"
    table = pyarrow.Table.from_pylist([{"tokens": ["Ada", "ran"], "ner_tags": [1, 0]}])
    pyarrow.parquet.write_table(table.replace_schema_metadata(note), path)
    assert read_examples("tag", path).examples == [
        TaggedExample(("Ada", "ran"), ("B-PER", "O"), Location(path, 1, "row"))
    ]
    path.write_bytes(path.read_bytes()[:100])
    refused("tag", path, "cannot be read as Parquet")


def test_latin_1_is_read_when_it_is_named_and_refused_when_not(write):
    path = write("train.label", "LOC:city Which sister\xf0city ?\nHUM:ind Who ?\n".encode("latin-1"))
    refused("classify", path, "line 1", "0xf0", "not UTF-8", "iconv")
    assert texts(path, encoding="latin-1")[0] == ("Which sister\xf0city ?", None, "LOC")
    assert texts(path, encoding="latin-1", label="fine")[0][2] == "LOC:city"
    with pytest.raises(RequestError, match="unknown encoding 'klingon'; choose from: latin-1, utf-8"):
        Columns(encoding="klingon")


def test_odd_unicode_survives(write):
    text = "a\u2028b\x85c\u00a0d e\u0301 \U0010ffff \u202eabc"
    assert texts(write("a.tsv", f"text\tlabel\n{text}\tœuvre\n")) == [(text, None, "œuvre")]


def test_a_document_of_a_million_characters_is_read(write):
    long = "word " * 250_000
    assert texts(write("a.csv", f'text,label\n"{long}",x\n'))[0][0] == long


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "said"), [("|", "split at '|'"), (";", "split at ';'"), (",", "split at ','")])
def test_labels_are_split(write, mark, said):
    path = write("a.tsv", f"text\tlabels\none\tx{mark} y\ntwo\tx\nnone\t\n")
    read = read_examples("multilabel", path)
    assert [e.label for e in read.examples] == [("x", "y"), ("x",), ()]
    assert said in read.summary
    assert read.columns.separator == mark


def test_label_lists_and_label_columns(write):
    lists = write("a.jsonl", '{"text": "a", "labels": ["x", 2]}\n{"text": "b", "labels": []}\n')
    assert [label for *_, label in texts(lists, "multilabel")] == [("x", "2"), ()]
    switches = write("a.csv", "id,comment_text,toxic,insult\n7,a,1,0\n8,b,1,1\n9,c,0,0\n")
    read = read_examples("multilabel", switches)
    assert [e.label for e in read.examples] == [("toxic",), ("toxic", "insult"), ()]
    assert read_examples("multilabel", switches, read.columns).examples == read.examples
    assert texts(switches, "multilabel", label="insult,toxic")[1][2] == ("insult", "toxic")
    assert guess_task(lists) == guess_task(switches) == "multilabel"
    refused(
        "multilabel",
        write("b.csv", "text,toxic,rude\na,1,maybe\n"),
        "line 2",
        "'maybe'",
        columns=Columns(label="toxic,rude"),
    )
    refused("multilabel", write("c.tsv", "text\tlabels\na\tx,,y\n"), "line 2", "an empty label")


def test_goemotions_and_its_names(write):
    path = write("train.tsv", "So sad.\t1\tedcu99z\nOh, well\t0,1\tee84bjg\n")
    assert [label for *_, label in texts(path, "multilabel")] == [("1",), ("0", "1")]
    write("labels.txt", "joy\nsadness\n")
    read = read_examples("multilabel", path)
    assert [e.label for e in read.examples] == [("sadness",), ("joy", "sadness")]
    assert "named by labels.txt" in read.summary
    write("labels.txt", "joy\n")
    assert read_examples("multilabel", path).examples[0].label == ("1",)


def test_names_are_for_the_file_that_uses_them(write):
    """0 and 1 beside 28 emotions are another task's; a dev file has the names of its training file, few as it uses."""
    write("labels.txt", "".join(f"emotion {n}\n" for n in range(28)))
    pairs = write("mrpc.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t0\n")
    found = read_examples("classify", pairs)
    assert [e.label for e in found.examples] == ["1", "0"]
    assert found.names == ()
    train = write("train.tsv", "".join(f"text {n}\t{n}\tid\n" for n in range(14)))
    dev = write("dev.tsv", "text\t27\tid\nanother\t3\tid\n")
    emotions = read_examples("multilabel", train)
    assert emotions.examples[13].label == ("emotion 13",)
    assert [e.label for e in read_examples("multilabel", dev).examples] == [("27",), ("3",)]
    named = read_examples("multilabel", dev, emotions.columns, names=emotions.names)
    assert [e.label for e in named.examples] == [("emotion 27",), ("emotion 3",)]
    assert read_examples("multilabel", train, names=()).examples[0].label == ("0",)


def test_a_dev_file_is_read_like_its_training_file(write):
    """Where both would be guessed alone, they could be guessed apart."""
    train = write("train.tsv", "title\tbody\ttopic\nshort\tlong text\tx\nshort\tlong text\ty\n")
    dev = write("dev.tsv", "text\ttitle\tbody\ttopic\nnote\tshort\tlong\tx\n")
    files = DataFiles(train=train, dev=dev)
    assert texts(dev)[0][0] == "note"
    assert read_files("classify", files, 0)[1][0].text == "long"
    bare = write("bare.tsv", "".join(f"a text of words {n % 7}\t{n % 2}\n" for n in range(30)))
    named = write("named.tsv", "Words\tKind\n" + bare.read_text())
    assert len(read_files("classify", DataFiles(train=bare, dev=bare), 0)[1]) == 30
    first = read_files("classify", DataFiles(train=bare, dev=named), 0)[1][0]
    assert first.label == "Kind", "a label that train has not, which the task refuses by its line"
    other = write("dev.jsonl", '{"text": "a", "label": "x"}\n')
    assert read_files("classify", DataFiles(train=train, dev=other), 0)[1][0].text == "a"
    lacking = write("lacking.tsv", "title\ttext\ttopic\na\tb\tx\n")
    with pytest.raises(
        RequestError, match=r"lacking.tsv has no column 'body' \(text=body\); it has: title, text, topic"
    ):
        read_files("classify", DataFiles(train=train, dev=lacking), 0)


TOPICS = [("the parcel never came", "delivery"), ("money back please", "refund")] * 6


@pytest.mark.parametrize("order", [("complaint", "department"), ("department", "complaint")])
def test_the_only_columns_left_are_text_and_label(write, order):
    """Names that say nothing: the longer column is the text, and a label is repeated."""
    rows = [dict(zip(("complaint", "department"), row, strict=True)) for row in TOPICS]
    lines = [",".join(row[name] for name in order) for row in rows]
    found = read_examples("classify", write("a.csv", "\n".join([",".join(order), *lines])))
    assert (found.columns.text, found.columns.label) == ("complaint", "department")
    assert found.roles == {"text": "complaint", "label": "department"}
    assert guess_task(write("b.csv", "\n".join([",".join(order), *lines]))) == "classify"


def test_one_column_beside_the_text_is_the_label_if_it_can_be_one(write):
    known = write("known.csv", "text,kind\n" + "".join(f"{text},{label}\n" for text, label in TOPICS))
    assert read_examples("classify", known).columns.label == "kind"
    numbered = write("numbered.csv", "text,row\n" + "".join(f"{text},{n}\n" for n, (text, _) in enumerate(TOPICS)))
    for task in ("classify", "regress"):
        with pytest.raises(NoLabels, match=r"no column looks like the label; name it with label=... It has: text, row"):
            read_examples(task, numbered)
    scored = write("scored.csv", "text,price\n" + "".join(f"{text},{n / 4}\n" for n, (text, _) in enumerate(TOPICS)))
    assert read_examples("regress", scored).columns.label == "price"
    more = write("more.csv", "text,kind,source\n" + "".join(f"{text},{label},web\n" for text, label in TOPICS))
    with pytest.raises(NoLabels, match="looks like the label"):
        read_examples("classify", more)
    numbers = write("numbers.csv", "row,label\n1,a\n2,a\n3,b\n4,b\n")
    with pytest.raises(RequestError, match="no column looks like the text"):
        read_examples("classify", numbers)


def test_columns_of_training_are_found_again(write):
    trained = {"text": "complaint", "label": "department"}
    path = write("new.csv", "id,text,complaint,department\n1,x,late parcel,delivery\n2,y,no money,refund\n")
    assert read_examples("classify", path, trained=trained).roles == trained
    named = read_examples("classify", path, Columns(text="text"), trained=trained)
    assert named.roles == {"text": "text", "label": "department"}, "what the user names comes first"
    other = write("other.csv", "text,label\nlate parcel,delivery\n")
    assert read_examples("classify", other, trained=trained).roles == {"text": "text", "label": "label"}
    bare = write("bare.tsv", "".join(f"{text}\t{label}\n" for text, label in TOPICS))
    assert read_examples("classify", bare, trained=trained).roles == {}


def test_columns_from_the_command_line():
    assert named_columns(["text=review", "quotes=false", "separator=|"]) == Columns(
        text="review", quotes=False, separator="|"
    )
    for words, why in {
        "texts=a": "unknown column setting 'texts'",
        "text=": "needs a value",
        "quotes=perhaps": "true or false",
    }.items():
        with pytest.raises(RequestError, match=why):
            named_columns([words])


# --- sentences in columns -------------------------------------------------------------------------------------------

CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"


def test_conll_columns(write):
    path = write("train.txt", CONLL)
    read = read_examples("tag", path)
    first = TaggedExample(("EU", "rejects"), ("B-ORG", "O"), Location(path, 3))
    assert read.examples == [first, TaggedExample(("Peter",), ("B-PER",), Location(path, 7))]
    assert read.summary == f"{path}: text = column 1, label = column 4 (3 tags, 2 sentences)"
    assert guess_task(path) == "tag"
    pos = read_examples("tag", path, Columns(label="2"))
    assert pos.examples[0].tags == ("NNP", "VBZ")
    assert read_examples("tag", path, pos.columns).examples == pos.examples
    assert read_examples("tag", path, labeled=False).examples[0] == TaggedExample(
        ("EU", "rejects"), None, Location(path, 3)
    )


def test_words_may_hold_spaces_where_tabs_divide(write):
    path = write("a.conll", "New York\tB-LOC\n1\u00a0000\tO\r\n\r\n#tag\tO")
    assert [e.words for e in read_examples("tag", path).examples] == [("New York", "1\u00a0000"), ("#tag",)]


def test_conll_faults(write):
    refused("tag", write("a.txt", "EU B-ORG\nrejects O O\n"), "line 2", "3 columns where the first line has 2")
    refused("tag", write("b.tsv", "EU\tB-ORG\nin\t\n"), "line 2", "the tag is empty")
    refused("tag", write("c.txt", "EU\nrejects\n"), "line 1", "no tags", error=NoLabels)
    refused("tag", write("d.txt", CONLL), "columns 1 to 4", columns=Columns(label="9"))
    refused("tag", write("e.txt", "-DOCSTART- O\n\n\n"), "no sentences")
    refused("tag", write("f.txt", "in O\nEU I-ORG\nEU B-PER\n\nA B-ORG\nB B-PER\n" + "x O\ny I-LOC\nz B-LOC\n"), "line")


CONLLU = """# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tghost\t_\tNOUN\t_\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# only a comment

1\tNew York\tNew York\tPROPN\tNNP\t_\t0\troot\t_\t_
"""


def test_conllu(write):
    path = write("dev.conllu", CONLLU)
    read = read_examples("tag", path)
    assert [(e.words, e.tags) for e in read.examples] == [
        (("Do", "n't", "go"), ("AUX", "PART", "VERB")),
        (("New York",), ("PROPN",)),
    ]
    named = read_examples("tag", path, Columns(text="LEMMA", label="xpos"))
    assert named.examples[0] == TaggedExample(("do", "not", "go"), ("VB", "RB", "VB"), Location(path, 1))
    refused("tag", path, "unknown CoNLL-U column", "upos", columns=Columns(label="pos"))
    refused("tag", write("a.conllu", CONLLU.replace("VERB", "_")), "line 7", "no upos for 'go'")
    refused("tag", write("b.conllu", CONLLU + "2\tshort\n"), "line 12", "2 columns where CoNLL-U has 10")
    refused("tag", write("c.conllu", "x" + CONLLU[CONLLU.index("1\tDo") :]), "line 1", "'x1' is no number of a word")


def test_tagged_rows(write):
    path = write("a.jsonl", '{"tokens": ["Ada", "ran"], "tags": ["B-PER", "O"]}\n')
    assert read_examples("tag", path).examples == [TaggedExample(("Ada", "ran"), ("B-PER", "O"), Location(path, 1))]
    refused("tag", write("b.jsonl", '{"tokens": ["Ada", "ran"], "tags": ["O"]}\n'), "line 1", "2 words and 1 tags")
    refused("tag", write("c.jsonl", '{"tokens": "Ada ran", "tags": ["O"]}\n'), "line 1", "not a list")
    refused("tag", write("d.jsonl", '{"tokens": ["Ada", " "], "tags": ["O", "O"]}\n'), "line 1", "is no word")


# --- questions ------------------------------------------------------------------------------------------------------


def test_squad(write):
    impossible = {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [{}]}
    path = write("dev.json", squad(born(), impossible))
    read = read_examples("answer", path)
    place = Location(path, 1, "question")
    assert read.examples[0] == QuestionExample("q1", "Where?", PASSAGE, (AnswerSpan(25, "London"),), "Ada", place)
    assert read.examples[1].answers == ()
    assert "(2 questions, 1 without an answer)" in read.summary
    assert [e.labeled for e in read_examples("answer", path, labeled=False).examples] == [False, False]
    assert guess_task(path) == "answer"


def test_offsets_count_characters_not_bytes_or_utf_16_units(write):
    at = PASSAGE.index("1815")
    good = {"text": "1815", "answer_start": at}
    assert read_examples("answer", write("a.json", squad(born(answers=[good])))).examples[0].answers[0].start == at
    for wrong in (at + 1, at + 3):  # UTF-16 units, UTF-8 bytes
        path = write("b.json", squad(born(answers=[{"text": "1815", "answer_start": wrong}])))
        refused("answer", path, "question 1", "id q1", f"at character {wrong}", f"it stands at {at}")


@pytest.mark.parametrize(
    ("content", "words"),
    {
        "[1, 2]": ["no list 'data'"],
        '{"data": 3}': ["no list 'data'"],
        '{"data": []}': ["no questions"],
        '{"data": [{"paragraphs": 1}]}': ["article 1", "no list 'paragraphs'"],
        '{"data": [{"paragraphs": [{"context": "x"}]}]}': ["no list 'qas'"],
        squad(born(), passage=None): ["question 1", "'context'"],
        squad(born(answers=[{"text": "Paris", "answer_start": 3}])): ["id q1", "nowhere in the passage"],
        squad(born(answers=[{"text": "London", "answer_start": -1}])): ["id q1", "at character -1"],
        squad(born(answers=[{"text": "London", "answer_start": 1e9}])): ["not a whole number"],
        squad(born(answers=[{"text": "", "answer_start": 3}])): ["an answer without text"],
        squad(born(answers="London", answer_start=99)): ["at character 99"],
        squad(born(is_impossible=True)): ["is_impossible is true, but there are answers"],
        squad({"id": "q1", "question": "Where?"}): ["no column 'answers'"],
        squad(born(question=["a"])): ["'question' is list, not a text"],
        squad(born())[:90]: ["torn or no JSON"],
        '{"data":' * 2000: ["nested too deeply"],
    }.items(),
)
def test_squad_files_of_another_shape(write, content, words):
    refused("answer", write("a.json", content), *words)


def test_flat_questions(write):
    lists = {"text": ["London"], "answer_start": [25]}
    row = {"id": "7", "question": "Where?", "context": PASSAGE}
    path = write(
        "a.jsonl",
        "".join(json.dumps(row | {"answers": a}) + "\n" for a in (lists, [], ["1815"], [{"text": "Ada", "start": 0}])),
    )
    answers = [e.answers for e in read_examples("answer", path).examples]
    assert answers == [
        (AnswerSpan(25, "London"),),
        (),
        (AnswerSpan(PASSAGE.index("1815"), "1815"),),
        (AnswerSpan(0, "Ada"),),
    ]
    assert guess_task(path) == "answer"
    refused(
        "answer", write("b.jsonl", json.dumps(row | {"answers": ["n"]})), "line 1", "occurs", "give its answer_start"
    )
    refused(
        "answer", write("c.jsonl", json.dumps(row | {"answers": {"text": ["a"], "answer_start": []}})), "more or fewer"
    )
    refused("answer", write("d.jsonl", '{"question": "a", "text_of_it": "b"}'), "passage", "pair=")


def test_subjqa(write):
    path = write(
        "a.csv",
        "question,review,human_ans_spans,human_ans_indices\n"
        'How?,"It\'s good, really. ANSWERNOTFOUND","It \'s good","(0, 9)"\n'
        'Why?,"No. ANSWERNOTFOUND",ANSWERNOTFOUND,"(4, 18)"\n',
    )
    first, second = read_examples("answer", path).examples
    assert (first.passage, first.answers) == ("It's good, really.", (AnswerSpan(0, "It's good"),))
    assert (second.passage, second.answers) == ("No.", ())
    refused("answer", write("b.csv", 'question,review,human_ans_indices\nHow?,short,"(2, 99)"\n'), "line 2", "outside")


# --- choices --------------------------------------------------------------------------------------------------------


def commonsense(**changes) -> str:
    question = {"stem": "Where?", "choices": [{"label": "A", "text": "bank"}, {"label": "B", "text": "library"}]}
    return json.dumps({"answerKey": "B", "question": question} | changes)


@pytest.mark.parametrize(
    ("name", "content", "choices", "label"),
    [
        ("csqa.jsonl", commonsense(), ("bank", "library"), 1),
        ("swag.csv", "startphrase,ending0,ending1,label\nHe sits,down,up,0\n", ("down", "up"), 0),
        ("hella.jsonl", '{"ctx": "He", "endings": ["a", "b", "c"], "label": "2"}', ("a", "b", "c"), 2),
        ("copa.jsonl", '{"premise": "He", "choice1": "a", "choice2": "b", "label": 1}', ("a", "b"), 1),
        ("text.jsonl", '{"question": "He", "options": ["a", "b"], "answer": "b"}', ("a", "b"), 1),
        ("sums.jsonl", '{"question": "6 - 4?", "choices": ["2", "4", "0"], "answer": "2"}', ("2", "4", "0"), 0),
        ("sums.jsonl", '{"question": "6 - 4?", "choices": ["2", "4", "0"], "answer": 2}', ("2", "4", "0"), 2),
        ("sums.csv", "question,choice0,choice1,choice2,label\n6 - 4?,2,1,0,2\n", ("2", "1", "0"), 2),
        ("bare.jsonl", '{"question": "He", "choices": {"text": ["a", "b"]}, "label": 1}', ("a", "b"), 1),
        (
            "flat.jsonl",
            '{"question": "He", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}',
            ("a", "b"),
            1,
        ),
        (
            "story.csv",
            "InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
            "RandomFifthSentenceQuiz2,AnswerRightEnding\nA.,B.,C.,D.,E.,F.,2\n",
            ("E.", "F."),
            1,
        ),
    ],
)
def test_choices(write, name, content, choices, label):
    path = write(name, content)
    (example,) = read_examples("choose", path).examples
    assert isinstance(example, ChoiceExample)
    assert (example.choices, example.label) == (choices, label)
    assert guess_task(path) == "choose"
    assert read_examples("choose", path, labeled=False).examples[0].label is None


def test_copa_asks_about_its_premise(write):
    row = '{"premise": "He fell.", "choice1": "a", "choice2": "b", "question": "%s", "label": 0}\n'
    path = write("copa.jsonl", row % "cause" + row % "effect")
    asked = [example.question for example in read_examples("choose", path).examples]
    assert asked == ["He fell. What was the cause?", "He fell. What happened as a result?"]
    dev = read_files("choose", DataFiles(train=path, dev=path), 0)[1]
    assert [example.question for example in dev] == asked
    odd = write("odd.jsonl", row % "cause " + row % "effect" + row.replace('"%s"', "null"))
    refused("choose", odd, "line 3", "not cause or effect")
    late = write("late.jsonl", row % "cause" * 1001 + row % "why")
    refused("choose", late, "line 1002", "not cause or effect")


def test_answers_are_choices_only_where_all_of_them_are(write):
    rows = ['{"question": "a?", "choices": ["1", "2", "3", "0"], "answer": "1"}']
    rows += ['{"question": "b?", "choices": ["x", "y"], "answer": "1"}']
    assert [each.label for each in read_examples("choose", write("a.jsonl", "\n".join(rows))).examples] == [1, 1]
    assert [each.label for each in read_examples("choose", write("b.jsonl", rows[0])).examples] == [0]


def test_cells_after_the_last_column_may_be_empty(write):
    path = write("a.csv", "good film,pos\nbad film,neg,\nfine film,pos\nawful,neg\n")
    assert [each.label for each in read_examples("classify", path).examples] == ["pos", "neg", "pos", "neg"]


def test_twelve_choices_come_in_the_order_of_their_numbers(write):
    names = [f"choice{number}" for number in range(1, 13)]
    path = write("a.csv", f"question,{','.join(names)},label\nWhich?,{','.join(names)},10\n")
    (example,) = read_examples("choose", path).examples
    assert (example.choices, example.choices[example.label]) == (tuple(names), "choice11")


def test_choice_faults(write):
    fewer = '{"question": "He", "choices": {"text": ["a", "b", "c"], "label": ["A", "B"]}, "answerKey": "A"}'
    refused("choose", write("g.jsonl", fewer), "line 1", "more or fewer labels than texts")
    refused("choose", write("a.jsonl", commonsense(answerKey="F")), "line 1", "'F' is not among the choices (A, B)")
    refused("choose", write("b.jsonl", commonsense(question={"choices": []})), "line 1", "no 'stem'")
    one = {"stem": "x", "choices": [{"label": "A", "text": "bank"}]}
    refused("choose", write("c.jsonl", commonsense(question=one)), "line 1", "fewer than two choices")
    refused("choose", write("d.jsonl", '{"ctx": "a", "endings": ["b", null], "label": 0}'), "line 1", "not a text")
    refused("choose", write("e.csv", "startphrase,ending0,ending1,label\nHe,a,b,2\n"), "line 2", "0 to 1")
    refused("choose", write("f.jsonl", '{"ctx": "a", "endings": ["b", "c"]}'), "label=", error=NoLabels)


def test_tab_separated_cells_that_are_all_enclosed(write):
    """As R and spreadsheets write them; one that is not ends the guess."""
    path = write("a.tsv", '"text"\t"label"\n' + '"a fine film"\t"good"\n' * 5 + '"a poor film"\t"bad"\n' * 5)
    found = read_examples("classify", path)
    assert (found.examples[0].text, found.examples[0].label, len(found.examples)) == ("a fine film", "good", 10)
    lone = write("b.tsv", '"text"\t"label"\n"a fine" film\tgood\nmore\tbad\n')
    found = read_examples("classify", lone, Columns(header=False))
    assert [example.text for example in found.examples] == ['"text"', '"a fine" film', "more"]


def test_numbered_tags_get_their_names_from_beside_the_file(write):
    write("labels.txt", "O\nB-PER\nI-PER\n")
    path = write("a.jsonl", '{"tokens": ["Ada", "Lovelace", "wrote"], "ner_tags": [1, 2, 0]}\n')
    found = read_examples("tag", path)
    assert found.examples[0].tags == ("B-PER", "I-PER", "O")
    assert "named by labels.txt" in found.summary


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", 'text,label\nfine,1\n"open,1\nmore,0\n', ["line 3", "are not balanced", "quotes=false"]),
        ("a.csv", 'text,label\n"open" wide,1\n', ["line 2", "not balanced"]),
        ("a.csv", "text,label\ngood,1\nbad, very,0\n", ["line 3", "3 columns where the header has 2"]),
        ("a.csv", "nice one,good\n" * 9 + "well, it was,good\n", ["line 10", "3 columns where other rows have 2"]),
        ("a.tsv", "text\tlabel\ngood\t1\nbad\n", ["line 3", "1 columns where the header has 2"]),
        ("a.tsv", "text\tlabel\ngood\t \n", ["line 2", "the label in 'label' is empty"]),
        ("a.tsv", "text\ttext\ngood\t1\n", ["line 1", "two columns are called 'text'"]),
        ("a.tsv", "text\tlabel\n", ["a header line and no rows"]),
        ("a.tsv", "\n\n", ["no rows"]),
        ("a.tsv", "", ["is empty"]),
        ("a.tsv", b"text\tlabel\nna\xefve\t1\n", ["line 2", "0xef", "not UTF-8"]),
        ("a.tsv", "text\tlabel\na\t1\n".encode("utf-16"), ["UTF-16"]),
        ("a.tsv", b"text\tlabel\na\0b\t1\n", ["line 2", "NUL"]),
        ("a.tsv", gzip.compress(b"text\tlabel\n", mtime=0), ["without that ending"]),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "la', ["line 2", "torn or no JSON"]),
        ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', ["line 2", "not an object"]),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', ["line 2", "no column 'label'"]),
        ("a.jsonl", '{"text": "a", "label": null}\n', ["line 1", "is empty"]),
        ("a.jsonl", '{"text": ["a"], "label": 1}\n', ["line 1", "not a text"]),
        ("a.jsonl", '{"text": "a", "label": [1]}\n', ["line 1", "multilabel"]),
        ("a.jsonl", '{"text": "a\\ud83d", "label": 1}\n', ["line 1", "surrogate"]),
        ("a.json", '{"text": "a",\n', ["line 1", "torn or no JSON"]),
        ("a.json", "3", ["not a list of rows"]),
        ("a.json", "[]", ["no rows"]),
        ("a.parquet", b"PAR1", ["cannot be read as Parquet"]),
        ("a.label", "no label here\n", ["line 1", "COARSE:fine"]),
        ("a.csv", "name,age\nAda,36\n", ["no column looks like the text", "name, age", "text="]),
        ("a.docx", "x", ["unknown ending of a.docx: '.docx'"]),
    ],
)  # fmt: skip
def test_faults_name_the_file_and_the_line(write, name, content, words):
    path = write(name, content)
    with pytest.raises(RequestError) as caught:
        read_examples("classify", path)
    for word in (path.name, *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("value", ["high", "", "nan", "inf", "3,5"])
def test_a_number_that_is_none(write, value):
    path = write("a.tsv", f"sentence1\tsentence2\tscore\na\tb\t3.5\na\tb\t{value}\n")
    refused("regress", path, "line 3", repr(value), "not a number")


def test_missing_files_folders_and_tasks(tmp_path):
    with pytest.raises(RequestError, match="does not exist"):
        read_examples("classify", tmp_path / "none.tsv")
    with pytest.raises(RequestError, match="is a folder"):
        read_examples("classify", tmp_path)
    with pytest.raises(RequestError, match="unknown task 'sing'; choose from: answer, choose, classify"):
        read_examples("sing", tmp_path / "none.tsv")


def test_a_scan_goes_on_where_reading_stops(write):
    path = write(
        "a.jsonl", '{"text": "a", "label": 1}\n{"te\n{"text": "b", "label": null}\n{"text": "c", "label": 0}\n'
    )
    faults: list[str] = []
    read = scan_examples("classify", path, None, faults)
    assert [e.text for e in read.examples] == ["a", "c"]
    assert [fault.split(":")[0] for fault in faults] == [f"{path}, line 2", f"{path}, line 3"]


# --- hostile files --------------------------------------------------------------------------------------------------

SEEDS = {
    "a.tsv": "text\tlabel\ngood\t1\n",
    "a.csv": 'text,label\n"go,od",1\n',
    "a.jsonl": commonsense() + '\n{"text": "a", "label": ["x"], "tokens": ["a"], "tags": ["O"]}\n',
    "a.json": squad(born()),
    "a.conllu": CONLLU,
    "a.txt": CONLL,
    "a.label": "LOC:city Where ?\n",
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "label", "stem"]), inner),
    max_leaves=6,
)
KEYS = ["text", "label", "question", "context", "answers", "choices", "endings", "tokens", "tags", "id", "title"]
KEYS += ["paragraphs", "qas", "data", "answerKey", "answer_start", "is_impossible", "score"]


def survives(task: str, path: Path, content: bytes) -> None:
    """Whatever the file holds: examples, or one sentence."""
    path.write_bytes(content)
    faults: list[str] = []
    for attempt in (read_examples, lambda _, path: guess_task(path), lambda *a: scan_examples(*a, None, faults)):
        try:
            attempt(task, path)
        except RequestError as error:
            faults.append(str(error))
    assert not any("\n" in fault for fault in faults)


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(SEEDS)),
    st.sampled_from(list(TASKS)),
    st.integers(0),
    st.integers(0, 20),
    st.binary(max_size=6),
)
def test_damaged_files_give_a_sentence(tmp_path_factory, name, task, at, cut, junk):
    seed = SEEDS[name].encode()
    at %= len(seed)
    survives(task, tmp_path_factory.mktemp("damaged") / name, seed[:at] + junk + seed[at + cut :])


@settings(max_examples=150)
@given(st.sampled_from(list(TASKS)), st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_rows_of_any_shape_give_a_sentence(tmp_path_factory, task, rows):
    path = tmp_path_factory.mktemp("odd") / "a.jsonl"
    survives(task, path, "\n".join(map(json.dumps, rows)).encode())


@settings(max_examples=80)
@given(st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(KEYS), st.lists(inner, max_size=2) | inner)))
def test_squad_of_any_shape_gives_a_sentence(tmp_path_factory, value):
    survives("answer", tmp_path_factory.mktemp("squad") / "a.json", json.dumps({"data": [value]}).encode())


@pytest.mark.parametrize("number", ["inf", "-Infinity", "1e999", "1" + "0" * 400, "1e308", "-1e101", "nan"])
@pytest.mark.parametrize("ending", [".tsv", ".jsonl"])
def test_numbers_that_cannot_be_squared_are_refused_with_their_line(write, number, ending):
    rows = {".tsv": f"text\tscore\ngood\t1\nbad\t{number}\n"}
    plain = {"inf": "Infinity", "nan": "NaN"}.get(number, number)
    rows[".jsonl"] = f'{{"text": "good", "score": 1}}\n{{"text": "bad", "score": {plain}}}\n'
    path = write(f"a{ending}", rows[ending])
    refused("regress", path, f"line {3 if ending == '.tsv' else 2}", "'score' holds", "repair or remove the row")


def test_large_numbers_are_read(write):
    rows = read_examples("regress", write("a.tsv", "text\tscore\ngood\t1e99\nbad\t-1e99\n")).examples
    assert [row.label for row in rows] == [1e99, -1e99]
