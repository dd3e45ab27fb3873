"""Probes of all layers at once are those of each layer alone; what is planted in a layer is found there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from bertkit.data.examples import TaggedExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.inside.probes.data import ProbeSettings
from bertkit.inside.probes.labels import control_label, expected_layer, label_task, probe_labels
from bertkit.inside.probes.linear import LinearSettings, ProbeRows, fit_probes
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.word_vectors import WordVectors

ROWS, WIDTH, LABELS = 1500, 12, 3
SETTINGS = LinearSettings(epochs=8, batch=128)
pytestmark = pytest.mark.usefixtures("_one_thread")


def planted(seed, rows=ROWS):
    """Three layers of noise; the label is in the second, half of it in the third."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, LABELS, rows)
    values = draw.normal(size=(3, rows, WIDTH))
    marks = np.random.default_rng(7).normal(size=(LABELS, WIDTH))
    values[1] += 2 * marks[labels]
    values[2] += 0.5 * marks[labels]
    control = draw.integers(0, LABELS, rows)
    return ProbeRows(WordVectors(values.astype(np.float16), (0, rows)), (np.arange(rows),), np.stack([labels, control]))


@pytest.fixture(scope="module")
def sides():
    return planted(0), planted(1)


def right(probes, rows):
    return (probes.predict(rows) == rows.labels[:, None]).mean(axis=-1)


def only(rows, layer):
    return replace(rows, vectors=replace(rows.vectors, values=rows.vectors.values[[layer]]))


def test_what_is_planted_is_found_and_noise_is_not(sides):
    task, control = right(fit_probes(sides[0], LABELS, SETTINGS), sides[1])
    assert task[1] > 0.95
    assert task[1] > task[2] + 0.1 > task[0] + 0.2
    assert abs(task[0] - 1 / 3) < 0.06
    assert np.abs(control - 1 / 3).max() < 0.06


def test_all_layers_at_once_are_each_layer_alone(sides):
    together = fit_probes(sides[0], LABELS, SETTINGS)
    for layer in range(3):
        alone = fit_probes(only(sides[0], layer), LABELS, SETTINGS)
        torch.testing.assert_close(alone.weight[0], together.weight[layer], atol=1e-4, rtol=1e-3)


def test_the_control_does_not_touch_the_task(sides):
    both = fit_probes(sides[0], LABELS, SETTINGS)
    alone = fit_probes(replace(sides[0], labels=sides[0].labels[:1]), LABELS, SETTINGS)
    torch.testing.assert_close(both.weight[:, :, :LABELS], alone.weight, atol=1e-4, rtol=1e-3)


def test_a_probe_is_as_good_as_a_plain_logistic_regression(sides):
    found = right(fit_probes(sides[0], LABELS, SETTINGS), sides[1])[0]
    for layer in range(3):
        train, test = (side.vectors.values[layer].astype(np.float32) for side in sides)
        slow = LogisticRegression().fit(train, sides[0].labels[0]).score(test, sides[1].labels[0])
        assert found[layer] == pytest.approx(slow, abs=0.02)


def test_a_seed_is_a_result(sides):
    one, same = (fit_probes(sides[0], LABELS, SETTINGS) for _ in range(2))
    other = fit_probes(sides[0], LABELS, replace(SETTINGS, seed=1))
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)


def test_the_mixture_leans_on_the_layer_that_knows(sides):
    rows, test = (replace(side, labels=side.labels[:1]) for side in sides)
    probes = fit_probes(rows, LABELS, SETTINGS, mix=True)
    assert probes.mix.sum(dim=1) == pytest.approx([1, 1, 1], abs=1e-6)
    assert probes.mix[0].tolist() == [1, 0, 0]
    assert probes.mix[1, 2] == 0
    assert probes.mix[2].argmax() == 1
    assert probes.mix[2, 1] > 0.6
    [cumulative] = right(probes, test)
    assert cumulative[1] > cumulative[0] + 0.5
    assert cumulative[2] == pytest.approx(cumulative[1], abs=0.03)


def test_two_words_are_read_side_by_side(sides):
    """What is said of the first word is in the second alone."""
    rows = sides[0]
    first, second = np.arange(ROWS - 1), np.arange(1, ROWS)
    pair = ProbeRows(rows.vectors, (first, second), rows.labels[:1, 1:])
    single = ProbeRows(rows.vectors, (first,), pair.labels)
    assert pair.inputs(np.array([4])).shape == (3, 1, 2 * WIDTH)
    assert right(fit_probes(pair, LABELS, SETTINGS), pair)[0, 1] > 0.95
    assert right(fit_probes(single, LABELS, SETTINGS), single)[0, 1] < 0.45


def tagged(*pairs):
    words, tags = zip(*pairs, strict=True)
    return TaggedExample(words, tags, Location("a.conllu", 1))


def test_control_labels_belong_to_words_and_have_the_tasks_shares():
    bounds = np.array([0.5, 0.8, 1.0])
    drawn = [control_label(f"word {n}", bounds, 3) for n in range(5000)]
    assert np.bincount(drawn) / 5000 == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    assert drawn == [control_label(f"word {n}", bounds, 3) for n in range(5000)]
    assert drawn != [control_label(f"word {n}", bounds, 4) for n in range(5000)]
    assert all(control_label(word, np.array([0.4, 0.999999]), 0) in (0, 1) for word in ("", "\u202e", "😀"))


def test_a_task_numbers_labels_and_words():
    train = [
        tagged(("The", "DET"), ("dog", "NOUN")),
        tagged(
            ("the", "DET"),
        ),
    ]
    test = [tagged(("dog", "VERB"), ("THE", "DET"))]
    task = label_task(train, test, 0, str.lower)
    assert task.names == ("DET", "NOUN")
    vectors = WordVectors(np.zeros((1, 3, 2), dtype=np.float16), (0, 2, 3))
    known, wanted = task.rows(task.train, vectors), task.rows(task.test, vectors)
    assert known.labels[0].tolist() == [0, 1, 0]
    assert wanted.labels[0].tolist() == [-1, 0]  # training has no verbs
    assert known.labels[1, 0] == known.labels[1, 2] == wanted.labels[1, 1]
    assert known.labels[1, 1] == wanted.labels[1, 0]


def test_arcs_are_pairs_without_the_root():
    tree = Tree(("a", "b", "c"), ("X",) * 3, (1, -1, 1), ("det", "root", "obj"), Location("a.conllu", 1))
    task = label_task([tree, tree], [tree], 0)
    assert [(words, label) for words, _, label in task.train] == [
        ((0, 1), "det"),
        ((2, 1), "obj"),
        ((3, 4), "det"),
        ((5, 4), "obj"),
    ]


def test_a_task_of_one_label_is_refused():
    with pytest.raises(RequestError, match="a.conllu has fewer than two different labels"):
        label_task(
            [tagged(("a", "X"), ("b", "X"))],
            [
                tagged(
                    ("a", "X"),
                )
            ],
            0,
        )


def test_the_expected_layer_weighs_gains():
    assert expected_layer([0.5, 0.6, 0.8]) == pytest.approx((1 * 0.1 + 2 * 0.2) / 0.3)
    assert expected_layer([0.5, 0.502]) is None


def test_names_have_an_f1_and_baselines_are_counted():
    tags = {"Ada": "B-PER", "Love": "I-PER", "was": "O", "here": "O"}
    sentence = tagged(*tags.items())
    train, test = [sentence] * 40, [sentence, tagged(("Ada", "O"), ("new", "O"))]
    task = label_task(train, test, 0)
    points = {word: vector for word, vector in zip([*tags, "new"], np.eye(5, 6), strict=True)}

    def vectors(side):
        words = np.array([points[word] for each in side for word in each.words], dtype=np.float16)
        return WordVectors(np.stack([0 * words, words]), tuple(np.cumsum([0, *(len(e.words) for e in side)]).tolist()))

    both = (vectors(train), vectors(test))
    settings = ProbeSettings(what="ner", epochs=60)
    report = probe_labels(task, both, lambda: both, settings)
    assert (report.majority, report.by_word) == (4 / 6, 5 / 6)
    assert report.layers[1].accuracy >= 4 / 6
    assert report.layers[1].f1 == pytest.approx(2 / 3)  # one name of one found, and one that is none
    assert report.layers[0].f1 == 0
    assert report.layers[1].random == report.layers[1].accuracy
    assert report.best.layer == 1
