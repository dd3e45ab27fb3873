"""`bertkit senses`: the map of a word's uses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import AsJson, Model

if TYPE_CHECKING:
    from bertkit.inside.senses.senses import SenseMap

SHOWN_SENTENCES = 3  # of each cluster
SHOWN_CHARACTERS = 100  # of each sentence


def senses(
    word: Annotated[str, typer.Argument(help="A word.")],
    texts: Annotated[
        list[Path],
        typer.Argument(help="Text files or folders; or a .tsv, .csv or .jsonl with columns 'text' and 'sense'."),
    ],
    model: Model = None,
    out: Annotated[Path | None, typer.Option(help="Write the map to this HTML file.")] = None,
    layer: Annotated[int, typer.Option(help="The layer whose vectors are used: -1 the last, 0 the embeddings.")] = -1,
    clusters: Annotated[int | None, typer.Option(help="Number of clusters; by default chosen by silhouette.")] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Static vectors to compare with, where senses are labeled.")
    ] = None,
    most: Annotated[int, typer.Option(help="Sample at most so many uses.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Find a word in texts and map its uses by what stands around it: one point for each, near where used alike.

    With labeled senses it says how often the nearest other use has the same sense, and what static vectors give.
    Example: bertkit senses bank books/*.txt --model model/ --out bank.html
    """
    from bertkit.files import refuse_taken

    if out is not None:
        refuse_taken(out, "senses.html")
    from bertkit.inside.senses.senses import map_senses
    from bertkit.inside.senses.uses import read_uses
    from bertkit.inside.static.files import open_vectors
    from bertkit.predict.bert import load
    from bertkit.progress import progress

    static = None if vectors is None else open_vectors(vectors)
    uses = read_uses(word, texts, most=most, show=progress)
    found = map_senses(load(model), word, uses, layer=layer, clusters=clusters, static=static, show=progress)
    if out is not None:
        found.save(out)
    print(json.dumps(found.to_json(), ensure_ascii=False) if as_json else "\n".join(_format_map(found, out)))


def _format_map(found: "SenseMap", out: Path | None) -> Iterator[str]:
    """The map as lines to read: each cluster with its most typical uses."""
    clear = "" if found.silhouette is None else f", silhouette {found.silhouette:.2f}"
    yield f"{len(found.uses):,} uses of '{found.word}' in {len(set(found.clusters))} clusters{clear}"
    if found.scores is not None:
        chance = f"one static vector per word, which is chance: {found.scores.static:.1%}"
        yield f"nearest use of the same sense: {found.scores.contextual:.1%}; {chance}"
        if found.scores.neighbors is not None:
            yield f"mean of the static vectors around: {found.scores.neighbors:.1%}"
    for number in sorted(set(found.clusters)):
        yield f"cluster {number + 1}: {_uses(found.clusters.count(number))}"
        yield from (f"  {_around(use.sentence, use.start)}" for use in found.typical(number, SHOWN_SENTENCES))
    if out is not None:
        yield f"the map is in {out}"


def _uses(count: int) -> str:
    return "1 use" if count == 1 else f"{count:,} uses"


def _around(sentence: str, start: int) -> str:
    """The part of a sentence around the word, on one line."""
    first = max(0, min(start - SHOWN_CHARACTERS // 2, len(sentence) - SHOWN_CHARACTERS))
    shown = " ".join(sentence[first : first + SHOWN_CHARACTERS].split())
    return f"{'…' if first else ''}{shown}{'…' if first + SHOWN_CHARACTERS < len(sentence) else ''}"
