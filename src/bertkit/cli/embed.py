"""`bertkit embed`: a file of texts to a file of vectors."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def embed(
    texts: Annotated[Path, typer.Argument(help="A text file, one text per line; - reads standard input.")],
    out: Annotated[Path, typer.Option(help="Where the vectors go: .npy or .parquet.")],
    model: Annotated[Path | None, typer.Option(help="A model folder.")] = None,
    pooling: Annotated[str | None, typer.Option(help="cls, first, last, mean, max, mean-max.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to concatenate: -1 is the last; e.g. -1,-2.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Scale each vector to length 1.")] = None,
    too_long: Annotated[str, typer.Option(help="truncate, window or refuse texts over the limit.")] = "truncate",
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as JSON.")] = False,
) -> None:
    """Turn each line of a file into one vector, in order, in little memory however long the file is."""
    from functools import reduce

    import numpy as np

    from bertkit.config import pick
    from bertkit.model.pooling import NAMES
    from bertkit.predict.bert import load
    from bertkit.predict.length import POLICIES, LengthReport
    from bertkit.predict.vectors import check_output, read_texts, vector_file
    from bertkit.progress import progress
    from bertkit.text.corpus import CorpusReport

    check_output(out)
    how = None if pooling is None else pick(NAMES, pooling, "pooling of one vector per text")
    policy = pick(POLICIES, too_long, "length policy")
    bert = load(model)
    settings = bert.embed_settings(pooling=how, layers=_numbers(layers), normalize=normalize)
    seen, count, lengths, width = CorpusReport(), 0, [], bert.width(settings)
    pick(NAMES, settings.pooling, "pooling of one vector per text")
    total = texts.stat().st_size if texts.is_file() else 1
    with progress("embedding", total) as meter, vector_file(out, width) as write:
        blocks = bert.embed_blocks(read_texts(texts, seen), settings, policy, lambda n: f"{texts}, line {n + 1}")
        for block in blocks:
            write(block.texts, np.stack(block.vectors))
            count += len(block.texts)
            lengths.append(block.lengths)
            meter.update(min(seen.bytes, total), {"texts": f"{count:,}"})
    if any(report.long for report in lengths):
        print(f"bertkit: note: {reduce(LengthReport.joined, lengths)}", file=sys.stderr)
    done = {"texts": count, "width": width, "out": str(out)}
    print(json.dumps(done) if as_json else f"{count} vectors of {width} in {out}")


def _numbers(text: str | None) -> list[int] | None:
    from bertkit.errors import RequestError

    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--layers {text} must be whole numbers with commas, such as -1,-2") from error
