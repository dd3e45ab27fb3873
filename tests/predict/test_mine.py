"""Mining: negatives are from the ranks asked for and never a positive, and a killed run has each pair once."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.cli.main import run
from bertkit.finetuning.embeddings.data import NO_TEXT, read_texts

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
import tiny

pytestmark = pytest.mark.usefixtures("_one_thread")
ASKED = ("--negatives", "3", "--from", "3", "--to", "12", "--margin", "0.98")
# Blocks of 8 rows, and a kill -9 of its own process after so many of them.
KILLED = """
import os, signal, sys
import bertkit.predict.files.resume as resume, bertkit.predict.files.rows as rows
rows.ROWS_PER_BLOCK, left, save = 8, int(sys.argv[1]), resume.Draft.save
def counting(draft, state):
    global left
    save(draft, state)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
resume.Draft.save = counting
from bertkit.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """40 pairs, some of one query; a corpus with all positives, some of them twice, and the queries."""
    folder, draw = tmp_path_factory.mktemp("mine"), random.Random(0)
    tiny.tiny_folder(folder / "model")
    words = [*tiny.GOOD, *tiny.BAD, "film", "it", "is", "the", "very"]
    texts = list(dict.fromkeys(" ".join(draw.choices(words, k=draw.randint(2, 7))) for _ in range(90)))
    rows = [(texts[n // 2 if n < 10 else n], texts[40 + n]) for n in range(40)]
    (folder / "pairs.tsv").write_text("query\tpositive\n" + "".join(f"{q}\t{p}\n" for q, p in rows))
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in [*texts, *texts[38:50]]))
    return folder


def mine(files: Path, out: Path, *more: str, pairs: str = "pairs.tsv", corpus: str = "corpus.txt") -> int:
    words = ["mine", files / pairs, "--corpus", files / corpus, "--model", files / "model", "--out", out]
    return run([str(word) for word in (*words, *(more or ASKED))])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def mined(files) -> Path:
    assert mine(files, files / "mined.jsonl") == 0
    assert not list(files.glob("mined.jsonl.*")), "nothing is left beside the output"
    return files / "mined.jsonl"


def allowed(files: Path) -> list[tuple[dict, set[str], float]]:
    """The slow twin: each pair with all texts that may be its negatives, and its positive's cosine."""
    bert = bertkit.load(files / "model")
    corpus = (files / "corpus.txt").read_text().splitlines()
    pairs = [line.split("\t") for line in (files / "pairs.tsv").read_text().splitlines()[1:]]
    found = []
    for query, positive in pairs:
        known = {query, *(other for same, other in pairs if same == query)}
        cosines = bert.similarity([query], corpus)[0]
        ranked = [n for n in np.argsort(-cosines, kind="stable") if corpus[n] not in known]
        score = float(bert.similarity([query], [positive])[0, 0])
        texts = {corpus[n] for n in ranked[2:12] if cosines[n] <= 0.98 * score}
        found.append(((query, positive), texts, score))
    return found


def test_negatives_are_near_and_no_answers(files, mined):
    rows, expected = lines(mined), allowed(files)
    assert [(row["query"], row["positive"]) for row in rows] == [pair for pair, _, _ in expected]
    for row, (_, texts, score) in zip(rows, expected, strict=True):
        negatives = row.get("negatives", [])
        assert set(negatives) <= texts
        assert len(negatives) == len(set(negatives)) == min(3, len(texts))
        assert row["positive_score"] == pytest.approx(score, abs=1e-5)
        scores = row.get("negative_scores", [])
        assert scores == sorted(scores, reverse=True)
    assert len({len(row.get("negatives", [])) for row in rows}) > 1, "the margin leaves some pairs with fewer"
    found = read_texts([mined])
    assert len(found) == 40
    assert (found.rows != NO_TEXT).sum() == 80 + sum(len(row.get("negatives", [])) for row in rows)


def test_the_draw_is_that_of_its_seed(files, mined, tmp_path, capsys):
    assert mine(files, tmp_path / "same.jsonl", *ASKED, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    rows = lines(mined)
    assert (said["pairs"], said["negatives"]) == (40, sum(len(row.get("negatives", [])) for row in rows))
    assert said["none"] == sum("negatives" not in row for row in rows)
    assert (tmp_path / "same.jsonl").read_bytes() == mined.read_bytes()
    assert mine(files, tmp_path / "other.jsonl", *ASKED, "--seed", "1") == 0
    assert (tmp_path / "other.jsonl").read_bytes() != mined.read_bytes()


def test_killed_and_resumed_it_has_every_pair_once(files, tmp_path, capsys):
    out = tmp_path / "mined.jsonl"
    words = ["mine", files / "pairs.tsv", "--corpus", files / "corpus.txt", "--model", files / "model", "--out", out]
    words = [str(word) for word in (*words, *ASKED, "--resume")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for saves, name in ((5, "mined.jsonl.corpus"), (10, "mined.jsonl.part")):  # 12 blocks of texts, then 5 of pairs
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(saves), *words], env=environment, capture_output=True, check=False
        )
        assert done.returncode == -9, done.stderr[-2000:]
        assert (tmp_path / name).is_dir()
        assert not out.exists()
    kept = json.loads((tmp_path / "mined.jsonl.part" / "state.json").read_text())
    assert 0 < kept["rows"] < 40
    assert run([word for word in words if word != "--resume"]) == 2
    assert "--resume goes on, or remove it" in capsys.readouterr().err
    assert run([*words[:-1], "--seed", "3", "--resume"]) == 2
    assert "was begun with mining" in capsys.readouterr().err
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "0", *words], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert mine(files, tmp_path / "straight.jsonl") == 0
    assert lines(out) == lines(tmp_path / "straight.jsonl")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("mined")] == ["mined.jsonl"]


@pytest.mark.parametrize(
    ("more", "changes", "sentence"),
    [
        (("--to", "500"), {}, "has 102 texts, and --to 500 asks for more; lower --to"),
        (("--from", "9", "--to", "12"), {}, "ranks 9 to 12 (--from, --to) are fewer than --negatives 5"),
        (("--margin", "nan"), {}, "margin=nan must be from 0 to 1"),
        (("--negatives", "0"), {}, "negatives=0 must be at least 1"),
        (ASKED, {"corpus": "missing.txt"}, "missing.txt cannot be read"),
        (ASKED, {"pairs": "corpus.txt"}, "corpus.txt"),
        (ASKED, {"pairs": "torn.tsv"}, "torn.tsv, line 3"),
    ],
)
def test_wrong_requests_are_one_sentence(files, tmp_path, capsys, more, changes, sentence):
    (files / "torn.tsv").write_text("query\tpositive\na\tb\nonly one\n")
    assert mine(files, tmp_path / "out.jsonl", *more, **changes) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_rows_are_left_out_and_listed(files, tmp_path, capsys):
    (files / "some.tsv").write_text((files / "pairs.tsv").read_text() + "only one\n")
    assert mine(files, tmp_path / "out.jsonl", *ASKED, "--on-error", "skip", pairs="some.tsv") == 0
    assert "1 row was left out" in capsys.readouterr().err
    assert len(lines(tmp_path / "out.jsonl")) == 40
