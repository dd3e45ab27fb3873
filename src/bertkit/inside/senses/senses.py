"""The senses of a word: contextual vectors of its uses, as a map and as scores."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.errors import RequestError
from bertkit.inside.senses.scores import Vectors, chance, cluster, label_silhouette, neighbor_accuracy, project, units
from bertkit.inside.senses.uses import Use
from bertkit.inside.static.vectors import StaticVectors
from bertkit.predict.bert import Bert
from bertkit.predict.vectors import text_blocks
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import JsonResult, PageResult, render_page
from bertkit.text.vocabulary.word_counts import split_chunk

COLORS = ("#2563eb", "#d9730d", "#15803d", "#b5338a", "#0e8f9e", "#8a6d00", "#7c4dff", "#c0392b", "#5f6b7a", "#3e7d5a")
NAMING_WORDS, NAMING_WINDOW = 3, 10  # of a cluster: its name, and where its words are looked for on each side
MIN_LETTERS = 4  # of such a word, if it is in ASCII: shorter ones are mostly articles and prepositions
TYPICAL_USES = 3  # sentences of each group beside the map
CONTEXT_WORDS = 5  # on each side, averaged for the static baseline, as in word2vec's window


@dataclass(frozen=True)
class SenseScores:
    """How often the nearest other use has the same labeled sense, by kind of vector."""

    contextual: float
    static: float  # one vector for all uses: all neighbors are equally near, so this is chance
    neighbors: float | None  # mean of the static vectors of the surrounding words; None without static vectors
    silhouette: float | None  # of the labeled senses, in contextual vectors


@dataclass(frozen=True, eq=False)
class SenseMap(PageResult, JsonResult):
    """The uses of a word with their points on a map and clusters; and scores, if senses are labeled."""

    word: str
    model: str
    layer: int
    uses: tuple[Use, ...]
    points: tuple[tuple[float, float], ...]
    shown: float  # share of the variance on the map
    clusters: tuple[int, ...]
    silhouette: float | None
    scores: SenseScores | None

    @property
    def html(self) -> str:
        """The map as one HTML page."""
        return sense_page(self)

    def typical(self, cluster: int, count: int = TYPICAL_USES) -> list[Use]:
        """The uses nearest to the center of a cluster on the map."""
        members = [number for number, other in enumerate(self.clusters) if other == cluster]
        return [self.uses[number] for number in _nearest_to_center(self.points, members)[:count]]

    def cluster_name(self, cluster: int) -> str:
        """The words that stand near the word more often in this cluster than in the others, such as `river, water`."""
        return ", ".join(cluster_words(self.uses, self.clusters, cluster)) or f"cluster {cluster + 1}"

    def __repr__(self) -> str:
        count = len(set(self.clusters))
        return f"SenseMap('{self.word}', {len(self.uses)} uses, {count} clusters; save it, or show it in a notebook)"


def cluster_words(uses: Sequence[Use], clusters: Sequence[int], cluster: int) -> list[str]:
    """The words around the uses of a cluster that distinguish it, by p log(p / q) of the shares of uses with them.

    Short words, words of most uses, and words of a single use of the cluster say nothing about it.
    """
    contexts: dict[bool, list[set[str]]] = {True: [], False: []}
    for use, number in zip(uses, clusters, strict=True):
        contexts[number == cluster].append(_context(use))
    inside, outside = contexts[True], contexts[False]
    counts, others = (Counter(word for words in group for word in words) for group in (inside, outside))
    shares = {}
    for word, count in counts.items():
        share, other = count / len(inside), (others[word] + 0.5) / (len(outside) + 1)
        rare = 2 * (count + others[word]) <= len(uses)
        if count > 1 and rare and share > other and word.isalpha() and not (word.isascii() and len(word) < MIN_LETTERS):
            shares[word] = share * np.log(share / other)
    return sorted(shares, key=lambda word: (-shares[word], word))[:NAMING_WORDS]


def _context(use: Use) -> set[str]:
    """The words around a use, without the word itself."""
    own = set(_words(use.sentence[use.start : use.end]))
    before, after = _words(use.sentence[: use.start]), _words(use.sentence[use.end :])
    return {*before[-NAMING_WINDOW:], *after[:NAMING_WINDOW]} - own


def _nearest_to_center(points: Sequence[tuple[float, float]], members: Sequence[int]) -> list[int]:
    """Members of a group, those nearest to its center on the map first."""
    places = np.array([points[number] for number in members])
    order = np.argsort(np.linalg.norm(places - places.mean(axis=0), axis=1), kind="stable")
    return [members[index] for index in order]


def sense_page(senses: SenseMap) -> str:
    """The page as HTML."""
    groups = _groups(senses)
    uses = list(_shown_uses(senses, groups))
    return render_page(
        "senses.html",
        title=f"{senses.word} — bertkit senses",
        word=senses.word,
        notes=list(_notes(senses)),
        uses=uses,
        groups=[_legend(name, color, uses, senses.points) for name, color in _colors(groups).items()],
    )


def _groups(senses: SenseMap) -> list[str]:
    """The group of each use, which determines its color: its labeled sense, else its cluster."""
    if all(use.sense is not None for use in senses.uses):
        return [str(use.sense) for use in senses.uses]
    names = {number: f"{number + 1}: {senses.cluster_name(number)}" for number in set(senses.clusters)}
    return [names[number] for number in senses.clusters]


def _notes(senses: SenseMap) -> Iterator[str]:
    silhouette = "" if senses.silhouette is None else f", silhouette {senses.silhouette:.2f}"
    clusters = f"{len(set(senses.clusters))} clusters by k-means{silhouette}"
    yield f"{len(senses.uses):,} uses; {clusters}; {senses.model}, layer {senses.layer}"
    yield f"The map shows {senses.shown:.0%} of the vectors' variance: their first two principal components."
    if senses.scores is not None:
        context = senses.scores.neighbors
        by_context = (
            "" if context is None else f", by the mean of the static vectors of the words around it in {context:.1%}"
        )
        yield (
            f"The nearest other use has the same sense in {senses.scores.contextual:.1%} of cases; "
            f"by one vector per word, which is chance, in {senses.scores.static:.1%}{by_context}."
        )


def _colors(groups: list[str]) -> dict[str, str]:
    names = [name for name, _ in Counter(groups).most_common()]
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}


def _shown_uses(senses: SenseMap, groups: list[str]) -> Iterator[dict[str, str]]:
    """Each use with its position on the map, group and color, and its sentence in three parts."""
    colors = _colors(groups)
    points = zip(_scaled([x for x, _ in senses.points]), _scaled([-y for _, y in senses.points]), strict=True)
    for (x, y), use, group in zip(points, senses.uses, groups, strict=True):
        text, word = use.sentence, slice(use.start, use.end)
        shown = {"x": f"{x:.2%}", "y": f"{y:.2%}", "group": group, "color": colors[group], "sentence": text}
        yield shown | {"before": text[: use.start], "word": text[word], "after": text[use.end :]}


def _legend(name: str, color: str, uses: list[dict[str, str]], points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    members = [number for number, use in enumerate(uses) if use["group"] == name]
    typical = [uses[number] for number in _nearest_to_center(points, members)[:TYPICAL_USES]]
    shown = {"name": name, "color": color, "count": f"{len(members):,}"}
    return {**shown, "typical": typical, "uses": [uses[number] for number in members]}


def _scaled(values: list[float]) -> list[float]:
    """The values scaled to [0, 1]; equal values become 0.5."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        return [0.5] * len(values)
    return [(value - low) / (high - low) for value in values]


def map_senses(
    bert: Bert,
    word: str,
    uses: Sequence[Use],
    *,
    layer: int = -1,
    clusters: int | None = None,
    static: StaticVectors | None = None,
    show: ShowProgress = silent,
) -> SenseMap:
    """A map of the contextual vectors of a word's uses. Layer 0 is the embeddings, -1 the last layer."""
    vectors = use_vectors(bert, uses, layer=layer, show=show)
    points, shown = project(vectors)
    clustered = cluster(vectors, clusters)
    config = bert.model.config
    shape = f"{config.family}, {config.depth} layers of {config.width}"
    return SenseMap(
        word=word,
        model=f"{bert.checkpoint.name}: {shape}" if bert.checkpoint.name else shape,
        layer=layer if layer >= 0 else config.depth + 1 + layer,
        uses=tuple(uses),
        points=tuple((float(x), float(y)) for x, y in points),
        shown=shown,
        clusters=clustered.numbers,
        silhouette=clustered.silhouette,
        scores=sense_scores(vectors, uses, static),
    )


def use_vectors(bert: Bert, uses: Sequence[Use], *, layer: int = -1, show: ShowProgress = silent) -> Vectors:
    """N D: for each use, the mean over the pieces of the word; long sentences are read through windows."""
    settings = replace(bert.checkpoint.embed_settings(pooling="none", layers=[layer], normalize=False), prefix="")
    encodings = bert.tokenizer.encode_batch([use.sentence for use in uses])
    rows: list[Vectors] = []
    with show("reading", len(uses)) as meter:
        for block in text_blocks(bert.checkpoint, [use.sentence for use in uses], settings, "window"):
            for tokens in block.vectors:
                use, encoding = uses[len(rows)], encodings[len(rows)]
                spans = zip(encoding.offsets, encoding.words, strict=True)
                pieces = [n for n, ((a, b), w) in enumerate(spans) if w is not None and a < use.end and b > use.start]
                if not pieces:
                    shown = use.sentence[use.start : use.end]
                    raise RequestError(
                        f"{use.source}: the tokenizer gives no token for '{shown}'; is it for this language?"
                    )
                rows.append(tokens[pieces].mean(axis=0))
            meter.update(len(rows))
    return np.stack(rows)


def sense_scores(vectors: Vectors, uses: Sequence[Use], static: StaticVectors | None = None) -> SenseScores | None:
    """Scores against the labeled senses; None if uses are not labeled."""
    senses = [use.sense for use in uses if use.sense is not None]
    if len(senses) != len(uses) or len(senses) < 2:
        return None
    context = None if static is None else neighbor_accuracy(context_vectors(static, uses), senses)
    return SenseScores(
        contextual=neighbor_accuracy(vectors, senses),
        static=chance(senses),
        neighbors=context,
        silhouette=label_silhouette(vectors, senses),
    )


def context_vectors(static: StaticVectors, uses: Sequence[Use], window: int = CONTEXT_WORDS) -> Vectors:
    """N D: the mean of the normalized static vectors of the words around each use, without the word itself."""
    rows = []
    for use in uses:
        before = [word for word in _words(use.sentence[: use.start]) if word in static][-window:]
        after = [word for word in _words(use.sentence[use.end :]) if word in static][:window]
        context = [static.numbers[word] for word in (*before, *after)]
        empty = np.zeros(static.vectors.shape[1], np.float32)
        rows.append(units(static.vectors[context]).mean(axis=0) if context else empty)
    return np.stack(rows)


def _words(text: str) -> list[str]:
    return split_chunk(text, lowercase=True)
