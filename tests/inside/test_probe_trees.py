"""Trees are read whole or refused by the line; their arithmetic equals the slow and obvious one."""

import gzip
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from bertkit.errors import RequestError
from bertkit.inside.probes.tree_files import read_trees
from bertkit.inside.probes.trees import (
    mean_over_lengths,
    row_correlations,
    spanning_tree,
    tree_depths,
    tree_distances,
    tree_edges,
)


def conllu(*sentences) -> str:
    """Sentences of (word, tag, head, relation)."""
    blocks = []
    for sentence in sentences:
        rows = [
            f"{n}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_"
            for n, (word, tag, head, relation) in enumerate(sentence, start=1)
        ]
        blocks.append("# a comment\n" + "\n".join(rows) + "\n\n")
    return "".join(blocks)


DOGS = [("Dogs", "NOUN", 2, "nsubj:pass"), ("bark", "VERB", 0, "root"), (".", "PUNCT", 2, "punct")]


def test_a_tree_is_read_with_its_universal_relations(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(conllu(DOGS, [("Yes", "INTJ", 0, "root")]))
    first, second = read_trees(path)
    assert first.words == ("Dogs", "bark", ".")
    assert first.heads == (1, -1, 1)
    assert first.relations == ("nsubj", "root", "punct")
    assert (first.root, first.counted) == (1, (0, 1))
    assert (second.words, second.location.line) == (("Yes",), 7)


def test_ranges_and_empty_nodes_are_no_words_and_files_may_be_compressed(tmp_path):
    lines = [
        "# text = vámonos al mar",
        "1-2\tvámonos" + "\t_" * 8,
        "1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_",
        "2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_",
        "2.1\tque" + "\t_" * 8,
        "3\t😀 de mar\t_\tNOUN\t_\t_\t1\tobl\t_\t_",
    ]
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    [tree] = read_trees(path)
    assert tree.words == ("vamos", "nos", "😀 de mar")
    assert tree.heads == (-1, 0, 0)


FAULTS = {
    "the head of 'Dogs' is 'x', which is no number": [("Dogs", "N", "x", "dep"), ("bark", "V", 0, "root")],
    "the head of 'Dogs' is '-1', which is no number": [("Dogs", "N", -1, "dep"), ("bark", "V", 0, "root")],
    "which is no number of a word": [("Dogs", "N", "9" * 5000, "dep"), ("bark", "V", 0, "root")],
    "the head of 'Dogs' is 3, but the sentence ends with word 2": [("Dogs", "N", 3, "dep"), ("bark", "V", 0, "root")],
    "no root; one of its words must have head 0": [("Dogs", "N", 2, "dep"), ("bark", "V", 1, "dep")],
    "line 3: a second root after the one on line 2": [("Dogs", "N", 0, "root"), ("bark", "V", 0, "root")],
    "line 2: the heads of word 1 form a cycle": [("Dogs", "N", 1, "dep"), ("bark", "V", 0, "root")],
    "line 3: the heads of word 2 form a cycle": [("a", "N", 0, "root"), ("b", "N", 3, "dep"), ("c", "N", 2, "dep")],
    "'Dogs' has no relation (deprel)": [("Dogs", "N", 2, "_"), ("bark", "V", 0, "root")],
    "the word is empty": [(" ", "N", 2, "dep"), ("bark", "V", 0, "root")],
}


@pytest.mark.parametrize("said", FAULTS)
def test_what_is_no_tree_is_refused_by_its_line(said, tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(conllu(FAULTS[said]))
    with pytest.raises(RequestError) as caught:
        read_trees(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}, line ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


FILES = {
    "a.conllu": ("", "a.conllu is empty"),
    "b.conllu": ("# only a comment\n\n", "holds no sentences"),
    "c.conllu": ("1\tDogs\tdog\n", "line 1: 3 columns where CoNLL-U has 10"),
    "d.conllu": (conllu(DOGS).replace("2\tbark", "3\tbark"), "line 3: '3' stands where word 2 of the sentence belongs"),
    "e.txt": (conllu(DOGS), "give a file that ends in .conllu"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_treebank_is_refused(name, tmp_path):
    text, said = FILES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=said.replace("(", r"\(")):
        read_trees(tmp_path / name)
    with pytest.raises(RequestError, match="does not exist"):
        read_trees(tmp_path / "missing.conllu")
    with pytest.raises(RequestError, match="is a folder"):
        read_trees(tmp_path)


@st.composite
def heads(draw, most=12):
    """A tree in any order of words: each hangs on one that was placed before it."""
    size = draw(st.integers(1, most))
    order = draw(st.permutations(range(size)))
    found = [-1] * size
    for at, word in enumerate(order[1:], start=1):
        found[word] = order[draw(st.integers(0, at - 1))]
    return found


def walk(found):
    """Distances by Floyd and Warshall, one step at a time."""
    size = len(found)
    distances = [[0 if i == j else 99 for j in range(size)] for i in range(size)]
    for word, head in enumerate(found):
        if head >= 0:
            distances[word][head] = distances[head][word] = 1
    for k in range(size):
        for i in range(size):
            for j in range(size):
                distances[i][j] = min(distances[i][j], distances[i][k] + distances[k][j])
    return distances


@given(heads())
def test_distances_and_depths_are_those_of_a_walk(found):
    slow = walk(found)
    assert tree_distances(found).tolist() == slow
    assert tree_depths(found).tolist() == slow[found.index(-1)]


def kruskal(distances, counted):
    """Edges by length, each taken unless its ends hold together already."""
    group = {word: {word} for word in counted}
    edges = set()
    for _, a, b in sorted((distances[a, b], a, b) for a, b in combinations(sorted(counted), 2)):
        if group[a] is not group[b]:
            edges.add((a, b))
            joined = group[a] | group[b]
            group |= dict.fromkeys(joined, joined)
    return edges


@given(st.integers(2, 14), st.integers(0, 2**32 - 1), st.data())
def test_the_spanning_tree_is_kruskals(size, seed, data):
    points = np.random.default_rng(seed).normal(size=(size, 3))
    distances = ((points[:, None] - points) ** 2).sum(axis=-1)
    counted = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    assert spanning_tree(distances, counted) == kruskal(distances, counted)


@given(heads())
def test_the_spanning_tree_of_true_distances_is_the_tree(found):
    every = range(len(found))
    assert spanning_tree(tree_distances(found), every) == tree_edges(found, every)


def test_edges_skip_words_that_are_not_counted():
    assert tree_edges([1, -1, 1, 2], [0, 1, 3]) == {(0, 1)}
    assert spanning_tree(np.zeros((3, 3)), [2]) == set()


def test_correlations_are_scipys_and_constant_rows_are_zero():
    draw = np.random.default_rng(0)
    gold, predicted = draw.integers(0, 5, (9, 12)), draw.normal(size=(9, 12))
    predicted[4] = predicted[4].round()  # ties
    slow = [spearmanr(a, b).statistic for a, b in zip(gold, predicted, strict=True)]
    assert row_correlations(gold, predicted) == pytest.approx(slow, abs=1e-12)
    stack = row_correlations(gold, np.stack([predicted, -predicted]))
    assert stack[1] == pytest.approx([-each for each in slow], abs=1e-12)
    assert row_correlations(gold[:1], np.ones((1, 12))) == 0


def test_lengths_count_alike_and_only_from_5_to_50():
    lengths, values = np.array([4, 5, 5, *[50] * 9, 51]), np.array([[1.0], [0.0], [0.5], *[[0.75]] * 9, [1.0]])
    once = np.ones(len(lengths), int)
    assert mean_over_lengths(lengths, values, once) == 0.5
    assert mean_over_lengths(lengths, values, once * (lengths != 5)) == 0.75
    assert mean_over_lengths(lengths, values, once + (np.arange(len(lengths)) == 2)) == pytest.approx(
        (1 / 3 + 0.75) / 2
    )
    assert np.isnan(mean_over_lengths(lengths[[0, -1]], values[[0, -1]], once[:2]))
