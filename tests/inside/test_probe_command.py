"""`bertkit probe` as a person meets it."""

import json
import random

import pytest

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.inside.probes.data import ProbeSettings, read_probe_files

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny <i>"
    save_checkpoint(bert.checkpoint, folder)
    return folder


def sentences(seed, count):
    """Vowels are nouns and hang on the word before them; the first word is the root; a full stop ends each."""
    draw = random.Random(seed)
    for _ in range(count):
        words = draw.choices(["a", "e", "b", "cab", "dig", "zz"], k=draw.randint(5, 9))
        rows = [
            (word, "NOUN" if word in "ae" else "VERB", n, "obj" if word in "ae" else "dep")
            for n, word in enumerate(words)
        ]
        yield [*rows, ("x", "PUNCT", 1, "punct")]


def write_conllu(path, rows):
    blocks = []
    for sentence in rows:
        lines = [f"{n}\t{w}\t_\t{tag}\t_\t_\t{head}\t{rel}\t_\t_" for n, (w, tag, head, rel) in enumerate(sentence, 1)]
        blocks.append("\n".join(lines) + "\n")
    path.write_text("\n".join(blocks))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    long = [("a", "NOUN", 0, "root")] + [("b", "VERB", 1, "dep")] * 90  # over the model's 64 tokens
    train = write_conllu(folder / "train.conllu", [*sentences(0, 80), [("e", "NOUN", 0, "root")]])
    test = write_conllu(folder / "test.conllu", [*sentences(1, 30), long, [("a", "NOUN", 0, "root")]])
    names = folder / "names.txt"
    tags = {"a": "B-PER", "e": "B-LOC"}
    blocks = ["\n".join(f"{w} {tag} {tags.get(w, 'O')}" for w, tag, _, _ in each) for each in sentences(2, 40)]
    names.write_text("-DOCSTART- X O\n\n" + "\n\n".join(blocks) + "\n")
    return train, test, names


def test_parts_of_speech_as_a_table_and_a_report(model, files, tmp_path, capsys):
    out = tmp_path / "probe"
    assert run(["probe", *map(str, files[:2]), "--model", str(model), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("parts of speech: ")
    rows = [line.split() for line in lines if line.strip()[:1].isdecimal()]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert float(rows[0][1]) > 95  # the word is enough to tell
    assert any(line.startswith("center of gravity: layer ") for line in lines)
    assert any(
        line.startswith("test: 32 sentences") and "1 over the model's length, read through" in line for line in lines
    )
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == 4
    assert "<svg" not in page, "three points are a table"
    assert "tiny &lt;i&gt;" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    found = json.loads((out / "result.json").read_text())
    assert found["model"] == "tiny <i>"
    assert [each["layer"] for each in found["layers"]] == [0, 1, 2]
    for each in found["layers"]:
        assert each["selectivity"] == pytest.approx(each["accuracy"] - each["control"])
    assert sum(found["mix"]) == pytest.approx(1)
    assert found["counts"]["test"]["windowed"] == 1


def test_trees_are_drawn_beside_the_gold_ones(model, files, tmp_path, capsys):
    out = tmp_path / "probe"
    words = ["--task", "structure", "--rank", "8", "--out", str(out), "--json"]
    assert run(["probe", *map(str, files[:2]), "--model", str(model), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rank"] == 8
    assert found["chain"]["root"] > 0.9  # every first word is the root
    assert found["notes"][0].startswith("1 sentences of one word or over 512 left out of 81 to train on")
    assert len(found["layers"]) == len(found["random"]) == 3
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == 4
    assert page.count("<svg") == 2 * len(found["drawn"])
    assert found["drawn"]


def test_arcs_and_names_and_the_same_twice(model, files, capsys):
    assert run(["probe", *map(str, files[:2]), "--model", str(model), "--task", "arcs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"] == ["dep", "obj", "punct"]
    assert max(each["accuracy"] for each in found["layers"]) > 0.9
    ask = [
        "probe",
        str(files[2]),
        "--model",
        str(model),
        "--task",
        "ner",
        "--pieces",
        "last",
        "--sentences",
        "20",
        "--json",
    ]
    assert run(ask) == 0
    first = capsys.readouterr().out
    assert run(ask) == 0
    assert capsys.readouterr().out == first
    found = json.loads(first)
    assert found["labels"] == ["B-LOC", "B-PER", "O"]
    assert all(0 <= each["f1"] <= 1 for each in found["layers"])
    assert found["notes"] == [
        "the last 8 of 40 sentences are held out",
        "trained on 20 of 32 sentences, drawn by seed 0",
    ]


def test_a_column_may_be_named(files):
    data = read_probe_files([files[2]], ProbeSettings(what="pos", column="2"))
    assert {tag for sentence in data.train for tag in sentence.tags} == {"NOUN", "VERB", "PUNCT"}
    assert len(data.train) == 32
    assert len(data.test) == 8


REFUSED = [
    (["{train}", "--task", "sense"], "'sense'"),
    (["{train}", "--pieces", "middle"], "'middle'"),
    (["{train}", "--sentences", "0"], "sentences=0 must be 1 or more"),
    (["{train}", "--seed", "-1"], "seed=-1 must be from 0 to 9223372036854775807"),
    (["{train}", "--seed", "9223372036854775808"], "seed=9223372036854775808 must be from 0"),
    (["{train}", "--task", "arcs", "--column", "xpos"], "column=xpos goes with pos and ner"),
    (["{train}", "--task", "ner"], "train.conllu: CoNLL-U has no column for names"),
    (["{names}", "--task", "structure"], "names.txt: trees are read from CoNLL-U"),
    (["missing.conllu"], "missing.conllu does not exist"),
    (["{train}", "missing.conllu", "--task", "arcs"], "missing.conllu does not exist"),
    (["{train}", "--column", "9"], "9"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=[sentence[:24] for _, sentence in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(words, sentence, model, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = [word.format(train=files[0], names=files[2]) for word in words]
    assert run(["probe", *named, "--model", str(model), "--out", "probe"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert not list(tmp_path.iterdir())


BROKEN = {
    "cycle": (
        "1\ta\t_\tX\t_\t_\t2\tdep\t_\t_\n2\tb\t_\tX\t_\t_\t1\tdep\t_\t_\n3\tc\t_\tX\t_\t_\t0\troot\t_\t_\n",
        "line 1",
    ),
    "head": ("1\ta\t_\tX\t_\t_\t7\tdep\t_\t_\n2\tb\t_\tX\t_\t_\t0\troot\t_\t_\n", "line 1"),
    "root": ("1\ta\t_\tX\t_\t_\t2\tdep\t_\t_\n2\tb\t_\tX\t_\t_\t1\tdep\t_\t_\n", "has no root"),
    "torn": ("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n2\tb\t_", "line 2: 3 columns"),
    "empty": ("", "is empty"),
    "one": ("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n", "too few to hold out a fifth"),
    "short": ("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n" * 9, "no sentence of 2 to 512 words to train on"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_treebank_is_refused_by_its_line(name, model, tmp_path, capsys):
    text, said = BROKEN[name]
    path = tmp_path / f"{name}.conllu"
    path.write_text(text)
    assert run(["probe", str(path), "--model", str(model), "--task", "structure"]) == 2
    err = capsys.readouterr().err
    assert f"{name}.conllu" in err
    assert said in err
    assert err.count("\n") == 1


def test_labels_of_one_kind_are_refused_before_anything_is_read(model, tmp_path, capsys):
    path = write_conllu(tmp_path / "a.conllu", [[("a", "X", 0, "root"), ("b", "X", 1, "dep")]] * 9)
    assert run(["probe", str(path), "--model", str(model)]) == 2
    assert "a.conllu has fewer than two different labels" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_refused(bert, files, tmp_path, capsys):
    save_checkpoint(Checkpoint(model=bert.model, max_length=64), tmp_path / "bare")
    assert run(["probe", str(files[0]), "--model", str(tmp_path / "bare")]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err


def test_somebodys_folder_is_left_alone(model, files, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert run(["probe", str(files[0]), "--model", str(model), "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_no_files_are_refused():
    with pytest.raises(RequestError, match="no files were named"):
        read_probe_files([], ProbeSettings())
