"""The senses of a word: a vector for each of its uses, from the words around it, as a map and as scores."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bertkit.errors import RequestError
from bertkit.inside.senses.page import SenseMap, SenseScores
from bertkit.inside.senses.scores import Vectors, chance, cluster, flat, label_silhouette, neighbor_accuracy, units
from bertkit.inside.senses.uses import Use
from bertkit.inside.static.vectors import StaticVectors
from bertkit.predict.bert import Bert
from bertkit.progress import ShowProgress, silent
from bertkit.text.vocabulary.word_counts import split_chunk

CONTEXT_WORDS = 5  # on each side, averaged for the static baseline: word2vec's window


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
    """The contextual vector of each use of a word, as a map. Layer 0 is the embeddings, -1 the last."""
    vectors = use_vectors(bert, uses, layer=layer, show=show)
    points, shown = flat(vectors)
    found = cluster(vectors, clusters)
    config = bert.model.config
    return SenseMap(
        word=word,
        model=f"{config.family}, {config.depth} layers of {config.width}",
        layer=layer if layer >= 0 else config.depth + 1 + layer,
        uses=tuple(uses),
        points=tuple((float(x), float(y)) for x, y in points),
        shown=shown,
        clusters=found.numbers,
        silhouette=found.silhouette,
        scores=sense_scores(vectors, uses, static),
    )


def use_vectors(bert: Bert, uses: Sequence[Use], *, layer: int = -1, show: ShowProgress = silent) -> Vectors:
    """[n, width]: for each use the mean over the pieces of the word; sentences over the limit go through windows."""
    settings = replace(bert.embed_settings(pooling="none", layers=[layer], normalize=False), prefix="")
    encodings = bert.tokenizer.encode_batch([use.sentence for use in uses])
    rows: list[Vectors] = []
    with show("reading", len(uses)) as meter:
        for block in bert.embed_blocks([use.sentence for use in uses], settings, "window"):
            for tokens in block.vectors:
                use, encoding = uses[len(rows)], encodings[len(rows)]
                spans = zip(encoding.offsets, encoding.words, strict=True)
                own = [n for n, ((a, b), w) in enumerate(spans) if w is not None and a < use.end and b > use.start]
                if not own:
                    shown = use.sentence[use.start : use.end]
                    raise RequestError(
                        f"{use.source}: the tokenizer makes nothing of '{shown}'; is it of this language?"
                    )
                rows.append(tokens[own].mean(axis=0))
            meter.update(len(rows))
    return np.stack(rows)


def sense_scores(vectors: Vectors, uses: Sequence[Use], static: StaticVectors | None = None) -> SenseScores | None:
    """Scores against the labeled senses; None where there are none."""
    senses = [use.sense for use in uses if use.sense is not None]
    if len(senses) != len(uses) or len(senses) < 2:
        return None
    around = None if static is None else neighbor_accuracy(around_vectors(static, uses), senses)
    return SenseScores(
        contextual=neighbor_accuracy(vectors, senses),
        static=chance(senses),
        neighbors=around,
        silhouette=label_silhouette(vectors, senses),
    )


def around_vectors(static: StaticVectors, uses: Sequence[Use], window: int = CONTEXT_WORDS) -> Vectors:
    """[n, width]: the mean of the static vectors of the words around each use, at length 1, without the word itself."""
    rows = []
    for use in uses:
        before = [word for word in _words(use.sentence[: use.start]) if word in static][-window:]
        after = [word for word in _words(use.sentence[use.end :]) if word in static][:window]
        own = [static.numbers[word] for word in (*before, *after)]
        empty = np.zeros(static.vectors.shape[1], np.float32)
        rows.append(units(static.vectors[own]).mean(axis=0) if own else empty)
    return np.stack(rows)


def _words(text: str) -> list[str]:
    return split_chunk(text, lowercase=True)
