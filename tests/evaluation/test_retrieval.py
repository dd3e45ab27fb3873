"""Retrieval folders: the same numbers as trec_eval's on cosines computed by hand; what is left out; what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from test_yardsticks import TOKENIZER, WORDS, model_of

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.evaluation.retrieval import Retrieval
from bertkit.tasks.metrics.ranking import RANKING_METRICS

DOCUMENTS = [
    {"_id": "a", "title": "the cat", "text": "sat on the mat"},
    {"_id": "b", "text": "dogs bark"},
    {"_id": 3, "title": "", "text": "the cat runs"},
    {"_id": "d", "text": "dogs"},
]
QUERIES = [{"_id": "q1", "text": "the cat"}, {"_id": "q2", "text": "bark"}, {"_id": "q3", "text": "mat"}]
JUDGED = ["q2\tb\t2", "q1\ta\t1", "q1\t3\t2", "q1\td\t0"]


def folder_of(folder: Path, documents=DOCUMENTS, queries=QUERIES, judged=JUDGED, qrels="qrels.tsv") -> Path:
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / qrels).parent.mkdir(exist_ok=True)
    (folder / qrels).write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


@pytest.fixture(scope="module")
def bert():
    return bertkit.Bert(Checkpoint(model=model_of("bert"), tokenizer=TOKENIZER))


def test_the_scores_are_trec_eval_s_on_cosines_by_hand(bert, tmp_path):
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size=draw.integers(2, 9))) for _ in range(60)]
    documents = [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts[:40])]
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts[40:])]
    judgements = {q["_id"]: {f"d{n}": int(draw.integers(0, 4)) for n in draw.choice(40, 12, False)} for q in queries}
    judged = [f"{query}\t{document}\t{score}" for query, row in judgements.items() for document, score in row.items()]
    found = bertkit.evaluate(bert, folder_of(tmp_path, documents, queries, judged))
    one, other = (bert.embed([row["text"] for row in rows]).astype(np.float64) for rows in (queries, documents))
    cosines = (one @ other.T) / np.linalg.norm(one, axis=1)[:, None] / np.linalg.norm(other, axis=1)
    run = {
        q["_id"]: {d["_id"]: float(c) for d, c in zip(documents, row, strict=True)}
        for q, row in zip(queries, cosines, strict=True)
    }
    theirs = pytrec_eval.RelevanceEvaluator(judgements, {"ndcg_cut.10", "map", "recall.10"}).evaluate(run)
    means = {name: np.mean([row[name] for row in theirs.values()]) for name in ("ndcg_cut_10", "map", "recall_10")}
    assert [found.scores[name] for name in ("ndcg@10", "map", "recall@10")] == pytest.approx(
        list(means.values()), abs=1e-6
    )
    assert (found.task, found.metric, found.examples, set(found.scores)) == (
        "retrieval",
        "ndcg@10",
        20,
        set(RANKING_METRICS),
    )
    low, high = found.intervals["ndcg@10"]
    error = np.std([row["ndcg_cut_10"] for row in theirs.values()], ddof=1) / np.sqrt(20)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.2)


def test_what_is_judged_is_read_and_what_is_not_is_counted(bert, tmp_path):
    rows = Retrieval().read(folder_of(tmp_path, [*DOCUMENTS, {"_id": "e", "title": None, "text": ""}]), Columns())
    assert [(row.key, row.relevance) for row in rows] == [("q1", {"a": 1, "3": 2, "d": 0}), ("q2", {"b": 2})]
    assert rows[0].collection.documents["a"] == "the cat sat on the mat"
    note = Retrieval().note(bert, rows)
    assert note == "5 documents, 2 queries; queries without judgements, left out: 1; documents without text: 1"


def test_a_document_that_is_the_query_is_left_out_and_one_with_its_id_alone_is_not(tmp_path):
    class First:
        """Finds all documents in their order."""

        def search(self, queries, texts, k):
            return [[bertkit.Found(n, 1.0, text) for n, text in enumerate(texts)] for _ in queries]

    queries = [{"_id": "b", "text": "dogs bark"}, {"_id": "a", "text": "the mat"}]
    rows = Retrieval().read(folder_of(tmp_path, queries=queries, judged=["b\t3\t1", "a\t3\t1"]), Columns())
    ranks = [1 / score.values["mrr@10"] for score in Retrieval().ask(First(), rows)]
    assert ranks == [2, 3]  # of document 3: after a alone; after a and b


def test_the_file_of_judgements_is_found_or_named(bert, tmp_path):
    folder_of(tmp_path, qrels="qrels/dev.tsv")
    assert bertkit.evaluate(bert, tmp_path).examples == 2
    folder_of(tmp_path, qrels="qrels/train.tsv", judged=JUDGED[:1])
    with pytest.raises(RequestError, match=r"several files \(dev.tsv, train.tsv\) and no test.tsv; name one"):
        bertkit.evaluate(bert, tmp_path)
    assert bertkit.evaluate(bert, tmp_path / "qrels" / "train.tsv").examples == 1
    folder_of(tmp_path, qrels="qrels/test.tsv", judged=JUDGED[1:])
    assert bertkit.evaluate(bert, tmp_path).examples == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"judged": [*JUDGED, "q1\tz\t1"]}, "qrels.tsv, line 6: there is no document z; add it, or remove the row"),
        ({"judged": ["q9\ta\t1"]}, "qrels.tsv, line 2: there is no query q9"),
        ({"judged": ["q1\ta\tyes"]}, "line 2: the score of document a is no number"),
        ({"judged": ["q1\ta\tnan"]}, "line 2: the score of document a is no number"),
        ({"judged": ["q1\ta\t1", "q1\ta\t0"]}, "line 3: query q1 and document a were judged otherwise above"),
        ({"judged": []}, "holds a header line and no rows"),
        ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, "corpus.jsonl, line 5: the id a is there twice"),
        ({"documents": [{"text": "a"}]}, "corpus.jsonl, line 1: no column '_id'"),
        ({"documents": [{"_id": None, "text": "a"}]}, "line 1: '_id' must be a text or a whole number"),
        ({"queries": [{"_id": "q1", "text": " "}]}, "queries.jsonl, line 1: query q1 has no text"),
    ],
)
def test_damaged_folders_are_refused_with_file_and_line(bert, tmp_path, changed, message):
    with pytest.raises(RequestError, match=message):
        bertkit.evaluate(bert, folder_of(tmp_path, **changed))


def test_folders_of_another_kind_are_refused(bert, tmp_path):
    with pytest.raises(RequestError, match="such folders are: retrieval: a folder with corpus.jsonl"):
        bertkit.evaluate(bert, tmp_path)
    folder_of(tmp_path)
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(RequestError, match=r"has no corpus.jsonl \(nor corpus.jsonl.zst\)"):
        bertkit.evaluate(bert, tmp_path)
    (tmp_path / "qrels.tsv").write_text("q1\t0\ta\t1\n" * 2)
    with pytest.raises(RequestError, match=r"qrels.tsv has the columns .*; needed: query-id, corpus-id, score"):
        bertkit.evaluate(bert, tmp_path, by="retrieval")
