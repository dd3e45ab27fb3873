"""What the tests of shards share: a small corpus of all kinds, and the slow way to what a shard holds."""

import json
from pathlib import Path

from bertkit.text.sentences import split_sentences
from bertkit.text.shards.reader import ShardSet
from bertkit.text.shards.writer import write_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

Sentence = tuple[list[int], list[int]]  # ids, and 1 for each that begins a word

TEXTS = {
    "one.txt": "The cat sat in New York. It was unaffable!\nSecond paragraph. Naïve, it is.\n\nParis is a city. 好。\n",
    "two.jsonl": "".join(
        json.dumps({"text": text}) + "\n" for text in ("Row one. Of two.\nNext [MASK] line.", "Row two.")
    ),
    "three.txt": "".join(f"Document {n} is about cats. It has {n} words, or so.\n\n" for n in range(60)),
    "empty-ish.txt": "\u200b\n\n\u200b\u200b\n",  # text that leaves no token
}
NAMES = "New York\n\nParis\nNew York\n"


def write_corpus(folder: Path) -> list[Path]:
    """TEXTS as files."""
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


def write_made(folder: Path, vocab: Path) -> None:
    """texts/, names.txt and made/, a folder of several shards with names."""
    (folder / "names.txt").write_text(NAMES, encoding="utf-8")
    make_again(write_corpus(folder / "texts"), vocab, folder / "made")


def make_again(texts: list[Path], vocab: Path, made: Path, **options: object) -> dict[str, object]:
    """The request that `write_made` makes."""
    options = {"processes": 1, "block_bytes": 500, "entities": made.parent / "names.txt"} | options
    return write_shards(texts, vocab, made, **options)


def slowly(documents: list[list[str]], tokenizer: Tokenizer) -> list[list[Sentence]]:
    """Ids and word starts of each sentence of each document by `Tokenizer.encode`; the empty ones left out."""
    found = []
    for document in documents:
        sentences = []
        for paragraph in document:
            for start, end in split_sentences(paragraph):
                encoding = tokenizer.encode(paragraph[start:end])
                numbers = encoding.words[1:-1]
                starts = [int(i == 0 or numbers[i - 1] != number) for i, number in enumerate(numbers)]
                sentences.append((list(encoding.ids[1:-1]), starts))
        found.append([sentence for sentence in sentences if sentence[0]])
    return [document for document in found if document]


def unpacked(arrays) -> list[list[Sentence]]:
    bounds = zip(arrays["sentences"][:-1].tolist(), arrays["sentences"][1:].tolist(), strict=True)
    sentences = [(arrays["tokens"][a:b].tolist(), arrays["words"][a:b].tolist()) for a, b in bounds]
    bounds = zip(arrays["documents"][:-1].tolist(), arrays["documents"][1:].tolist(), strict=True)
    return [sentences[a:b] for a, b in bounds]


def everything(opened: ShardSet) -> list[list[Sentence]]:
    """The whole content, through the global indices."""
    tokens, words = opened.gather([0], [opened.tokens])
    arrays = {"tokens": tokens, "words": words}
    return unpacked(arrays | {"sentences": opened.sentence_starts, "documents": opened.document_starts})


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_specials(documents: list[list[str]]) -> list[list[str]]:
    """`Tokenizer.encode` keeps a [MASK] in a text whole, which shards must not."""
    return [[" ".join(map(_harmless, paragraph.split(" "))) for paragraph in document] for document in documents]


def _harmless(word: str) -> str:
    return "mask" if any(special in word for special in SPECIALS) else word
