"""`bertkit word2vec`: static word vectors, one for each word: train, query, convert."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import AsJson

if TYPE_CHECKING:
    from bertkit.inside.static.vectors import Neighbor, StaticVectors


def word2vec(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... [NAME=VALUE]...",
            help="Text files or a folder of shards to train from; or vectors: a folder or a .vec file. Settings: "
            "width= window= negatives= min_count= subsample= epochs= rate= seed= shortest= longest= buckets=",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the vectors go: a folder, or a .vec file in word2vec's text format.")
    ] = None,
    method: Annotated[str, typer.Option(help="skip-gram, cbow, fasttext or glove.")] = "skip-gram",
    nearest: Annotated[str | None, typer.Option(help="Print the words nearest to this one.")] = None,
    arithmetic: Annotated[
        str | None, typer.Option(help='Print the words nearest to an expression: "king - man + woman".')
    ] = None,
    top: Annotated[int, typer.Option(help="How many words to print.")] = 10,
    threads: Annotated[
        int | None, typer.Option(help="Threads; by default one per core. With 1 the result is reproducible.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train static word vectors (word2vec, fastText, GloVe) from text or shards; or query and convert existing ones.

    Example: bertkit word2vec books/*.txt --out vectors/; bertkit word2vec vectors/ --arithmetic "king - man + woman"
    """
    from bertkit.errors import RequestError

    paths, settings = _sorted(source)
    _refuse(out, top, threads)
    if _are_vectors(paths):
        if settings:
            raise RequestError(f"{paths[0]} holds vectors already: {settings[0]} is for training")
        found = _open(paths)
    else:
        if out is None:
            raise RequestError(
                f"{paths[0]} is no folder of vectors, so it is text to train from: say where to, --out DIR"
            )
        found = _train(paths, method, settings, threads)
    if out is not None:
        _write(found, out)
    answers = _answers(found, nearest, arithmetic, top)
    about = {"words": len(found.words), "width": found.vectors.shape[1], **found.record, "out": out and str(out)}
    print(
        json.dumps({**about, **_plain(answers)}, ensure_ascii=False)
        if as_json
        else "\n".join(_format_answers(found, answers, out))
    )


def _sorted(source: list[str]) -> tuple[list[Path], list[str]]:
    """Paths and settings: name=value is a setting, unless there is a file of that name."""
    settings = [each for each in source if "=" in each and not Path(each).exists()]
    return [Path(each) for each in source if each not in settings], settings


def _refuse(out: Path | None, top: int, threads: int | None) -> None:
    """Say what is wrong with the request before any work is done."""
    from bertkit.errors import RequestError
    from bertkit.files import refuse_to_overwrite

    if top < 1:
        raise RequestError(f"--top {top} must be at least 1")
    if threads is not None and not 1 <= threads <= 1024:
        raise RequestError(f"--threads {threads} must be from 1 to 1024")
    if out is not None:
        refuse_to_overwrite(out)


def _are_vectors(paths: list[Path]) -> bool:
    from bertkit.errors import RequestError
    from bertkit.inside.static.files import is_text_vectors
    from bertkit.inside.static.vectors import is_vectors

    if not paths:
        raise RequestError("name text files, a folder of shards, or vectors")
    return any(is_vectors(path) or is_text_vectors(path) for path in paths)


def _open(paths: list[Path]) -> "StaticVectors":
    from bertkit.errors import RequestError
    from bertkit.inside.static.files import open_vectors

    if len(paths) > 1:
        raise RequestError(f"{', '.join(map(str, paths[:3]))}: name one set of vectors at a time")
    return open_vectors(paths[0])


def _train(paths: list[Path], method: str, settings: list[str], threads: int | None) -> "StaticVectors":
    from bertkit.inside.static.corpus import read_words
    from bertkit.inside.static.settings import read_settings
    from bertkit.inside.static.training import train_vectors
    from bertkit.progress import progress

    wanted = read_settings(method, settings)
    corpus = read_words(paths, min_count=wanted.min_count, show=progress)
    return train_vectors(corpus, wanted, threads=threads, show=progress)


def _write(found: "StaticVectors", out: Path) -> None:
    from bertkit.inside.static.files import is_text_vectors, write_word2vec

    if is_text_vectors(out):
        write_word2vec(found, out)
    else:
        found.save(out)


def _answers(
    found: "StaticVectors", nearest: str | None, arithmetic: str | None, top: int
) -> dict[str, "list[Neighbor]"]:
    answers = {}
    if nearest is not None:
        answers["nearest"] = found.nearest(nearest, top)
    if arithmetic is not None:
        answers["arithmetic"] = found.arithmetic(arithmetic, top)
    return answers


def _plain(answers: dict[str, "list[Neighbor]"]) -> dict[str, Any]:
    return {name: [asdict(each) for each in rows] for name, rows in answers.items()}


def _format_answers(found: "StaticVectors", answers: dict[str, "list[Neighbor]"], out: Path | None) -> Iterator[str]:
    """The result as lines to read."""
    if out is not None or not answers:
        kind = ", with subwords" if found.subwords is not None and not (out and out.is_file()) else ""
        yield f"{len(found.words):,} words of {found.vectors.shape[1]} numbers{kind}" + (f" in {out}" if out else "")
    for rows in answers.values():
        yield from (f"{each.cosine:6.3f}  {each.word}" for each in rows)
