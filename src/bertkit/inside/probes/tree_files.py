"""Dependency trees from CoNLL-U files, every one of them a tree: broken heads, cycles and lost roots stop here."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.conll import CONLL_U_COLUMNS
from bertkit.data.tables import Location, ending, lines_of
from bertkit.errors import RequestError

FORM, UPOS, HEAD, RELATION = (CONLL_U_COLUMNS.index(name) for name in ("form", "upos", "head", "deprel"))
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 repeats the words that follow, 1.1 is not in the text
Cells = tuple[int, list[str]]  # the number of a line, and its columns


@dataclass(frozen=True, slots=True)
class Tree:
    """A sentence whose words hang on one another: `heads` counts words from 0, and the root hangs on -1."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # UPOS
    heads: tuple[int, ...]
    relations: tuple[str, ...]  # universal ones: nsubj, not nsubj:pass
    location: Location

    @property
    def root(self) -> int:
        """The word that hangs on nothing."""
        return self.heads.index(-1)

    @property
    def counted(self) -> tuple[int, ...]:
        """The words that scores count: all but punctuation."""
        return tuple(number for number, tag in enumerate(self.tags) if tag != "PUNCT")


def read_trees(path: Path) -> list[Tree]:
    """Every sentence of a CoNLL-U file; the first that is no tree stops with its line and a remedy."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {what}; check the spelling and the working folder")
    if ending(path) != ".conllu":
        raise RequestError(f"{path}: trees are read from CoNLL-U; give a file that ends in .conllu (.zst, .gz, ...)")
    trees = [_tree(path, block) for block in _sentences(path)]
    if not trees:
        raise RequestError(f"{path} holds no sentences; give a file that has some")
    return trees


def _sentences(path: Path) -> Iterator[list[Cells]]:
    """The lines of each sentence that are words, in columns."""
    block: list[Cells] = []
    for number, line in lines_of(path, "utf-8"):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != len(CONLL_U_COLUMNS):
                what = f"{len(cells)} columns where CoNLL-U has {len(CONLL_U_COLUMNS)}, with tabs between them"
                raise RequestError(f"{path}, line {number}: {what}; repair the line")
            if not NOT_A_WORD.fullmatch(cells[0]):
                block.append((number, cells))
    if block:
        yield block


def _tree(path: Path, block: Sequence[Cells]) -> Tree:
    for at, (number, cells) in enumerate(block, start=1):
        fault = _fault(at, cells, len(block))
        if fault:
            raise RequestError(f"{path}, line {number}: {fault}")
    heads = tuple(int(cells[HEAD]) - 1 for _, cells in block)
    _refuse_no_tree(path, heads, [number for number, _ in block])
    return Tree(
        words=tuple(cells[FORM] for _, cells in block),
        tags=tuple(cells[UPOS] for _, cells in block),
        heads=heads,
        relations=tuple(cells[RELATION].partition(":")[0] for _, cells in block),
        location=Location(path, block[0][0]),
    )


def _fault(at: int, cells: list[str], words: int) -> str:
    """What is wrong with one word, or nothing."""
    if cells[0] != str(at):
        return f"'{cells[0]}' stands where word {at} of the sentence belongs; number its words from 1"
    if not cells[FORM].strip():
        return "the word is empty; fill it in"
    head = cells[HEAD]
    if not (head.isascii() and head.isdecimal() and len(head) < 10):
        return f"the head of '{cells[FORM]}' is '{head:.20}', which is no number of a word; the root's head is 0"
    if int(head) > words:
        return f"the head of '{cells[FORM]}' is {head}, but the sentence ends with word {words}; correct it"
    if cells[RELATION].strip() in ("", "_"):
        return f"'{cells[FORM]}' has no relation (deprel) to its head; fill it in"
    return ""


def _refuse_no_tree(path: Path, heads: Sequence[int], lines: Sequence[int]) -> None:
    """One root, and from every word a way to it."""
    roots = [line for line, head in zip(lines, heads, strict=True) if head == -1]
    if not roots:
        raise RequestError(f"{path}, line {lines[0]}: this sentence has no root; one of its words must have head 0")
    if len(roots) > 1:
        raise RequestError(f"{path}, line {roots[1]}: a second root after the one on line {roots[0]}; keep one")
    known = {-1}  # words with a way to the root
    for start in range(len(heads)):
        word, way = start, []
        while word not in known:
            known.add(word)
            way.append(word)
            word = heads[word]
        if word in way:
            said = f"word {word + 1} hangs on itself by way of its head"
            raise RequestError(f"{path}, line {lines[word]}: {said}; break the circle, so that all hang on the root")
