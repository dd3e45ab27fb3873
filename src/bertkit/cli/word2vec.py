"""`bertkit word2vec`: train, query and convert static word vectors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.common import print_note
from bertkit.cli.options import AsJson
from bertkit.errors import RequestError

if TYPE_CHECKING:
    from bertkit.inside.static.vectors import Neighbor, StaticVectors


UNTRAINED_COSINE = 0.99  # between a word and its nearest ones: trained vectors differ more


def word2vec(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... [NAME=VALUE]...",
            help="Text files or a folder of shards to train on; or vectors, a folder or a .vec file. Settings: "
            "width= window= negatives= min_count= subsample= epochs= rate= seed= shortest= longest= buckets=",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write, or a .vec file in word2vec's text format.")
    ] = None,
    method: Annotated[str, typer.Option(help="Training method: skip-gram, cbow, fasttext or glove.")] = "skip-gram",
    nearest: Annotated[str | None, typer.Option(help="Print the words nearest to this word.")] = None,
    arithmetic: Annotated[
        str | None, typer.Option(help='Print the words nearest to an expression: "king - man + woman".')
    ] = None,
    top: Annotated[int, typer.Option(help="Number of words to print.")] = 10,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads; by default one per core. With 1 the result is reproducible.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train static word vectors (word2vec, fastText, GloVe) on text or shards; or query and convert existing ones.

    Example: bertkit word2vec books/*.txt --out vectors/; bertkit word2vec vectors/ --arithmetic "king - man + woman"
    """
    settings = [word for word in source if "=" in word and not Path(word).exists()]
    paths = [Path(word) for word in source if word not in settings]
    _check_options(out, top, threads)
    if _are_vectors(paths):
        if settings:
            raise RequestError(f"{paths[0]} holds vectors already: {settings[0]} is for training")
        vectors = _open(paths)
    else:
        if out is None:
            raise RequestError(
                f"{paths[0]} is no folder of vectors, so it is text to train on: name the output, --out DIR"
            )
        vectors = _train(paths, method, settings, threads)
    if out is not None:
        _write(vectors, out)
    answers = {} if nearest is None else {"nearest": vectors.nearest(nearest, top)}
    _note_untrained(answers.get("nearest", []))
    answers |= {} if arithmetic is None else {"arithmetic": vectors.arithmetic(arithmetic, top)}
    if as_json:
        size = {"words": len(vectors.words), "width": vectors.vectors.shape[1]}
        rows = {name: [asdict(row) for row in neighbors] for name, neighbors in answers.items()}
        print(json.dumps({**size, **vectors.record, "out": out and str(out), **rows}, ensure_ascii=False))
    else:
        print("\n".join(_format_answers(vectors, answers, out)))


def _note_untrained(neighbors: "list[Neighbor]") -> None:
    """Say that vectors which all point in the same direction have hardly been trained."""
    if len(neighbors) > 1 and min(neighbor.cosine for neighbor in neighbors) > UNTRAINED_COSINE:
        print_note("all these words are equally near: the vectors have hardly been trained; give more text or epochs")


def _check_options(out: Path | None, top: int, threads: int | None) -> None:
    """Refuse wrong options before any work is done."""
    from bertkit.files import refuse_to_overwrite

    if top < 1:
        raise RequestError(f"--top {top} must be at least 1")
    if threads is not None and not 1 <= threads <= 1024:
        raise RequestError(f"--threads {threads} must be from 1 to 1024")
    if out is not None:
        refuse_to_overwrite(out)


def _are_vectors(paths: list[Path]) -> bool:
    from bertkit.inside.static.files import is_text_vectors
    from bertkit.inside.static.vectors import is_vectors

    if not paths:
        raise RequestError("name text files, a folder of shards, or vectors")
    return any(is_vectors(path) or is_text_vectors(path) for path in paths)


def _open(paths: list[Path]) -> "StaticVectors":
    from bertkit.inside.static.files import open_vectors

    if len(paths) > 1:
        raise RequestError(f"{', '.join(map(str, paths[:3]))}: name one set of vectors at a time")
    return open_vectors(paths[0])


def _train(paths: list[Path], method: str, settings: list[str], threads: int | None) -> "StaticVectors":
    from bertkit.inside.static.corpus import read_words
    from bertkit.inside.static.settings import read_settings
    from bertkit.inside.static.training import train_vectors
    from bertkit.progress import progress

    parsed = read_settings(method, settings)
    corpus = read_words(paths, min_count=parsed.min_count, show=progress)
    return train_vectors(corpus, parsed, threads=threads, show=progress)


def _write(vectors: "StaticVectors", out: Path) -> None:
    from bertkit.inside.static.files import is_text_vectors, write_word2vec

    if is_text_vectors(out):
        write_word2vec(vectors, out)
    else:
        vectors.save(out)


def _format_answers(
    vectors: "StaticVectors", answers: Mapping[str, "list[Neighbor]"], out: Path | None
) -> Iterator[str]:
    """The result as lines of text."""
    if out is not None or not answers:
        kind = ", with subwords" if vectors.subwords is not None and not (out and out.is_file()) else ""
        size = f"{len(vectors.words):,} words of {vectors.vectors.shape[1]} numbers"
        yield f"{size}{kind}" + (f" in {out}" if out else "")
    for neighbors in answers.values():
        yield from (f"{neighbor.cosine:6.3f}  {neighbor.word}" for neighbor in neighbors)
