"""Around one run: seeds, searches, teachers, frozen features, learning curves, reports, whole benchmarks."""

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.distill import Student, Teacher, kl, load_teacher
from bertkit.finetuning.explore.curve import curve_table, learning_curve
from bertkit.finetuning.explore.features import (
    Features,
    doubtful_labels,
    feature_scores,
    fit_classifier,
    layer_features,
    predict_from_mixture,
    predict_labels,
    read_features,
)
from bertkit.finetuning.explore.features_model import choose_layer, save_layer, saveable_layers
from bertkit.finetuning.explore.glue import PUBLISHED, find_tasks, glue_table, run_glue
from bertkit.finetuning.explore.search import DATA_SHARES, ranked, rate_range, search, training_subset
from bertkit.finetuning.explore.seeds import Seeds, run_seeds
from bertkit.finetuning.fine_tuning import fine_tune, open_data
from bertkit.finetuning.learner import load_start, pack, task_logits
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.settings import read_settings
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset, LossSettings

QUICK = read_settings("epochs=6", "learning_rate=3e-3", "batch=16")
ONE = read_settings("epochs=1", "learning_rate=3e-3", "batch=16")


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def taught(model, tmp_path_factory) -> Path:
    """A run that has learned its task."""
    folder = tmp_path_factory.mktemp("taught")
    fine_tune("classify", QUICK, model, *tiny.files(folder, "classify"), folder / "run")
    return folder / "run"


def data(task, model, folder, settings=ONE, train=64):
    return open_data(task, settings, model, *tiny.files(folder, task, train, 32))


def result(score: float, loss: float = 0.0, metric: str = "accuracy") -> FineTuned:
    scores = {"accuracy": score, "loss": loss}
    done = {"best_step": 1, "steps": 1, "finished": True, "notes": ()}
    return FineTuned(task="classify", metric=metric, scores=scores, plain=scores, calibration={}, **done)


def test_seeds_give_mean_deviation_and_the_median_s_model(model, tmp_path):
    train, dev = tiny.files(tmp_path, "classify", 64, 32)

    def teach(settings, folder):
        return fine_tune("classify", settings, model, train, dev, folder, resume=True)

    found = run_seeds(teach, ONE, 3, tmp_path / "out")
    losses = [each.scores["loss"] for each in found.results]
    assert len(set(losses)) == 3
    assert found.means["loss"] == pytest.approx(statistics.fmean(losses))
    assert found.deviations["loss"] == pytest.approx(statistics.stdev(losses))
    assert bertkit.load(tmp_path / "out").classify("good film").label in ("positive", "negative")
    assert not list((tmp_path / "out").glob("seed-*/model"))
    assert json.loads((tmp_path / "out" / "seeds.json").read_text())["median"] == found.median
    assert run_seeds(teach, ONE, 3, tmp_path / "out") == found  # nothing is done again
    first = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    fewer = next(count for count in (2, 1) if Seeds(found.results[:count]).median != found.median)
    again = run_seeds(teach, ONE, fewer, tmp_path / "out")  # whose model was removed, and is made once more
    assert again.results == found.results[:fewer]
    assert json.loads((tmp_path / "out" / "seeds.json").read_text())["median"] == again.median
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() != first


def test_more_seeds_later_keep_the_model_of_the_new_median(model, tmp_path):
    train, dev = tiny.files(tmp_path, "classify", 64, 32)

    def teach(settings, folder):
        found = fine_tune("classify", settings, model, train, dev, folder, resume=True)
        return replace(found, scores={**found.scores, "accuracy": 0.1 + settings.learning.seed})

    run_seeds(teach, ONE, 1, tmp_path / "out")
    first = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    assert run_seeds(teach, ONE, 3, tmp_path / "out").median == 1
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() != first


@pytest.mark.parametrize("several", ["seeds", "search"])
def test_the_model_of_another_run_is_neither_replaced_nor_taken_for_theirs(model, taught, tmp_path, several):
    begin, prepared = data("classify", model, tmp_path)
    before = (taught / "model" / "model.safetensors").read_bytes()
    with pytest.raises(RequestError, match="holds the model of another run"):
        if several == "seeds":
            run_seeds(lambda *_: result(0.5), ONE, 2, taught)
        else:
            search(prepared, begin, ONE, taught)
    assert (taught / "model" / "model.safetensors").read_bytes() == before


def test_scores_that_not_every_seed_has_are_left_out():
    other = replace(result(0.5), scores={"accuracy": 0.7, "loss": 0.1, "answerable_f1": 0.3})
    assert Seeds((other, result(0.5))).means == {"accuracy": 0.6, "loss": 0.05}


@pytest.mark.parametrize(("scores", "median"), [([0.1], 0), ([0.9, 0.1, 0.5], 2), ([0.4, 0.3, 0.2, 0.1], 2)])
def test_the_median_is_a_run_not_a_number(scores, median):
    assert Seeds(tuple(map(result, scores))).median == median


def test_no_seeds_are_refused(tmp_path):
    with pytest.raises(RequestError, match="--seeds 0: at least one"):
        run_seeds(lambda *_: result(0.5), ONE, 0, tmp_path)


def test_search_halves_the_grid_and_keeps_the_winner(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path, train=256)
    grid = {"learning_rate": ("1e-7", "3e-3"), "batch": ("8", "16")}
    found = search(prepared, begin, read_settings("epochs=10"), tmp_path / "out", grid=grid)
    assert [trial.share for trial in found.trials] == [DATA_SHARES[0]] * 4 + [DATA_SHARES[1]] * 2 + [DATA_SHARES[2]]
    assert found.changes["learning_rate"] == "3e-3"
    assert len(list((tmp_path / "out").rglob("model.safetensors"))) <= 3
    assert bertkit.load(tmp_path / "out").answers.task.labels == ("negative", "positive")


def test_trials_go_on_only_from_their_own_data_and_model(model, tmp_path):
    """A stopped search leaves checkpoints; given again with other data, they are not to be gone on from."""
    begin, prepared = data("classify", model, tmp_path)
    grid = {"learning_rate": ("1e-3",)}
    search(prepared, begin, ONE, tmp_path / "out", grid=grid, model=model)
    search(prepared, begin, ONE, tmp_path / "out", grid=grid, model=model)  # the same again
    other = training_subset(prepared, 40, seed=1)
    with pytest.raises(RequestError, match="begun with data="):
        search(other, begin, ONE, tmp_path / "out", grid=grid, model=model)
    with pytest.raises(RequestError, match="begun with from="):
        search(prepared, begin, ONE, tmp_path / "out", grid=grid, model=Path("another"))
    learning_curve(prepared, begin, ONE, [16], tmp_path / "out", model=model)
    with pytest.raises(RequestError, match="begun with data="):
        learning_curve(other, begin, ONE, [16], tmp_path / "out", model=model)


def test_ranking_prefers_scores_then_losses_and_knows_errors():
    assert ranked([result(0.5, 0.2), result(0.9, 0.9), result(0.5, 0.1)]) == [1, 2, 0]
    assert ranked([result(0.5, 0.2, "loss"), result(0.1, 0.1, "loss")]) == [1, 0]


def test_smaller_subsets_are_parts_of_larger_ones(model, tmp_path):
    _, prepared = data("classify", model, tmp_path)
    small, large = (training_subset(prepared, size, seed=5).train.examples for size in (10, 30))
    assert large[:10] == small
    assert len({example.location for example in large}) == 30
    with pytest.raises(RequestError, match="65 training examples are needed, but there are 64"):
        training_subset(prepared, 65, 0)


def test_the_rate_grows_until_it_breaks_and_a_smaller_one_is_suggested(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path)
    found = rate_range(prepared, load_start(begin, prepared.task, ONE), ONE, steps=40)
    assert found.rates[0] == pytest.approx(1e-7)
    assert list(found.rates) == sorted(found.rates)
    assert 1e-7 <= found.suggestion < max(found.rates)
    assert "suggested: learning_rate=" in str(found)


def test_kl_is_the_textbook_s():
    binomial, uniform = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
    assert float(kl(binomial, uniform)) == pytest.approx(0.0852996, abs=1e-6)
    assert float(kl(uniform, binomial)) == pytest.approx(0.097455, abs=1e-6)
    assert float(kl(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))) == pytest.approx(np.log(2), abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_a_pupil_like_its_teacher_has_no_distance_and_another_has_some(task, model, tmp_path):
    begin, prepared = data(task, model, tmp_path)
    windows = [window for own in prepared.train.windows[:6] for window in own]
    own = load_start(begin, prepared.task, ONE).model.eval()
    batch = pack(windows, own.config)
    with torch.no_grad():
        logits = task_logits(own, prepared.task, batch, windows)
        teacher = Teacher(model=own, task=prepared.task)
        same = prepared.task.distillation_loss(teacher.task, logits, logits, batch, windows, teacher.temperature)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        other = prepared.task.distillation_loss(teacher.task, 3 * noise, logits, batch, windows, teacher.temperature)
    least = 0.0 if task != "multilabel" else float(same)  # cross entropy against itself is its entropy
    assert float(same) == pytest.approx(least, abs=1e-4)
    assert float(other) > float(same) + 1e-4


def test_class_distance_is_kl_times_the_square_of_the_temperature(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path)
    windows = [own[0] for own in prepared.train.windows[:4]]
    batch, draw = pack(windows, begin.model.config), torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(4, 2, generator=draw), torch.randn(4, 2, generator=draw)
    teacher = Teacher(model=begin.model, task=prepared.task, temperature=3.0)
    slow = sum(kl((t / 3).softmax(-1), (o / 3).softmax(-1)) for t, o in zip(theirs, ours, strict=True)) * 9
    found = prepared.task.distillation_loss(teacher.task, ours, theirs, batch, windows, teacher.temperature)
    torch.testing.assert_close(found, slow)


def test_a_pupil_learns_from_its_teacher_and_the_teacher_stays_as_it_is(model, taught, tmp_path):
    train, dev = tiny.files(tmp_path, "classify")
    before = load_checkpoint(taught).model.state_dict()
    found = fine_tune("classify", QUICK, model, train, dev, tmp_path / "student", teacher=taught)
    assert found.score > 0.9
    assert all(torch.equal(before[name], tensor) for name, tensor in load_checkpoint(taught).model.state_dict().items())
    learner = Student(
        load_checkpoint(taught).model,
        load_teacher_task(taught),
        LossSettings(),
        load_teacher(taught, load_teacher_task(taught)),
    )
    assert not any("teacher" in name for name, _ in learner.named_parameters())


def load_teacher_task(folder):
    return bertkit.load(folder).answers.task


def test_a_teacher_of_something_else_is_refused(model, taught, tmp_path):
    _, prepared = data("multilabel", model, tmp_path)
    with pytest.raises(RequestError, match="was fine-tuned for 'classify' with 2 labels, not 'multilabel'"):
        load_teacher(taught, prepared.task)
    with pytest.raises(RequestError, match="no head for a task"):
        load_teacher(model, prepared.task)


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_features_of_a_frozen_encoder(task, model, tmp_path):
    begin, prepared = data(task, model, tmp_path, train=128)
    before = {name: tensor.clone() for name, tensor in begin.model.state_dict().items()}
    rows = feature_scores(read_features(begin.model, prepared))
    assert [row.layers for row in rows] == [
        "embeddings",
        "layer 1",
        "layer 2",
        "last four, side by side",
        "learned mixture",
    ]
    assert max(row.accuracy for row in rows) > 0.8
    assert all(torch.equal(before[name], tensor) for name, tensor in begin.model.state_dict().items())


def test_layer_features_are_the_encoder_s_own(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path)
    found = layer_features(begin.model, prepared.task, Dataset(prepared.dev.examples[:5], prepared.dev.windows[:5]))
    bert = bertkit.Bert(begin)
    texts = [example.text for example in prepared.dev.examples[:5]]
    for layer in range(3):
        np.testing.assert_allclose(found[:, layer], bert.embed(texts, layers=layer, pooling="mean"), atol=1e-5)


def test_a_mixture_finds_the_layer_that_knows():
    draw = np.random.default_rng(0)
    known = draw.integers(2, size=200)
    features = draw.normal(size=(200, 4, 8))
    features[:, 2, 0] += 6 * known
    said, weights = predict_from_mixture(features, known, features)
    assert (said == known).mean() > 0.95
    assert weights.argmax() == 2


def test_features_do_not_go_with_every_task(model, tmp_path):
    begin, prepared = data("regress", model, tmp_path)
    with pytest.raises(RequestError, match="features go with 'classify' and 'tag', not with 'regress'"):
        read_features(begin.model, prepared)


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_layer_s_regression_is_saved_as_a_model_that_predicts_the_same(task, family, tmp_path):
    start = tiny.tiny_folder(tmp_path / "start", family)
    begin, prepared = data(task, start, tmp_path, read_settings("length=windows") if task == "classify" else ONE, 128)
    features = read_features(begin.model, prepared)
    layers = saveable_layers(begin.model.config)
    assert layers == ([2] if family == "modernbert" else [1, 2])
    for layer in layers:
        save_layer(begin, prepared, features, layer, tmp_path / f"layer-{layer}")
        said = predict_labels(features.train[:, layer], features.train_labels, features.dev[:, layer])
        bert = bertkit.load(tmp_path / f"layer-{layer}")
        found = bert.answers.predict(prepared.dev.examples)
        given = [tag for each in found for tag in each.tags] if task == "tag" else [each.label for each in found]
        assert given == [prepared.task.labels[number] for number in said]
        assert bert.model.config.depth == layer
        kind = json.loads((tmp_path / f"layer-{layer}" / "config.json").read_text())["model_type"]
        assert kind == (family if task == "tag" and family != "modernbert" else "bertkit")


def test_two_classes_and_more_give_the_regression_s_own_probabilities(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path, train=128)
    features = read_features(begin.model, prepared)
    save_layer(begin, prepared, features, 2, tmp_path / "saved")
    expected = fit_classifier(features.train[:, 2], features.train_labels).predict_proba(features.dev[:, 2])
    found = bertkit.load(tmp_path / "saved").answers.predict(prepared.dev.examples)
    np.testing.assert_allclose([list(each.probabilities.values()) for each in found], expected, atol=1e-4)


def test_the_layer_is_chosen_on_the_training_data_alone():
    draw = np.random.default_rng(0)
    known, wanted = draw.integers(3, size=90), draw.integers(3, size=30)
    train, dev = draw.normal(size=(90, 4, 8)), draw.normal(size=(30, 4, 8))
    train[:, 2, :3] += 3 * np.eye(3)[known]
    dev[:, 3, :3] += 9 * np.eye(3)[wanted]  # what dev would choose
    assert choose_layer(Features(train, known, dev, wanted), [1, 2, 3]) == 2


def test_flipped_labels_are_doubted(model, tmp_path):
    begin, prepared = data("classify", model, tmp_path, train=400)
    flipped = {"positive": "negative", "negative": "positive"}
    wrong = range(0, 400, 20)
    examples = list(prepared.train.examples)
    for number in wrong:
        examples[number] = replace(examples[number], label=flipped[examples[number].label])
    windows = [prepared.task.windows(example, number) for number, example in enumerate(examples)]
    found = doubtful_labels(begin.model, replace(prepared, train=Dataset(examples, windows))).found
    assert len({error.example for error, _ in found[:20]} & set(wrong)) >= 8  # 1 by chance
    assert found[0][1] == examples[found[0][0].example].text


def test_a_curve_has_a_pre_trained_and_a_random_start(model, taught, tmp_path):
    begin, prepared = data("classify", taught, tmp_path)
    points = learning_curve(prepared, begin, ONE, [64, 16], tmp_path / "out")
    assert [point.examples for point in points] == [16, 64]
    assert points[0].pretrained > 0.9 > points[0].random  # it starts from a model that knows the task
    assert "pre-trained  random start" in curve_table(points, "accuracy")
    assert not list((tmp_path / "out").rglob("model.safetensors"))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_report_that_fetches_nothing(task, model, tmp_path):
    train, dev = tiny.files(tmp_path, task, 64, 32)
    fine_tune(task, ONE, model, train, dev, tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Content-Security-Policy" in page
    assert not re.search(r"<script|https?://|src=", page)
    assert f"<h1>{task}: {Path(model).parent.name} on {train.name}</h1>" in page
    assert "64 training examples · scores on 32 examples of" in page
    assert page.count('<span class="badge">main metric</span>') == 1
    assert (">baseline</th>" in page) == (task not in ("answer", "rank", "write"))
    assert "<svg" not in page.partition("<h2>Evaluations</h2>")[0], "two or three points are no curve"
    assert ("Confusion matrix" in page) == (task == "classify")
    assert ("The worst errors" in page) or task == "choose"  # which is learned at once


def test_a_report_escapes_what_the_data_say(model, tmp_path):
    rows = ["text\tlabel", *["<script>alert(1)</script> good\t<b>", "bad & dull\tb"] * 6]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    fine_tune("classify", ONE, model, tmp_path / "train.tsv", tmp_path / "dev.tsv", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_glue_runs_what_it_finds_and_prints_published_rows(model, tmp_path):
    for name, task in (("SST-2", "classify"), ("glue-rte", "classify"), ("STS_B", "regress"), ("unknown", "classify")):
        (tmp_path / "tasks" / name).mkdir(parents=True)
        tiny.files(tmp_path / "tasks" / name, task, 32, 16)
    (tmp_path / "tasks" / "cola").mkdir()  # without files
    found = find_tasks(tmp_path / "tasks")
    assert [each.task.name for each in found] == ["SST-2", "STS-B", "RTE"]
    results = run_glue(found, model, ONE, tmp_path / "out")
    table = glue_table(results, "mine")
    head, ours, *rows = table.splitlines()
    assert head.split() == ["SST-2", "STS-B", "RTE"]
    assert ours.startswith("mine (dev)")
    low, high = results["RTE"].results[0].intervals["accuracy"]
    assert rows[0].split()[:2] == ["95", "%"]
    assert rows[0].endswith(f"{100 * low:.1f}–{100 * high:.1f}")
    assert "median" not in table  # of one seed
    assert next(row for row in rows if row.startswith("BERT-base")).split() == ["BERT-base", "93.5", "85.8", "66.4"]
    assert run_glue(found, model, ONE, tmp_path / "out") == results
    with pytest.raises(RequestError, match="begun with from="):  # not the old model's scores under the new one's name
        run_glue(found, tmp_path / "another", ONE, tmp_path / "out")
    assert all(0 <= score <= 100 for row in PUBLISHED.values() for score in row.values())


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(RequestError, match="holds no folder of a known task"):
        find_tasks(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        find_tasks(tmp_path / "missing")
