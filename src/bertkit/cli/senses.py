"""`bertkit senses`: a map of the uses of a word."""

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
    word: Annotated[str, typer.Argument(help="The word to look up.")],
    texts: Annotated[
        list[Path],
        typer.Argument(help="Text files or folders; or a .tsv, .csv or .jsonl file with columns 'text' and 'sense'."),
    ],
    model: Model = None,
    out: Annotated[Path | None, typer.Option(help="Write the map to this HTML file.")] = None,
    layer: Annotated[int, typer.Option(help="Use the vectors of this layer: -1 is the last, 0 the embeddings.")] = -1,
    clusters: Annotated[int | None, typer.Option(help="Number of clusters; by default chosen by silhouette.")] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Static word vectors to compare with, if senses are labeled.")
    ] = None,
    max_uses: Annotated[int, typer.Option(help="Use a random sample of at most this many uses.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Find a word in texts and draw a map of its contextual vectors: one point per use, near where contexts are alike.

    With labeled senses, also print how often the nearest other use has the same sense.
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
    uses = read_uses(word, texts, most=max_uses, show=progress)
    sense_map = map_senses(load(model), word, uses, layer=layer, clusters=clusters, static=static, show=progress)
    if out is not None:
        sense_map.save(out)
    print(json.dumps(sense_map.to_json(), ensure_ascii=False) if as_json else "\n".join(_format_map(sense_map, out)))


def _format_map(sense_map: "SenseMap", out: Path | None) -> Iterator[str]:
    """The clusters as lines of text, each with its most typical uses."""
    silhouette = "" if sense_map.silhouette is None else f", silhouette {sense_map.silhouette:.2f}"
    yield f"{len(sense_map.uses):,} uses of '{sense_map.word}' in {len(set(sense_map.clusters))} clusters{silhouette}"
    if sense_map.scores is not None:
        chance = f"one static vector per word, which is chance: {sense_map.scores.static:.1%}"
        yield f"nearest use of the same sense: {sense_map.scores.contextual:.1%}; {chance}"
        if sense_map.scores.neighbors is not None:
            yield f"mean of the static vectors around: {sense_map.scores.neighbors:.1%}"
    for number in sorted(set(sense_map.clusters)):
        count = sense_map.clusters.count(number)
        yield f"cluster {number + 1}: {count:,} {'use' if count == 1 else 'uses'}"
        yield from (f"  {_excerpt(use.sentence, use.start)}" for use in sense_map.typical(number, SHOWN_SENTENCES))
    if out is not None:
        yield f"the map is in {out}"


def _excerpt(sentence: str, start: int) -> str:
    """The part of a sentence around the word, on one line."""
    first = max(0, min(start - SHOWN_CHARACTERS // 2, len(sentence) - SHOWN_CHARACTERS))
    shown = " ".join(sentence[first : first + SHOWN_CHARACTERS].split())
    return f"{'…' if first else ''}{shown}{'…' if first + SHOWN_CHARACTERS < len(sentence) else ''}"
