"""Static vectors in text formats: word2vec's (a line of sizes, then a word and its numbers per line) and GloVe's."""

from array import array
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.inside.static.vectors import StaticVectors, Vector, is_vectors, load_vectors
from bertkit.text.corpus import COMPRESSED, CorpusReport, read_lines

TEXT_ENDINGS = (".vec", ".w2v")  # of word2vec's text format; .txt could be any text


def is_text_vectors(path: Path | str) -> bool:
    """Whether a file name has an ending of word2vec's text format, compressed or not."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower() in TEXT_ENDINGS


def open_vectors(path: Path | str) -> StaticVectors:
    """The vectors of a folder, or of a file in word2vec's or GloVe's text format."""
    path = Path(path)
    return read_word2vec(path) if path.is_file() and not is_vectors(path) else load_vectors(path)


def write_word2vec(vectors: StaticVectors, path: Path | str) -> None:
    """Write word2vec's text format, with enough digits to read equal float32 numbers back; without subwords."""
    if invalid := next((word for word in vectors.words if len(word.split()) != 1 or word != word.strip()), None):
        raise RequestError(f"the word {invalid!r} has a space in it, which word2vec's text format cannot hold")
    with whole_file(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(vectors.words)} {vectors.vectors.shape[1]}\n")
        for word, row in zip(vectors.words, vectors.vectors, strict=True):
            file.write(f"{word} {' '.join(map(str, row))}\n")  # str of a numpy float reads back equal


def read_word2vec(path: Path | str) -> StaticVectors:
    """Read word2vec's or GloVe's text format, compressed or not; errors name the line."""
    path = Path(path)
    lines = read_lines(path, report=CorpusReport())
    sizes, width, words, values = None, 0, dict[str, None](), array("f")
    for number, line in lines:
        cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 2 and all(cell.isdecimal() for cell in cells):
            sizes = (int(cells[0]), int(cells[1]))
        elif line.strip():
            place = f"{path}, line {number}"
            width = width or (sizes[1] if sizes else len(cells) - 1)
            values.frombytes(_numbers(cells[1:], width, place).tobytes())
            if cells[0] in words:
                raise RequestError(f"{place}: the word '{cells[0]}' appears twice; remove one of the two lines")
            words[cells[0]] = None
    if not words:
        raise RequestError(f"{path} holds no vectors; a line is a word and its numbers, with spaces between")
    if sizes and sizes[0] != len(words):
        raise RequestError(f"{path} declares {sizes[0]:,} vectors but has {len(words):,}; copy it again")
    return StaticVectors(tuple(words), np.array(values, np.float32).reshape(-1, width), record={"read from": path.name})


def _numbers(cells: list[str], width: int, place: str) -> Vector:
    if len(cells) != width or not width:
        raise RequestError(
            f"{place}: {len(cells)} numbers, where {max(width, 1)} belong; is it word2vec's text format?"
        )
    try:
        row = np.array(cells, np.float32)
    except ValueError as error:
        raise RequestError(f"{place}: {error}; a line is a word and its numbers, with spaces between") from error
    if not np.isfinite(row).all():
        raise RequestError(f"{place}: a number is not finite; remove the line")
    return row
