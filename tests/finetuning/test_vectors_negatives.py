"""Pairs with negatives: how they are read, and that all negatives of a step are candidates of every first text."""

import json
import math

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.data import NO_TEXT, read_texts
from bertkit.finetuning.embeddings.losses import VectorTargets, contrastive_loss
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import tune_vectors

pytestmark = pytest.mark.usefixtures("_one_thread")


def contrast_plain(vectors, names, count, heat):
    """Pair by pair: minus the log of the partner's share among all second texts and negatives that may be asked."""
    cosines = (vectors @ vectors.T).tolist()
    first, right, total = names[:count], 0, 0.0
    for i in range(count):
        own, partner = first[i], names[count + i]
        may = [j for j in range(count, len(names)) if names[j] not in (own, partner)]
        may = [j for j in may if j >= 2 * count or first[j - count] != own]
        shares = {j: math.exp(cosines[i][j] / heat) for j in (*may, count + i)}
        total -= math.log(shares[count + i] / sum(shares.values())) / 2
        right += max(shares, key=shares.__getitem__) == count + i
        back = [k for k in range(count) if k == i or (first[k] not in (own, partner) and names[count + k] != partner)]
        back = [k for k in back if k == i or first[k] != partner]
        shares = {k: math.exp(cosines[k][count + i] / heat) for k in back}
        total -= math.log(shares[i] / sum(shares.values())) / 2
    return total, right


@pytest.mark.parametrize(
    "names",
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],  # 3 pairs, 5 negatives
        [0, 1, 2, 3, 4, 5, 3, 0, 1, 4, 6],  # negatives that are somebody's partner, or a first text
        [0, 0, 2, 3, 4, 5, 4, 7, 7, 8, 9],  # one text with two partners; one negative twice
        [0, 1, 2, 3, 4, 5],  # none
    ],
)
def test_negatives_are_candidates_of_every_first_text(names):
    vectors = F.normalize(torch.randn(max(names) + 1, 6, generator=torch.Generator().manual_seed(1)), dim=-1)[names]
    loss, right = contrastive_loss(vectors, VectorTargets(3, torch.tensor(names)), 0.2)
    plain, hits = contrast_plain(vectors, names, 3, 0.2)
    assert float(loss) == pytest.approx(plain, rel=1e-4)
    assert int(right) == hits


def test_columns_and_lists_of_negatives(tmp_path):
    table, lines = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text("query,positive,negative,negative_2\nq1,p1,n1,n2\nq2,p2,,\nq3,p3,p1,\n")
    rows = [
        {"query": "q1", "positive": "p1", "negatives": ["n1", "n2"], "score": 0.7},
        {"query": "q2", "positive": "p2", "score": 0.3},
        {"query": "q3", "positive": "p3", "negatives": ["p1"], "score": 0.4},
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (table, lines):
        found = read_texts([path])
        assert found.kind == "pairs", "scores of whoever mined them are not learned"
        texts = [[found.texts[n] for n in row if n != NO_TEXT] for row in found.rows]
        assert texts == [["q1", "p1", "n1", "n2"], ["q2", "p2"], ["q3", "p3", "p1"]]
        assert found.summary.endswith("3 negatives")
    named = tmp_path / "n.tsv"
    named.write_text("q\tnegative\tneg_1\nwho is it\tit is ada\tnobody\nwhere\tin rome\tno\n")
    found = read_texts([named], Columns(text="q", pair="negative"))
    assert found.rows.tolist() == [[0, 1, 2], [3, 4, 5]], "a column that was named as a pair is one"


@pytest.mark.parametrize(
    ("negatives", "kind", "sentence"),
    [
        ([], "auto", "line 2: 'negatives' must be a text or a list of texts, none of them empty; a row without"),
        (["n", " "], "auto", "line 2: 'negatives' must be a text or a list"),
        ([["n"]], "auto", "line 2: 'negatives' must be a text or a list"),
        (3, "auto", "line 2: 'negatives' must be a text or a list"),
        (["\ud800"], "auto", "half a surrogate pair"),
        (["n"], "scores", "has negatives, which pairs with scores do not take"),
    ],
)
def test_negatives_that_cannot_be_used(tmp_path, negatives, kind, sentence):
    path = tmp_path / "t.jsonl"
    rows = [{"query": "a", "positive": "b", "score": 1}, {"query": "c", "positive": "d", "score": 0}]
    rows[1]["negatives"] = negatives
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RequestError) as error:
        read_texts([path], kind=kind)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_scores_that_are_not_finite_are_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "c", "sentence2": "d", "score": NaN}\n'
    )
    with pytest.raises(RequestError, match=r"t.jsonl, line 2"):
        read_texts([path])


def test_a_run_learns_what_its_negatives_say(tmp_path):
    """Every query's partner and negative share all words but one; a step in parts ends where a step as one does."""
    draw, rows = np.random.default_rng(0), []
    for n in range(48):
        word, other = (tiny.GOOD, tiny.BAD) if n % 2 else (tiny.BAD, tiny.GOOD)
        row = {"query": f"{draw.choice(word)} film", "positive": f"it is {draw.choice(word)}"}
        rows.append({**row, "negatives": [f"it is {draw.choice(other)}" for _ in range(n % 3)]} if n % 3 else row)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, losses = tiny.tiny_folder(tmp_path / "model"), []
    for name, more in (("one", []), ("parts", ["tokens=64"])):
        settings = ("batch=16", "dropout=0", "epochs=6", "learning_rate=3e-3", "temperature=0.2", "log_every=1")
        wanted = read_vector_request(*settings, *more)[0]
        tune_vectors(wanted, model, path, None, tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"]["task"] for line in lines])
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-3)
    assert np.mean(losses[0][-3:]) < 0.8 * np.mean(losses[0][:3])
    assert load_checkpoint(tmp_path / "one").embed.normalize
