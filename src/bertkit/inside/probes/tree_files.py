"""Dependency trees from CoNLL-U files; wrong heads, cycles and missing roots are refused."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.conll import CONLL_U_COLUMNS
from bertkit.data.tables import Location, ending, lines_of
from bertkit.errors import RequestError

FORM, UPOS, HEAD, RELATION = (CONLL_U_COLUMNS.index(name) for name in ("form", "upos", "head", "deprel"))
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 is a range of words, 1.1 an empty node
Cells = tuple[int, list[str]]  # line number, columns


@dataclass(frozen=True, slots=True)
class Tree:
    """A sentence with its dependency tree: `heads` counts words from 0; the head of the root is -1."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # UPOS
    heads: tuple[int, ...]
    relations: tuple[str, ...]  # universal relations: nsubj, not nsubj:pass
    location: Location

    @property
    def root(self) -> int:
        """The word whose head is -1."""
        return self.heads.index(-1)

    @property
    def counted(self) -> tuple[int, ...]:
        """The words that are scored: all but punctuation."""
        return tuple(number for number, tag in enumerate(self.tags) if tag != "PUNCT")


def read_trees(path: Path) -> list[Tree]:
    """The sentences of a CoNLL-U file; an error names the line of the first one that is not a tree."""
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {problem}; check the spelling and the working folder")
    if ending(path) != ".conllu":
        raise RequestError(f"{path}: trees are read from CoNLL-U; give a file that ends in .conllu (.zst, .gz, ...)")
    trees = [_tree(path, block) for block in _sentences(path)]
    if not trees:
        raise RequestError(f"{path} holds no sentences; give a file that has some")
    return trees


def _sentences(path: Path) -> Iterator[list[Cells]]:
    """The lines of words of each sentence, split into columns."""
    block: list[Cells] = []
    for number, line in lines_of(path, "utf-8"):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != len(CONLL_U_COLUMNS):
                problem = f"{len(cells)} columns where CoNLL-U has {len(CONLL_U_COLUMNS)}, with tabs between them"
                raise RequestError(f"{path}, line {number}: {problem}; repair the line")
            if not NOT_A_WORD.fullmatch(cells[0]):
                block.append((number, cells))
    if block:
        yield block


def _tree(path: Path, block: Sequence[Cells]) -> Tree:
    for word, (number, cells) in enumerate(block, start=1):
        problem = _problem(word, cells, len(block))
        if problem:
            raise RequestError(f"{path}, line {number}: {problem}")
    heads = tuple(int(cells[HEAD]) - 1 for _, cells in block)
    _check_tree(path, heads, [number for number, _ in block])
    return Tree(
        words=tuple(cells[FORM] for _, cells in block),
        tags=tuple(cells[UPOS] for _, cells in block),
        heads=heads,
        relations=tuple(cells[RELATION].partition(":")[0] for _, cells in block),
        location=Location(path, block[0][0]),
    )


def _problem(word: int, cells: list[str], words: int) -> str:
    """What is wrong with the line of a word, or ""."""
    if cells[0] != str(word):
        return f"'{cells[0]}' stands where word {word} of the sentence belongs; number its words from 1"
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


def _check_tree(path: Path, heads: Sequence[int], lines: Sequence[int]) -> None:
    """Refuse a sentence without exactly one root, or with a cycle."""
    roots = [line for line, head in zip(lines, heads, strict=True) if head == -1]
    if not roots:
        raise RequestError(f"{path}, line {lines[0]}: this sentence has no root; one of its words must have head 0")
    if len(roots) > 1:
        raise RequestError(f"{path}, line {roots[1]}: a second root after the one on line {roots[0]}; keep one")
    visited = {-1}
    for start in range(len(heads)):
        word, path_to_root = start, []
        while word not in visited:
            visited.add(word)
            path_to_root.append(word)
            word = heads[word]
        if word in path_to_root:
            problem = f"the heads of word {word + 1} form a cycle"
            raise RequestError(
                f"{path}, line {lines[word]}: {problem}; correct a head, so that all words reach the root"
            )
