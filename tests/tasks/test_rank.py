"""Ranking: files, losses beside loops that anybody can read, lists in parts, ties, cross-encoders, bad input."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.data.ranked import RankExample
from bertkit.data.tables import Columns, Location
from bertkit.errors import BertkitError, RequestError
from bertkit.finetuning.check.check_data import check_data
from bertkit.finetuning.evaluate import make_windows, run_model
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.predict.files.answers import predict_file
from bertkit.predict.files.pipeline import RunOptions
from bertkit.predict.files.rows import FileSettings
from bertkit.tasks.rank import Rank, Ranked, Ranking, split_list
from bertkit.tasks.read import guess_task, read_examples
from bertkit.tasks.rows.rank import RANK_OBJECTIVES
from bertkit.tasks.shared import rank_losses
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.task import LossSettings

pytestmark = pytest.mark.usefixtures("_one_thread")
PLACE = Location(Path("train.jsonl"), 7)
QUERY, TEXTS = "who is ada ?", ["ada is good", "alan is fine", "rome was dull", "a film of ada"]


def example(*relevance: float, query: str = QUERY) -> RankExample:
    return RankExample(query, tuple((TEXTS * 10)[: len(relevance)]), relevance, PLACE)


def task(**arguments) -> Rank:
    return Rank(tokenizer=tiny.tokenizer(), limit=64, **arguments)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


# Files


FLAT = ["query,document,relevance", "who,ada is good,1", "where,rome,0.5", "who,a film,0", "where,the film,0"]
LISTS = [
    {"query": "who", "texts": ["ada is good", "a film"], "scores": [1, 0]},
    {"query": "where", "texts": ["rome", "the film"], "scores": [0.5, 0]},
]


def test_flat_rows_lists_and_sides_are_the_same_examples(tmp_path):
    flat = read_examples("rank", write(tmp_path / "flat.csv", *FLAT))
    lists = read_examples("rank", write(tmp_path / "lists.jsonl", *LISTS))
    assert [(e.query, e.documents, e.relevance) for e in flat.examples] == [
        (e.query, e.documents, e.relevance) for e in lists.examples
    ]
    assert [e.query for e in flat.examples] == ["who", "where"]
    assert [place.line for place in flat.examples[1].rows] == [3, 5]
    assert "2 queries, 4 texts" in flat.summary
    sides = [{"query": "who", "positives": ["ada is good"], "negatives": ["a film", "rome"]}]
    [found] = read_examples("rank", write(tmp_path / "sides.jsonl", *sides)).examples
    assert (found.documents, found.relevance) == (("ada is good", "a film", "rome"), (1, 0, 0))
    triplets = ["anchor,positive,negative", "who,ada,a film", "who,ada,rome"]
    [found] = read_examples("rank", write(tmp_path / "triplets.csv", *triplets)).examples
    assert (found.documents, found.relevance) == (("ada", "a film", "ada", "rome"), (1, 0, 1, 0))
    for name in ("flat.csv", "lists.jsonl", "sides.jsonl"):
        assert guess_task(tmp_path / name) == "rank"


def test_columns_may_be_named_and_tables_of_other_tasks_are_not_taken(tmp_path):
    path = write(tmp_path / "named.csv", "asked,found,grade", "who,ada,2", "who,rome,0")
    [found] = read_examples("rank", path, Columns(text="asked", pair="found", label="grade")).examples
    assert (found.query, found.documents, found.relevance) == ("who", ("ada", "rome"), (2, 0))
    assert guess_task(write(tmp_path / "pairs.csv", "query,document,label", "who,ada,yes", "who,rome,no")) == "classify"


BAD_ROWS = {
    "line 2: the query in 'query' is empty": {"query": " ", "texts": ["a"], "scores": [1]},
    "line 2: the query has no texts in 'texts'": {"query": "who", "texts": [], "scores": []},
    "line 2: text 2 in 'texts' is empty": {"query": "who", "texts": ["a", ""], "scores": [1, 0]},
    "line 2: text 1 in 'texts' is int, not a text": {"query": "who", "texts": [3], "scores": [1]},
    "line 2: 2 texts came with 1 numbers in 'scores'": {"query": "who", "texts": ["a", "b"], "scores": [1]},
    "line 2: 'scores' holds nan, not a number": {"query": "who", "texts": ["a", "b"], "scores": [1, math.nan]},
    "line 2: 'scores' holds None, not a number": {"query": "who", "texts": ["a", "b"], "scores": [1, None]},
    "line 2: no column 'scores'": {"query": "who", "texts": ["a", "b"]},
}


@pytest.mark.parametrize("message", BAD_ROWS)
def test_bad_rows_are_one_sentence_with_file_and_line(message, tmp_path):
    path = write(tmp_path / "train.jsonl", LISTS[0], BAD_ROWS[message])
    with pytest.raises(RequestError, match=message):
        read_examples("rank", path)
    report = check_data(path, task="rank")
    assert message.partition(": ")[2] in str(report.stops[0])


def test_missing_columns_are_named(tmp_path):
    for header, message in {"query,relevance": "the texts to rank", "text,label": "the query"}.items():
        with pytest.raises(RequestError, match=f"looks like {message}"):
            read_examples("rank", write(tmp_path / "train.csv", header, "a,1"))
    with pytest.raises(RequestError, match="looks like the relevance of the texts; name it with label="):
        read_examples("rank", write(tmp_path / "train.csv", "query,text", "who,ada"))


def test_data_that_an_objective_cannot_use_are_refused(tmp_path):
    row, settings = task().row, read_settings("objective=margin").ranking
    alike = [example(1, 1), example(1)]
    with pytest.raises(RequestError, match=r"train\.csv: every text has the relevance 1; there is nothing to learn"):
        row.arguments_from_settings(settings, alike, Path("train.csv"))
    with pytest.raises(RequestError, match="which objective=margin compares; add texts .* or set objective=pointwise"):
        row.arguments_from_settings(settings, [example(1), example(0)], Path("train.csv"))
    usual = read_settings().ranking
    chosen = [
        row.arguments_from_settings(usual, data, Path("x"))["objective"]
        for data in ([example(1, 0)], [example(1), example(0)], [example(3), example(0)])
    ]
    assert chosen == ["listwise", "pointwise", "squared"]
    for wrong in ("objective=best", "list_size=1"):
        with pytest.raises(RequestError, match=wrong.split("=")[1]):
            read_settings(wrong)
    path = write(tmp_path / "classes.csv", "text,label", "a,x", "b,y")
    with pytest.raises(RequestError, match="objective, list_size go with rank, and not with 'classify'"):
        fine_tune("classify", read_settings("list_size=8"), None, path, path, tmp_path / "run")


# Losses


def slow_losses(name: str, scores: list[float], relevance: list[float]) -> float:
    """One list, text by text and pair by pair."""
    sigmoid = [1 / (1 + math.exp(-s)) for s in scores]
    pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if relevance[i] > relevance[j]]
    above = [r - min(relevance) for r in relevance]
    order = sorted(range(len(scores)), key=lambda n: -scores[n])
    rank = {n: place for place, n in enumerate(order, start=1)}
    ideal = sum(g / math.log2(n + 1) for n, g in enumerate(sorted(above, reverse=True), start=1))

    def swap(i: int, j: int) -> float:
        return abs(above[i] - above[j]) * abs(1 / math.log2(rank[i] + 1) - 1 / math.log2(rank[j] + 1)) / ideal

    total = sum(math.exp(s) for s in scores)
    logistic = {(i, j): math.log(1 + math.exp(scores[j] - scores[i])) for i, j in pairs}
    margins = [((scores[i] - scores[j]) - (relevance[i] - relevance[j])) ** 2 for i, j in pairs]
    found = {
        "pointwise": lambda: (
            -sum(r * math.log(p) + (1 - r) * math.log(1 - p) for r, p in zip(relevance, sigmoid, strict=True))
        ),
        "squared": lambda: sum((s - r) ** 2 for s, r in zip(scores, relevance, strict=True)),
        "pairwise": lambda: sum(logistic.values()) / max(1, len(pairs)),
        "margin": lambda: sum(margins) / max(1, len(pairs)),
        "listwise": lambda: (
            -sum(a * (s - math.log(total)) for a, s in zip(above, scores, strict=True)) / (sum(above) or 1)
        ),
        "lambda": lambda: sum(swap(i, j) * logistic[i, j] for i, j in pairs),
    }
    return found[name]()


@pytest.mark.parametrize("name", RANK_OBJECTIVES)
def test_a_loss_equals_its_loop_whatever_the_batch(name):
    draw = np.random.default_rng(1)
    sizes = [3, 1, 6, 2, 4]
    lists = [example(*(draw.integers(0, 4, size=size) / 3).tolist()) for size in sizes]
    lists[3] = example(0.5, 0.5)  # nothing to compare
    ranker = task(objective=name)
    windows = make_windows(ranker, lists)
    logits = torch.tensor(draw.normal(size=(sum(sizes), 1)), dtype=torch.float32, requires_grad=True)
    rows = [part.flatten().tolist() for part in torch.split(logits.detach(), sizes)]
    slow = sum(slow_losses(name, row, list(each.relevance)) for row, each in zip(rows, lists, strict=True))
    batch = Batch.pack([window.ids for window in windows])
    total, count = ranker.loss(logits, batch, windows, LossSettings())
    assert total.item() == pytest.approx(slow, rel=1e-5, abs=1e-6)
    compares = sum(len(set(each.relevance)) > 1 for each in lists)
    assert int(count) == (compares if RANK_OBJECTIVES[name].compares else sum(sizes))
    parts = [ranker.loss_sum(logits[a:b], batch, windows[a:b], LossSettings()) for a, b in ((0, 4), (4, 16))]
    torch.testing.assert_close(sum(parts), total)
    total.backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().sum() > 0


def test_what_losses_want():
    scores = torch.zeros(1, 3, requires_grad=True)
    relevance, real = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    for name in RANK_OBJECTIVES:
        [gradient] = torch.autograd.grad(
            getattr(rank_losses, RANK_OBJECTIVES[name].loss)(scores, relevance, real), scores
        )
        assert gradient[0, 0] < 0, "the relevant text rises"
        assert gradient[0, 0] < gradient[0, 1:].min()
    wanted = torch.tensor([[3.0, -1.0, 0.5]])
    assert float(rank_losses.margin_losses(wanted + 7, wanted, real)) == pytest.approx(0, abs=1e-9), "any level will do"
    assert float(rank_losses.squared_losses(wanted, wanted, real)) == 0


def test_a_teacher_is_followed_in_its_margins():
    ranker = task(objective="pointwise")
    windows = make_windows(ranker, [example(1, 0, 0), example(0, 1)])
    batch = Batch.pack([window.ids for window in windows])
    logits, teacher = torch.randn(2, 5, 1, generator=torch.manual_seed(2))
    found = ranker.distillation_loss(ranker, logits, teacher, batch, windows, 2.0)
    parts = [(logits[a:b].flatten().tolist(), teacher[a:b].flatten().tolist()) for a, b in ((0, 3), (3, 5))]
    assert found.item() == pytest.approx(sum(slow_losses("margin", *part) for part in parts), rel=1e-5)
    assert ranker.distillation_loss(ranker, teacher + 3, teacher, batch, windows, 2.0).item() == pytest.approx(
        0, abs=1e-9
    )


def test_texts_of_a_query_stay_together_in_training():
    ranker = task(objective="listwise")
    windows = make_windows(ranker, [example(1, 0), example(0, 1)])
    apart = [windows[0], windows[2], windows[1], windows[3]]
    with pytest.raises(BertkitError, match="the texts of a query are apart in a batch"):
        ranker.loss_sum(torch.zeros(4, 1), Batch.pack([w.ids for w in apart]), apart, LossSettings())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(2, 12))
def test_long_lists_go_in_parts_that_have_all_texts(numbers, size):
    whole = RankExample(QUERY, tuple(map(str, range(len(numbers)))), tuple(map(float, numbers)), PLACE)
    parts = split_list(whole, size)
    assert all(len(part.documents) <= size for part in parts)
    assert {text for part in parts for text in part.documents} == set(whole.documents)
    assert all(part.numbers[n] == numbers[int(text)] for part in parts for n, text in enumerate(part.documents))
    if whole.compares and len(parts) > 1:
        assert all(part.compares for part in parts if min(part.numbers) == min(numbers))


# Predictions


def test_a_ranking_is_sorted_and_joined():
    seen = [Seen(4), Seen(5, 1), Seen(6)]
    found = Ranking(TEXTS[:3], [0.0, 2.0, 0.0], seen, "sigmoid")
    assert [each.index for each in found] == [1, 0, 2], "equal ones in input order"
    assert found[0] == Ranked(1, pytest.approx(1 / (1 + math.exp(-2))), TEXTS[1], Seen(5, 1))
    assert (found.seen.tokens, found.seen.cut, found.seen.windows) == (15, 1, 3)
    joined = found.joined([Ranking(["more"], [1.0], [Seen(1)], "sigmoid")])
    assert [each.text for each in joined] == [TEXTS[1], "more", TEXTS[0], TEXTS[2]]
    assert joined.logits == (0.0, 2.0, 0.0, 1.0)
    assert "<table" in found._repr_html_()
    assert [each.score for each in Ranking(TEXTS[:2], [-800.0, 40.0], seen, "identity")] == [40.0, -800.0]
    assert Ranking(TEXTS[:1], [-800.0], seen, "sigmoid")[0].score == 0.0


def test_equal_scores_gain_nothing_from_the_order_of_the_file():
    ranker, judged = task(), [example(1, 0, 0)]
    alike = ranker.score(judged, [Ranking(TEXTS[:3], [1.0] * 3, [Seen(1)] * 3, "sigmoid")])
    assert alike["mrr@10"] == pytest.approx(1 / 3)
    right = [Ranking(TEXTS[:3], [2.0, 1.0, 0.0], [Seen(1)] * 3, "sigmoid")]
    assert ranker.score(judged, right)["ndcg@10"] == 1
    both = judged * 2
    predictions = [*right, Ranking(TEXTS[:3], [0.0, 1.0, 2.0], [Seen(1)] * 3, "sigmoid")]
    scorer = ranker.scorer(both, predictions)
    assert scorer([0, 1]) == pytest.approx(ranker.score(both, predictions))
    assert scorer([0, 0])["map"] == 1
    assert ranker.mistake(judged[0], predictions[0]) is None
    mistake = ranker.mistake(judged[0], predictions[1])
    assert (mistake.truth, mistake.predicted) == (TEXTS[0], TEXTS[2])
    assert mistake.weight == pytest.approx(0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cross-encoder of random weights, as bertkit saves it."""
    path = tmp_path_factory.mktemp("rank") / "model"
    return random_folder(path, saved={"name": "rank"})


def random_folder(path: Path, activation: str | None = "sigmoid", saved: dict | None = None) -> Path:
    shape = {"depth": 2, "width": 32, "heads": 2, "inner": 64, "max_length": 64, "vocab_size": len(tiny.PIECES)}
    model = new_model(family_config("bert", "tiny", **shape, init_std=0.3), {"classify": 1}, seed=3).eval()
    fields = task(activation=activation).config_fields if activation else {}
    known = {"tokenizer": tiny.tokenizer(), "labels": ("LABEL_0",), "max_length": 64}
    save_checkpoint(Checkpoint(model=model, settings=fields, task=saved or {}, **known), path)
    return path


def test_rank_one_many_and_the_best(folder):
    bert = bertkit.load(folder)
    found = bert.rank(QUERY, TEXTS)
    assert sorted(each.index for each in found) == [0, 1, 2, 3]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert all(0 < each.score < 1 and each.text == TEXTS[each.index] for each in found)
    assert bert.rank(QUERY, TEXTS, top=2) == found[:2]
    assert bert.rank(QUERY, tuple(TEXTS), 99) == list(found)
    several = bert.rank([QUERY, "where ?"], [TEXTS, TEXTS[:2]], top=3)
    assert [len(each) for each in several] == [3, 2]
    assert several[0] == found[:3]
    for top in (0, -1, True, 2.5):
        with pytest.raises(RequestError, match="must be a whole number from 1"):
            bert.rank(QUERY, TEXTS, top=top)
    for texts in ([], "one text", [1]):
        with pytest.raises(RequestError, match="what query 1 is to rank must be a list of texts"):
            bert.rank(QUERY, texts)
    with pytest.raises(RequestError, match="2 queries came with 1 lists of texts"):
        bert.rank([QUERY, QUERY], [TEXTS])


def test_many_texts_are_computed_apart_and_score_as_alone(folder, monkeypatch):
    bert, sizes = bertkit.load(folder), []
    monkeypatch.setattr("bertkit.finetuning.evaluate.token_budget", lambda *_: 64)
    plain = Batch.pack
    monkeypatch.setattr(Batch, "pack", lambda ids, *rest: sizes.append(len(ids)) or plain(ids, *rest))
    texts = [" ".join(TEXTS[: 1 + n % 4]) for n in range(40)]
    found = bert.rank(QUERY, texts)
    assert max(sizes) < 20, "not one batch of forty"
    alone = {n: bert.rank(QUERY, [text])[0].score for n, text in enumerate(texts[:4])}
    for each in found:
        assert each.score == pytest.approx(alone[each.index % 4], abs=1e-6)


def test_the_loss_on_dev_is_that_of_whole_lists(folder):
    bert, ranker = bertkit.load(folder), task(objective="listwise")
    windows = make_windows(ranker, [example(1, 0, 0), example(0, 2)])
    outputs = run_model(bert.model, ranker, windows)
    logits = torch.from_numpy(np.stack(outputs.rows))
    total, count = ranker.loss(logits, Batch.pack([w.ids for w in windows]), windows, LossSettings())
    assert outputs.loss == pytest.approx(float(total / count), rel=1e-5)


def test_a_flat_file_is_answered_row_by_row_and_scored_by_query(folder, tmp_path):
    path = write(tmp_path / "rows.csv", *FLAT)
    done = predict_file(folder, path, tmp_path / "out.jsonl", FileSettings(), RunOptions(device="cpu"))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    bert = bertkit.load(folder)
    assert [row["scores"] for row in rows] == [
        [pytest.approx(bert.rank(row["query"], [row["document"]])[0].score)] for row in rows
    ]
    assert done.scores.rows == 2
    assert str(done.scores).endswith("(2 queries, label = relevance)")
    assert done.scores.values == pytest.approx(bertkit.evaluate(bert, path).scores)


@pytest.mark.parametrize("objective", ["pointwise", "lambda"])
def test_it_learns_what_is_praised(objective, tmp_path):
    start = tiny.tiny_folder(tmp_path / "start")
    train, dev = tiny.write_ranked(tmp_path / "a.jsonl", 96), tiny.write_ranked(tmp_path / "b.jsonl", 24, seed=2)
    settings = read_settings(
        "epochs=6", "batch=6", "learning_rate=3e-3", "layer_decay=1", "dropout=0", f"objective={objective}"
    )
    result = fine_tune("rank", settings, start, train, dev, tmp_path / "run")
    assert result.metric == "ndcg@10"
    assert result.score > 0.9
    assert result.collapsed is None
    bert = bertkit.load(tmp_path / "run")
    [best] = bert.rank("film 7 ?", ["the dull film", "a lovely film", "rome"], top=1)
    assert best.text == "a lovely film"
    assert (0 <= best.score <= 1) or objective == "lambda"
    again = fine_tune("rank", read_settings("epochs=1", "objective=margin"), tmp_path / "run", dev, dev, tmp_path / "2")
    assert again.score > 0.8, "its head goes on"


# Folders of sentence-transformers


PAIRS = [(QUERY, text) for text in [*TEXTS, " ".join(TEXTS * 8), "e"]]


@pytest.fixture(scope="module")
def cross_encoder():
    import sentence_transformers

    return sentence_transformers.CrossEncoder


def scores_of(bert: bertkit.Bert) -> list[float]:
    ranked = bert.rank(QUERY, [text for _, text in PAIRS])
    return [each.score for each in sorted(ranked, key=lambda each: each.index)]


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_cross_encoders_of_sentence_transformers_in_and_out(activation, cross_encoder, tmp_path):
    saved = random_folder(tmp_path / "ours", activation)
    ours, theirs = bertkit.load(saved), cross_encoder(str(saved), device="cpu")
    np.testing.assert_allclose(scores_of(ours), theirs.predict(PAIRS), atol=1e-5)
    theirs.save(str(tmp_path / "theirs"))
    back = bertkit.load(tmp_path / "theirs")
    assert back.answers.task.activation == activation
    np.testing.assert_allclose(scores_of(back), theirs.predict(PAIRS), atol=1e-5)
    back.save(tmp_path / "again")
    np.testing.assert_allclose(
        cross_encoder(str(tmp_path / "again"), device="cpu").predict(PAIRS), scores_of(ours), atol=1e-5
    )
    order = [row["corpus_id"] for row in theirs.rank(QUERY, TEXTS)]
    assert [each.index for each in ours.rank(QUERY, TEXTS)] == order


def test_a_length_set_there_is_kept_here(cross_encoder, tmp_path):
    cross_encoder(str(random_folder(tmp_path / "ours")), device="cpu", max_length=16).save(str(tmp_path / "short"))
    theirs = cross_encoder(str(tmp_path / "short"), device="cpu")
    bert = bertkit.load(tmp_path / "short")
    np.testing.assert_allclose(scores_of(bert), theirs.predict(PAIRS), atol=1e-5)
    assert bert.rank(QUERY, [PAIRS[4][1]])[0].seen.cut > 0


def test_old_and_plain_folders(cross_encoder, tmp_path):
    folder = random_folder(tmp_path / "plain", None)
    config = json.loads((folder / "config.json").read_text())
    bert = bertkit.load(folder)
    assert bert.answers.task.name == "regress", "nothing says what its one number is"
    np.testing.assert_allclose(scores_of(bert), cross_encoder(str(folder), device="cpu").predict(PAIRS), atol=1e-5)
    (folder / "config.json").write_text(json.dumps({**config, "problem_type": "regression"}))
    with pytest.raises(RequestError, match="this model was fine-tuned for 'regress'; it cannot rank"):
        bertkit.load(folder).rank(QUERY, TEXTS)
    old = {**config, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(old))
    bert = bertkit.load(folder)
    np.testing.assert_allclose(scores_of(bert), cross_encoder(str(folder), device="cpu").predict(PAIRS), atol=1e-5)
    other = {**config, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    (folder / "config.json").write_text(json.dumps(other))
    with pytest.raises(
        RequestError, match="unknown activation_fn of config.json 'Tanh'; choose from: Identity, Sigmoid"
    ):
        bertkit.load(folder).rank(QUERY, TEXTS)


def test_what_a_cross_encoder_may_have_beside_is_refused(cross_encoder, tmp_path):
    cross_encoder(str(random_folder(tmp_path / "ours")), device="cpu").save(str(tmp_path / "ce"))
    path = tmp_path / "ce" / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "default_prompt_name": "q", "prompts": {"q": "query: "}}))
    with pytest.raises(RequestError, match="default_prompt_name of a cross-encoder is not supported"):
        bertkit.load(tmp_path / "ce")
    path.write_text(json.dumps(settings))
    modules = json.loads((tmp_path / "ce" / "modules.json").read_text())
    more = [*modules, {"idx": 1, "name": "1", "path": "1", "type": "sentence_transformers.models.LogitScore"}]
    (tmp_path / "ce" / "modules.json").write_text(json.dumps(more))
    with pytest.raises(RequestError, match="the module 'LogitScore' of a cross-encoder is not supported"):
        bertkit.load(tmp_path / "ce")


def test_a_trained_model_is_a_cross_encoder_and_a_cross_encoder_is_trained_on(cross_encoder, tmp_path):
    start = cross_encoder(str(random_folder(tmp_path / "start")), device="cpu")
    start.save(str(tmp_path / "ce"))
    train, dev = tiny.files(tmp_path, "rank", 24, 12)
    tiny_step = read_settings("epochs=1", "batch=12", "learning_rate=1e-6", "objective=pointwise", "warmup=0")
    fine_tune("rank", tiny_step, tmp_path / "ce", train, dev, tmp_path / "run")
    trained = bertkit.load(tmp_path / "run")
    theirs = cross_encoder(str(tmp_path / "run" / "model"), device="cpu")
    np.testing.assert_allclose(scores_of(trained), theirs.predict(PAIRS), atol=1e-5)
    np.testing.assert_allclose(theirs.predict(PAIRS), start.predict(PAIRS), atol=1e-3), "its head went on"
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["sentence_transformers"] == {"activation_fn": "torch.nn.modules.activation.Sigmoid"}


def test_the_real_trunk_with_a_random_head(cross_encoder, minilm, tmp_path):
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.finetuning.learner import with_config

    base = load_checkpoint(minilm)
    model = with_config(base.model, base.model.config, {"classify": 1}, seed=4)
    torch.nn.init.normal_(model.heads["classify"].out.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    fields = task(activation="identity").config_fields
    made = Checkpoint(model=model, tokenizer=base.tokenizer, labels=("LABEL_0",), max_length=256, settings=fields)
    save_checkpoint(made, tmp_path / "ours")
    pairs = [("Where does Ada live?", text) for text in ("She moved to London.", "Stocks fell again. " * 90, "42")]
    theirs = cross_encoder(str(tmp_path / "ours"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    for folder in ("ours", "theirs"):
        ranked = bertkit.load(tmp_path / folder).rank(pairs[0][0], [text for _, text in pairs])
        scores = [each.score for each in sorted(ranked, key=lambda each: each.index)]
        np.testing.assert_allclose(scores, theirs.predict(pairs), atol=1e-5)
