"""Files through models: what comes out is what the Python API says, in every format, for every task."""

import csv
import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import taught
import torch

import bertkit
from bertkit.cli.main import run
from bertkit.data.tables import Row
from bertkit.predict.files import rows as rows_module
from bertkit.predict.files.outputs import npy_header
from bertkit.predict.files.rows import row_blocks
from bertkit.tasks.table import TASKS

ODD = ["a b c", "", "hello there", "Ünïcode 你好 e\u0301", '"quoted", and\ttabbed', "word " * 50, "\u2028x", "[SEP] a"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    return {task: taught.taught_folder(folder / str(task), task) for task in (*TASKS, None)}


@pytest.fixture
def bertkit_run(capsys):
    """`bertkit_run(0, "embed", ...)` in this process: (stdout, stderr)."""

    def call(code, *words):
        found = run([str(word) for word in words])
        out, err = capsys.readouterr()
        assert found == code, (out, err)
        assert "Traceback" not in err
        return out, err

    return call


def read_jsonl(path):
    with path.open(encoding="utf-8", newline="\n") as lines:  # U+2028 is a character, not the end of a line
        return [json.loads(line) for line in lines]


def write_jsonl(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


def near(left, right):
    assert left == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_texts_are_answered_as_in_python_one_by_one(task, models, tmp_path, bertkit_run):
    found = [{"id": n, "text": text, "more": {"x": [n]}} for n, text in enumerate(ODD)]
    options = [] if task == "regress" else ["probabilities=true"]
    write_jsonl(tmp_path / "in.jsonl", found)
    bertkit_run(0, "predict", models[task], tmp_path / "in.jsonl", *options, "--out", tmp_path / "out.jsonl")
    bert = bertkit.load(models[task])
    for given, row in zip(found, read_jsonl(tmp_path / "out.jsonl"), strict=True):
        assert {name: row[name] for name in given} == given
        alone = bert.classify(given["text"])
        assert row["cut"] == alone.seen.cut
        if task == "regress":
            near(row["value"], alone.value)
        elif task == "classify":
            assert row["label"] == alone.label
            near(row["probability"], alone.probability)
        else:
            assert row["labels"] == list(alone.labels)
        if options:
            near(row["probabilities"], dict(alone.probabilities))
    assert row["windows"] == 1
    assert read_jsonl(tmp_path / "out.jsonl")[5]["cut"] == 50 * 4 - 30


def test_tags_stand_at_their_characters(models, tmp_path, bertkit_run):
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in ODD), encoding="utf-8")
    bertkit_run(0, "predict", models["tag"], tmp_path / "in.txt", "--out", tmp_path / "out.jsonl")
    bert, found = bertkit.load(models["tag"]), read_jsonl(tmp_path / "out.jsonl")
    spans = 0
    for text, row in zip(ODD, found, strict=True):
        assert row["text"] == text
        assert row["words"] == [text[a:b] for a, b in row["characters"]]
        alone = bert.tag(text)
        assert row["tags"] == list(alone.tags)
        for span, own in zip(row["spans"], alone.spans, strict=True):
            assert text[span["start"] : span["end"]] == span["text"] == own.text
            assert (span["first_word"], span["end_word"]) == own.words
            near(span["probability"], own.probability)
            spans += 1
    assert spans
    assert found[1]["tags"] == []
    assert found[5]["windows"] > 1
    assert found[5]["cut"] == 0


def test_words_are_tagged_from_conll_and_jsonl(models, tmp_path, bertkit_run):
    (tmp_path / "in.conll").write_text("ada X\nis O\n\nb O\n")
    write_jsonl(tmp_path / "in.jsonl", [{"tokens": ["ada", "is"]}, {"tokens": ["b"]}])
    for name in ("in.conll", "in.jsonl"):
        bertkit_run(0, "predict", models["tag"], tmp_path / name, "--out", tmp_path / f"{name}.out.jsonl")
    ours, theirs = (read_jsonl(tmp_path / f"{name}.out.jsonl") for name in ("in.conll", "in.jsonl"))
    assert [row["tags"] for row in ours] == [row["tags"] for row in theirs]
    assert [len(row["tags"]) for row in ours] == [2, 1]
    assert ours[0]["characters"] is None


def test_answers_stand_in_their_passages(models, tmp_path, bertkit_run):
    passage = 'ada lived in a "room" e\u0301 b ' * 6
    squad = {"data": [{"title": "t", "paragraphs": [{"context": passage, "qas": [{"id": "q7", "question": "who?"}]}]}]}
    (tmp_path / "in.json").write_text(json.dumps(squad))
    bertkit_run(0, "predict", models["answer"], tmp_path / "in.json", "best=3", "--out", tmp_path / "out.jsonl")
    (row,) = read_jsonl(tmp_path / "out.jsonl")
    alone = bertkit.load(models["answer"]).answer("who?", passage)
    assert row["id"] == "q7"
    assert row["answer"] == alone.text
    assert row["windows"] == alone.seen.windows > 1
    assert len(row["candidates"]) == 3
    for each in row["candidates"]:
        assert passage[each["start"] : each["end"]] == each["text"]
    near(row["score"], alone.candidates[0].score)


def test_choices_are_chosen(models, tmp_path, bertkit_run):
    found = [{"question": "who a", "choices": ["a b", "c"]}, {"question": "b", "choices": ["d", "e", "f f"]}]
    write_jsonl(tmp_path / "in.jsonl", found)
    out = tmp_path / "out.jsonl"
    bertkit_run(0, "predict", models["choose"], tmp_path / "in.jsonl", "probabilities=true", "--out", out)
    bert = bertkit.load(models["choose"])
    for given, row in zip(found, read_jsonl(out), strict=True):
        alone = bert.choose(given["question"], given["choices"])
        assert row["choice"] == alone.choice
        assert row["chosen"] == given["choices"][alone.choice]
        near(row["probabilities"], list(alone.probabilities))


def test_three_formats_say_the_same(models, tmp_path, bertkit_run):
    given = [
        {"id": 7, "text": "a, b", "score": 1.5, "yes": True, "tags": ["x"], "none": None},
        {"id": 8, "text": 'say "é"\r\nthere', "score": 2, "yes": False, "tags": [], "none": None},
    ]
    write_jsonl(tmp_path / "in.jsonl", given)
    for ending in (".jsonl", ".csv", ".parquet"):
        arguments = [
            models["classify"],
            tmp_path / "in.jsonl",
            "probabilities=true",
            "--out",
            tmp_path / f"out{ending}",
        ]
        bertkit_run(0, "predict", *arguments)
    lines = read_jsonl(tmp_path / "out.jsonl")
    table = pq.read_table(tmp_path / "out.parquet")
    kinds = {"id": pa.int64(), "text": pa.string(), "score": pa.float64(), "yes": pa.bool_(), "tags": pa.string()}
    assert {name: table.schema.field(name).type for name in kinds} == kinds
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    for line, typed, text in zip(lines, table.to_pylist(), cells, strict=True):
        assert json.loads(typed["tags"]) == json.loads(text["tags"]) == line["tags"]
        assert typed["probabilities"] == json.loads(text["probabilities"]) == line["probabilities"]
        assert typed["text"] == text["text"] == line["text"]
        assert typed["label"] == text["label"] == line["label"]
        assert text["none"] == ""
        assert float(text["probability"]) == typed["probability"] == line["probability"]


def test_formats_in_give_the_same_answers(models, tmp_path, bertkit_run):
    texts = ["a b", "c, d", 'e "f"', "é"]
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    write_jsonl(tmp_path / "b.jsonl", [{"review": text} for text in texts])
    with (tmp_path / "c.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["n", "review"], *([n, text] for n, text in enumerate(texts))])
    tabbed = "review\tn\n" + "".join(f"{text}\t{n}\n" for n, text in enumerate(texts))
    (tmp_path / "d.tsv.gz").write_bytes(gzip.compress(tabbed.encode()))
    pq.write_table(
        pa.table({"review": texts, "when": pa.array([1, 2, 3, 4], pa.timestamp("ms"))}), tmp_path / "e.parquet"
    )
    found = []
    for name in ("a.txt", "b.jsonl", "c.csv", "d.tsv.gz", "e.parquet"):
        arguments = [] if name == "a.txt" else ["text=review"]
        out = tmp_path / f"{name}.jsonl"
        _, said = bertkit_run(0, "predict", models["classify"], tmp_path / name, *arguments, "--out", out)
        assert ("text = review" in said) == (name != "a.txt")
        found.append([(row["label"], row["probability"]) for row in read_jsonl(out)])
    assert all(each == found[0] for each in found)
    assert read_jsonl(tmp_path / "e.parquet.jsonl")[1]["when"] == "1970-01-01 00:00:00.002000"
    bertkit_run(0, "predict", models["classify"], tmp_path / "e.parquet", "--out", tmp_path / "e.out.parquet")
    assert pq.read_schema(tmp_path / "e.out.parquet").field("when").type == pa.timestamp("ms")


def test_a_column_of_the_predictions_name_stays(models, tmp_path, bertkit_run):
    (tmp_path / "in.csv").write_text("text,label,predicted_label\na b,gold,older\n")
    out = tmp_path / "out.jsonl"
    _, said = bertkit_run(0, "predict", models["classify"], tmp_path / "in.csv", "--out", out)
    (row,) = read_jsonl(out)
    assert (row["label"], row["predicted_label"]) == ("gold", "older")
    assert row["predicted_predicted_label"] in ("bad", "fine", "good")
    assert "called 'predicted_predicted_label', for 'label' is there already" in said
    bertkit_run(0, "predict", models["classify"], tmp_path / "in.csv", "keep=text", "--out", tmp_path / "b.jsonl")
    assert list(read_jsonl(tmp_path / "b.jsonl")[0]) == ["text", "label", "probability", "windows", "cut"]


def test_vectors_with_ids(models, tmp_path, bertkit_run):
    write_jsonl(tmp_path / "in.jsonl", [{"doc_id": f"d{n}", "body": text} for n, text in enumerate(ODD)])
    arguments = ["embed", tmp_path / "in.jsonl", "text=body", "--model", models[None], "--out"]
    _, said = bertkit_run(0, *arguments, tmp_path / "v.npy")
    assert "text = body" in said
    assert "1 text was cut to 32 tokens; the longest, " in said
    with pytest.warns(bertkit.BertkitWarning):
        expected = bertkit.load(models[None]).embed(ODD)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    assert [json.loads(line) for line in (tmp_path / "v.npy.ids.jsonl").open()] == [f"d{n}" for n in range(len(ODD))]
    bertkit_run(0, *arguments, tmp_path / "v.parquet")
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["id"] == [f"d{n}" for n in range(len(ODD))]
    assert table["text"] == ODD
    assert table["cut"] == [0, 0, 0, 0, 0, 202 - 32, 0, 0]
    assert np.array(table["vector"], dtype=np.float32).tobytes() == np.load(tmp_path / "v.npy").tobytes()


@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (10**12, 10**5)])
def test_the_header_is_one_that_numpy_reads(shape, tmp_path):
    import io

    file = io.BytesIO(npy_header(*shape))
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))
    assert file.tell() == 128


def test_blocks_fall_by_rows_and_by_characters_and_keep_all(monkeypatch):
    monkeypatch.setattr(rows_module, "ROWS_PER_BLOCK", 10)
    monkeypatch.setattr(rows_module, "CHARACTERS_PER_BLOCK", 1000)
    draw = random.Random(0)
    given = [Row(None, {"text": "x" * draw.choice([1, 50, 2000])}) for _ in range(137)]
    blocks = list(row_blocks(given))
    assert [row for block in blocks for row in block.rows] == given
    assert all(block.full for block in blocks[:-1])
    assert all(len(block.rows) <= 10 for block in blocks)
    assert all(sum(len(row.values["text"]) for row in block.rows[:-1]) < 1000 for block in blocks)
    changed = [Row(None, {"text": "y"}), *given[1:]]
    assert [b.digest for b in row_blocks(changed)] != [b.digest for b in blocks]
    assert len({block.digest for block in blocks}) == len(blocks)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["in.txt", "txt=a"], "unknown setting 'txt'; choose from:"),
        (["in.txt", "best=2"], "best=2 does not go with 'classify'"),
        (["in.txt", "format=xml"], "unknown format 'xml'"),
        (["in.csv", "text=nothing"], "in.csv has no column 'nothing'"),
        (["in.csv", "keep=nothing"], "in.csv has no column 'nothing' (keep=nothing)"),
        (["nowhere.csv"], "nowhere.csv cannot be read: No such file"),
        (["."], "cannot be read: Is a directory"),
        (["empty.jsonl"], "empty.jsonl is empty"),
        (["in.txt", "--on-error", "cry"], "unknown way with errors 'cry'; choose from: skip, stop"),
        (["in.txt", "--workers", "-1"], "--workers -1 must be 0 or more"),
        (["in.txt", "--workers", "2", "--cluster"], "choose one of --workers and --cluster"),
        (["-", "--resume"], "standard input cannot be read again"),
        (["x.parquet"], "x.parquet cannot be read as Parquet"),
        (["in.conll"], "CoNLL files hold words to tag, and this is 'classify'"),
    ],
)
def test_a_wrong_request_is_one_sentence(words, sentence, models, tmp_path, bertkit_run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\n")
    (tmp_path / "in.csv").write_text("text,n\na,1\n")
    (tmp_path / "in.conll").write_text("a O\n")
    (tmp_path / "x.parquet").write_text("text,n\na,1\n")
    (tmp_path / "empty.jsonl").write_text("")
    if words[0] == "-":
        stand_in = tmp_path / "in.txt"
        monkeypatch.setattr(rows_module, "STDIN", stand_in)
        monkeypatch.setattr("bertkit.predict.files.pipeline.STDIN", stand_in)
    before = sorted(path.name for path in tmp_path.iterdir())
    out, said = bertkit_run(2, "predict", models["classify"], *words, "--out", "out.jsonl")
    assert out == ""
    assert sentence in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_other_refusals(models, tmp_path, bertkit_run):
    (tmp_path / "in.txt").write_text("a\n")
    _, said = bertkit_run(2, "predict", models["answer"], tmp_path / "in.txt", "--out", tmp_path / "o.csv")
    assert "a plain line has no room for a question and a passage" in said
    _, said = bertkit_run(2, "predict", models["classify"], tmp_path / "in.txt", "--out", tmp_path / "o.txt")
    assert "must end in .jsonl, .csv or .parquet" in said
    _, said = bertkit_run(2, "predict", models[None], tmp_path / "in.txt", "--out", tmp_path / "o.csv")
    assert "this model has no head for a task" in said
    (tmp_path / "o.csv").write_text("precious")
    _, said = bertkit_run(2, "predict", models["classify"], tmp_path / "in.txt", "--out", tmp_path / "o.csv")
    assert "exists already" in said
    assert (tmp_path / "o.csv").read_text() == "precious"
