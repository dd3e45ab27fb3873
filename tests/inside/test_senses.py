"""Uses of a word, their vectors, scores and map."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from bertkit.errors import RequestError
from bertkit.inside.senses.scores import chance, cluster, label_silhouette, neighbor_accuracy, project
from bertkit.inside.senses.senses import context_vectors, map_senses, sense_page, sense_scores, use_vectors
from bertkit.inside.senses.uses import MAX_CHARACTERS, Use, read_uses
from bertkit.inside.static.vectors import StaticVectors

pytestmark = pytest.mark.usefixtures("_one_thread")

HOSTILE = [
    "a cab </svg></script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)> cab \" onload='alert(1)'",
    "\u202ecab\u202c \u05e9\u05dc\u05d5\u05dd \U0001f600 \u2028 \ufffe",
    "cab ]]> <!-- &lt;b&gt; {{script}} --> <foreignObject>",
]


def uses_of(*sentences: str, word: str = "cab", senses: str = "") -> list[Use]:
    places = [sentence.index(word) for sentence in sentences]
    labels = list(senses) or [None] * len(sentences)
    return [
        Use(sentence, start, start + len(word), f"line {n}", label)
        for n, (sentence, start, label) in enumerate(zip(sentences, places, labels, strict=True))
    ]


def write(path, content: str):
    path.write_text(content, encoding="utf-8")
    return path


def test_uses_are_whole_words_in_any_case_once_for_each_sentence(tmp_path):
    text = "The Bank is open. Embankments are no bank: a bank's bank is. Bankers? BANK\n\nThe Bank is open. No."
    uses = read_uses("bank", [write(tmp_path / "t.txt", text)])
    assert [use.sentence[use.start : use.end] for use in uses] == ["Bank", "bank", "BANK"]
    assert uses[0].source.endswith("t.txt, line 1")


def test_a_word_may_have_odd_letters_and_several_parts(tmp_path):
    path = write(
        tmp_path / "t.txt", "C++ is old.\nI like c++.\nc++x is not.\n(C++)\nNew York!\nA new york?\nIn New York.\n"
    )
    assert len(read_uses("C++", [path])) == 3
    assert len(read_uses("New York", [path])) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nothing here\n", "'bank' never occurs in .*t.txt; a map needs 3 different sentences with it"),
        ("one bank here\n", "'bank' stands in 1 sentence of"),
        ("one bank here\nanother bank\nanother bank\n", "'bank' stands in 2 different sentences of"),
        ("", "is empty"),
    ],
)
def test_too_few_uses_are_refused(content, said, tmp_path):
    with pytest.raises(RequestError, match=said):
        read_uses("bank", [write(tmp_path / "t.txt", content)])


@pytest.mark.parametrize("word", ["", "  ", "...", "\U0001f600"])
def test_what_is_no_word_is_refused(word, tmp_path):
    with pytest.raises(RequestError, match="is no word"):
        read_uses(word, [write(tmp_path / "t.txt", "text\n")])


def test_of_many_uses_a_fair_and_repeatable_sample_is_drawn(tmp_path):
    path = write(tmp_path / "t.txt", "".join(f"bank number {n}\n" for n in range(1000)))
    one, same, other = (read_uses("bank", [path], most=100, seed=seed) for seed in (1, 1, 2))
    numbers = [int(use.sentence.split()[-1]) for use in one]
    assert one == same != other
    assert numbers == sorted(numbers)
    assert 400 < np.mean(numbers) < 600
    with pytest.raises(RequestError, match="most=2 must be at least 3"):
        read_uses("bank", [path], most=2)


def test_a_sentence_without_end_is_cut_around_the_word(tmp_path):
    [use, *_] = read_uses("bank", [write(tmp_path / "t.txt", f"{'so ' * 9999}bank{' on' * 9999}\na bank\nthe bank\n")])
    assert len(use.sentence) == MAX_CHARACTERS
    assert use.sentence[use.start : use.end] == "bank"


def test_labeled_files_carry_senses(tmp_path):
    rows = "text\tsense\nthe bank lent\tmoney\na bank of mud\triver\nBank holiday\tmoney\n"
    uses = read_uses("bank", [write(tmp_path / "t.tsv", rows)])
    assert [use.sense for use in uses] == ["money", "river", "money"]
    assert uses[1].source.endswith("t.tsv, line 3")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("text\tsense\nthe bank\tmoney\nno such word\triver\n", "line 3: the text has no word 'bank'"),
        ("text\tsense\nthe bank\tmoney\na bank\t \n", "line 3: 'sense' is empty"),
        ("title\tsense\nthe bank\tmoney\na bank\triver\n", "has no column of texts"),
    ],
)
def test_labeled_files_with_faults_name_the_line(rows, said, tmp_path):
    with pytest.raises(RequestError, match=said):
        read_uses("bank", [write(tmp_path / "t.tsv", rows)])


def test_labeled_and_plain_files_do_not_mix(tmp_path):
    files = [write(tmp_path / "a.tsv", "text\tsense\na bank\tx\n"), write(tmp_path / "b.txt", "a bank\n")]
    with pytest.raises(RequestError, match="has a column of senses and other files have none"):
        read_uses("bank", files)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_vectors_are_the_means_over_the_words_pieces(bert, layer):
    uses = uses_of("a cab is here", "no cab", "xyz cab cab")
    found = use_vectors(bert, uses, layer=layer)
    for use, vector in zip(uses, found, strict=True):
        states = bert.trace(use.sentence)
        outputs = [states.embeddings, *(each.output for each in states.layers)]
        offsets = bert.tokenizer.encode(use.sentence).offsets
        own = [n for n, (a, b) in enumerate(offsets) if use.start <= a < b <= use.end]
        assert len(own) == 3  # c ##a ##b
        expected = (states.output if layer == -1 else outputs[layer])[own].mean(dim=0)
        torch.testing.assert_close(torch.from_numpy(vector), expected, atol=1e-4, rtol=1e-4)


def test_a_word_beyond_the_models_length_is_still_read(bert):
    uses = uses_of("a " * 200 + "cab", "cab")
    assert np.isfinite(use_vectors(bert, uses)).all()


def test_a_word_that_the_tokenizer_drops_is_named(bert):
    with pytest.raises(RequestError, match="line 7: the tokenizer gives no token for"):
        use_vectors(bert, [Use("a \u0007 b", 2, 3, "line 7")])


def test_neighbor_accuracy_by_hand():
    vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 1], [1, 0.05]], np.float32)
    assert neighbor_accuracy(vectors, ["a", "a", "b", "b", "b"]) == pytest.approx(0.4)
    assert neighbor_accuracy(vectors, ["a", "a", "b", "b", "a"]) == 1


@pytest.mark.parametrize("sizes", [(3, 3), (10, 2), (5, 4, 1), (600, 500)])
def test_equal_vectors_score_exactly_chance(sizes):
    senses = [str(n) for n, size in enumerate(sizes) for _ in range(size)]
    vectors = np.tile(np.random.default_rng(0).normal(size=(1, 8)), (len(senses), 1)).astype(np.float32)
    assert neighbor_accuracy(vectors, senses) == pytest.approx(chance(senses))


def test_clusters_are_found_and_the_largest_comes_first():
    rng = np.random.default_rng(0)
    centers = np.repeat(np.eye(3, 8) * 5, [20, 10, 5], axis=0)
    vectors = (centers + rng.normal(size=centers.shape) * 0.2).astype(np.float32)
    found = cluster(vectors)
    assert found.numbers == (0,) * 20 + (1,) * 10 + (2,) * 5
    assert found.silhouette > 0.8
    assert len(set(cluster(vectors, 2).numbers)) == 2
    assert label_silhouette(vectors, ["a"] * 20 + ["b"] * 10 + ["c"] * 5) == pytest.approx(found.silhouette)
    assert label_silhouette(vectors, ["a"] * 35) is None
    with pytest.raises(RequestError, match="clusters=36 must be from 1 to the number of uses, 35"):
        cluster(vectors, 36)


@pytest.mark.filterwarnings("error")
def test_equal_vectors_are_one_cluster_at_one_place():
    vectors = np.ones((5, 4), np.float32)
    assert cluster(vectors).numbers == (0,) * 5
    assert cluster(vectors, 3).silhouette is None
    points, shown = project(vectors)
    assert not points.any()
    assert shown == 1


def test_the_map_keeps_what_two_directions_can_hold():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(30, 2)) @ np.array([[1, 0, 0, 0], [0, 1, 0, 0]])
    points, shown = project((plane + np.array([0, 0, 20, 0])).astype(np.float32))
    assert shown > 0.99
    ways = np.linalg.norm(points[:, None] - points[None], axis=2)
    real = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    assert np.corrcoef(ways.ravel(), real.ravel())[0, 1] > 0.99


def test_the_static_contrast_is_the_mean_of_the_words_around_and_never_the_word():
    static = StaticVectors(("river", "money", "cab"), np.array([[2, 0], [0, 3], [5, 5]], np.float32))
    uses = uses_of("river cab money", "money, cab", "cab unseen", "River! cab")
    np.testing.assert_allclose(context_vectors(static, uses), [[0.5, 0.5], [0, 1], [0, 0], [1, 0]])


def test_scores_need_labels_on_all_uses(bert):
    vectors = np.eye(4, dtype=np.float32)
    assert sense_scores(vectors, uses_of(*(["a cab"] * 4))) is None
    scores = sense_scores(vectors, uses_of(*(["a cab"] * 4), senses="aabb"))
    assert scores.static == pytest.approx(1 / 3)
    assert scores.neighbors is None


def test_a_score_of_nothing_is_told_too(bert):
    found = map_senses(bert, "cab", uses_of("a cab", "b cab", "cab d", senses="aab"))
    told = "by the mean of the static vectors of the words around it in"
    assert told not in sense_page(found)
    assert f"{told} 0.0%" in sense_page(replace(found, scores=replace(found.scores, neighbors=0.0)))


class Reader(HTMLParser):
    """What a browser would make of the page: its elements, and the text of every shown sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.said: list[str] = []
        self.inside = False

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "p" and dict(attributes).get("class") == "popup":
            self.inside = True
            self.said.append("")

    def handle_endtag(self, tag):
        if tag == "p":
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.said[-1] += data


def test_the_page_shows_hostile_sentences_as_text_and_obeys_none(bert, tmp_path):
    found = map_senses(bert, "cab", uses_of(*HOSTILE, senses='a<b"'))
    found.save(tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    tags = [tag for tag, _ in reader.tags]
    assert not {"script", "img", "iframe", "link", "a"} & set(tags)
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on") or name == "src"]
    assert reader.said == HOSTILE
    points = [attributes for tag, attributes in reader.tags if attributes.get("class") == "use"]
    assert [point["aria-label"] for point in points] == HOSTILE
    assert all(point["tabindex"] == "0" for point in points)
    assert "default-src 'none'" in page
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)


def test_half_a_surrogate_pair_does_not_stop_the_page(bert, tmp_path):
    found = map_senses(bert, "cab", uses_of("a cab", "cab b", "c cab"))
    object.__setattr__(found, "word", "\ud800")
    found.save(tmp_path / "map.html")
    assert (tmp_path / "map.html").stat().st_size > 1000


def test_a_map_tells_what_it_is(bert):
    found = map_senses(bert, "cab", uses_of("a cab", "b cab", "cab d", "cab e"), clusters=2)
    assert repr(found) == "SenseMap('cab', 4 uses, 2 clusters; save it, or show it in a notebook)"
    assert found.layer == 2
    assert "<iframe" in found._repr_html_()
    assert sum(len(found.typical(number)) for number in (0, 1)) == 4
    with pytest.raises(RequestError, match="layers"):
        map_senses(bert, "cab", found.uses, layer=9)


def test_few_uses_have_few_clusters_and_none_of_one_use():
    rng = np.random.default_rng(0)
    centers = np.eye(8)[[0] * 5 + [1] * 5 + [2] * 4 + [3]]  # four groups, one of a single use
    vectors = (centers + rng.normal(scale=0.01, size=(15, 8))).astype(np.float32)
    sizes = np.bincount(cluster(vectors).numbers)
    assert len(sizes) <= 3
    assert sizes.min() > 1
    assert len(set(cluster(vectors, 4).numbers)) == 4, "a number that is asked for is kept"


def test_clusters_are_named_by_the_words_near_them(bert):
    money = ["the cab takes money here", "no cab for little money", "a cab wants all the money"]
    river = ["by the river a cab waits", "a cab crossed the river", "the cab along this river road"]
    uses = uses_of(*money, *river)
    found = replace(map_senses(bert, "cab", uses), clusters=(0, 0, 0, 1, 1, 1))
    assert [found.cluster_name(number) for number in (0, 1)] == ["money", "river"]
    page = sense_page(found)
    assert page.count("<h2><i class=") == 2
    assert "1: money</bdi> (3)" in page
    beside = page.partition("<h2>All sentences</h2>")[0].partition('class="groups"')[2]
    assert beside.count("<li>") == 6, "three sentences of each cluster, without a click"
    nothing_alike = replace(found, uses=tuple(uses_of("a cab", "b cab", "c cab", "d cab", "e cab", "f cab")))
    assert nothing_alike.cluster_name(1) == "cluster 2"
