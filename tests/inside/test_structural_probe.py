"""The structural probe finds trees that are planted, in the layer where they are, and scores them as published."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertkit.data.examples import Location
from bertkit.facts.knowledge import tree_vectors
from bertkit.inside.probes.data import ProbeSettings
from bertkit.inside.probes.page import draw_space, draw_tree, probe_table
from bertkit.inside.probes.structural import StructureSettings, _loss, fit_structure, squared_distances
from bertkit.inside.probes.structure import chain_predictions, principal_components, probe_structure, score_trees
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.trees import row_correlations, spanning_tree, tree_depths, tree_distances, tree_edges

WIDTH = 16
SETTINGS = StructureSettings(rank=WIDTH, epochs=20, rate=5e-3)
pytestmark = pytest.mark.usefixtures("_one_thread")


def random_tree(draw, size):
    order, heads = draw.permutation(size), [-1] * size
    for at in range(1, size):
        heads[order[at]] = int(order[draw.integers(0, at)])
    tags = tuple("PUNCT" if n == size - 1 and heads[n] != -1 and n not in heads else "X" for n in range(size))
    return Tree(tuple(f"w{n}" for n in range(size)), tags, tuple(heads), ("dep",) * size, Location("a.conllu", 1))


def planted(seed, count):
    draw = np.random.default_rng(seed)
    trees = [random_tree(draw, int(draw.integers(5, 13))) for _ in range(count)]
    return tree_vectors(trees, draw), trees


@pytest.fixture(scope="module")
def sides():
    return planted(0, 400), planted(1, 60)


@pytest.fixture(scope="module")
def report(sides):
    (known, train), (unknown, test) = sides
    settings = ProbeSettings(what="structure", rank=WIDTH, epochs=40)
    noise = [replace(each, values=each.values[[0, 0]]) for each in (known, unknown)]
    return probe_structure(train, test, (known, unknown), lambda: (noise[0], noise[1]), settings)


def test_planted_trees_are_found_in_their_layer(report):
    noise, tree = report.layers
    assert tree.uuas > 0.9
    assert tree.distance_spearman > 0.9
    assert tree.root > 0.9
    assert tree.depth_spearman > 0.85
    assert noise.uuas < 0.4
    assert abs(noise.distance_spearman) < 0.6  # the diagonal, always the least, is in every row
    assert report.best is tree
    assert report.random[1].uuas < 0.4


def test_all_layers_at_once_are_each_layer_alone(sides):
    vectors, trees = sides[0][0], sides[0][1]
    settings = replace(SETTINGS, epochs=2)
    together = fit_structure(vectors, trees, settings)
    for layer in range(2):
        alone = fit_structure(replace(vectors, values=vectors.values[[layer]]), trees, settings)
        torch.testing.assert_close(alone.distance[0], together.distance[layer], atol=1e-3, rtol=1e-2)
        torch.testing.assert_close(alone.depth[0], together.depth[layer], atol=1e-3, rtol=1e-2)


def test_a_seed_is_a_result(sides):
    vectors, trees = sides[1]
    settings = replace(SETTINGS, epochs=1)
    one, same = (fit_structure(vectors, trees, settings) for _ in range(2))
    other = fit_structure(vectors, trees, replace(settings, seed=1))
    assert torch.equal(one.distance, same.distance)
    assert not torch.equal(one.distance, other.distance)


def test_the_loss_is_the_published_one_pair_by_pair(sides):
    vectors, trees = sides[1]
    maps = [0.3 * torch.randn(2, WIDTH, 5, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    slow = 0.0
    for n, tree in enumerate(trees[:6]):
        own = vectors.rows(np.arange(vectors.starts[n], vectors.starts[n + 1]))
        true, deep = tree_distances(tree.heads), tree_depths(tree.heads)
        for layer in range(2):
            a, b = own[layer] @ maps[0][layer], own[layer] @ maps[1][layer]
            size = len(tree.words)
            pairs = [abs(float((a[i] - a[j]).square().sum()) - true[i, j]) for i in range(size) for j in range(size)]
            words = [abs(float(b[i].square().sum()) - deep[i]) for i in range(size)]
            slow += sum(pairs) / size**2 + sum(words) / size
    gold = [(tree_distances(tree.heads), tree_depths(tree.heads)) for tree in trees[:6]]
    found = _loss(vectors.rows(np.arange(vectors.starts[6])), maps, gold)
    assert float(found) == pytest.approx(slow / 6, rel=1e-4)


def test_squared_distances_are_those_of_differences():
    points = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    slow = (points[:, :, None] - points[:, None]).square().sum(dim=-1)
    torch.testing.assert_close(squared_distances(points), slow, atol=1e-5, rtol=1e-4)


def test_true_distances_score_in_full_and_wrong_ones_do_not(sides):
    trees = sides[1][1]
    found = [
        (tree, tree_distances(tree.heads)[None].astype(float), tree_depths(tree.heads)[None].astype(float))
        for tree in trees
    ]
    [score] = score_trees(found)
    assert (score.uuas, score.root) == (1, 1)
    assert score.distance_spearman == pytest.approx(1)
    assert score.depth_spearman == pytest.approx(1)
    [score] = score_trees((tree, -distances, -depths) for tree, distances, depths in found)
    assert score.distance_spearman == pytest.approx(-1)
    assert score.uuas < 0.6


def test_intervals_are_those_of_resampled_sentences(sides, report):
    trees = sides[1][1][:25]
    predicted = list(chain_predictions(trees))
    [score] = score_trees(predicted)
    draws = np.random.default_rng(3).integers(len(trees), size=(80, len(trees)))
    slow = [score_trees_once([predicted[n] for n in draw]) for draw in draws]
    assert score.intervals.keys() == {"uuas", "distance_spearman", "root", "depth_spearman"}
    for name, (low, high) in score.intervals.items():
        value, error = getattr(score, name), np.std([row[name] for row in slow], ddof=1)
        assert low < value < high
        assert high - value == pytest.approx(1.96 * error, rel=0.3), name
    low, high = report.layers[0].intervals["uuas"]
    assert low < report.layers[0].uuas < high <= 1
    cells = probe_table(report).rows[0]
    assert cells[1] == f"{100 * report.layers[0].uuas:.1f} ±{100 * (report.layers[0].uuas - low):.1f}"


def score_trees_once(predicted):
    """The slow twin of a resample: as in the paper, sentence by sentence."""
    edges = found = roots = 0
    rows, depths = {}, {}
    for tree, (distance,), (depth,) in predicted:
        gold = tree_edges(tree.heads, tree.counted)
        edges, found = edges + len(gold), found + len(gold & spanning_tree(distance, tree.counted))
        roots += min(tree.counted, key=lambda word: depth[word]) == tree.root
        length = len(tree.words)
        rows.setdefault(length, []).extend(row_correlations(tree_distances(tree.heads), distance))
        depths.setdefault(length, []).append(float(row_correlations(tree_depths(tree.heads), depth)))
    means = [float(np.mean([np.mean(some) for some in values.values()])) for values in (rows, depths)]
    names = ("uuas", "root", "distance_spearman", "depth_spearman")
    return dict(zip(names, (found / edges, roots / len(predicted), *means), strict=True))


def test_the_chain_is_counted_by_hand():
    """`The old dog barked .`: the -> dog, old -> dog, dog -> barked, . -> barked."""
    words, tags = ("The", "old", "dog", "barked", "."), ("DET", "ADJ", "NOUN", "VERB", "PUNCT")
    tree = Tree(words, tags, (2, 2, 3, -1, 3), ("dep",) * 5, Location("a.conllu", 1))
    [score] = score_trees(chain_predictions([tree]))
    assert score.uuas == pytest.approx(2 / 3)  # old-dog, dog-barked; not the-dog; the full stop is not counted
    assert score.root == 0  # the first word is not the root
    assert -1 < score.depth_spearman < 0


def test_sentences_of_three_words_have_edges_and_no_correlation():
    tree = Tree(("a", "b", "c"), ("X",) * 3, (1, -1, 1), ("dep",) * 3, Location("a.conllu", 1))
    [score] = score_trees(chain_predictions([tree]))
    assert (score.uuas, score.distance_spearman, score.depth_spearman) == (1, None, None)


def test_only_punctuation_is_no_reason_to_fail():
    tree = Tree(("!", "?"), ("PUNCT",) * 2, (-1, 0), ("root", "punct"), Location("a.conllu", 1))
    [score] = score_trees(chain_predictions([tree]))
    assert (score.uuas, score.root) == (0, 0)


def test_the_flat_picture_keeps_the_largest_spread():
    points = torch.zeros(6, 5)
    points[:, 3] = torch.tensor([0.0, 3, 1, 5, 2, 9])
    points[:, 1] = torch.tensor([1.0, 0, 1, 0, 1, 0])
    found = principal_components(points)
    slow = torch.pca_lowrank(points.double(), q=2, niter=8)
    assert found.abs().numpy() == pytest.approx((slow[0] * slow[1]).abs().numpy(), abs=1e-5)
    assert torch.equal(principal_components(torch.ones(1, 4)), torch.zeros(1, 2, dtype=torch.float64))


def test_drawings_show_hostile_words_as_text(report):
    drawn = replace(report.drawn[0], words=("<script>x</script>", '"&', *report.drawn[0].words[2:]))
    for picture in (draw_tree(drawn), draw_space(drawn)):
        assert "<script>" not in picture
        assert picture.startswith("<svg ")
        assert picture.endswith("</svg>")
    assert draw_tree(drawn).count("<path") == 2 * (len(drawn.counted) - 1) - (drawn.heads.count(-1) - 1)
