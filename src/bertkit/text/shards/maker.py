"""One block of text → one shard on disk: the work of one worker process.

A block is a part of the corpus as plain text, UTF-8 with a blank line between documents. The shard appears whole or not
at all, with a shard.json that records its source and its content, so that a later run can keep it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.files import whole_folder
from bertkit.text.shards.entities import EntityFinder
from bertkit.text.shards.reader import TOKENIZER, check_shard, file_checksum, shard_folder
from bertkit.text.shards.sentence_ids import EncodedTexts, Integers, LibraryIds, sentence_texts
from bertkit.text.shards.table_ids import load_encoder

RECORD = "shard.json"
Record = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Consecutive documents of the corpus."""

    number: int
    text: bytes
    read: int  # bytes of the source files that it was read from


@dataclass(frozen=True)
class ShardContent:
    """The arrays of one shard, as `reader.array_sizes` lists them, and its counts."""

    arrays: Mapping[str, NDArray[Any]]
    counts: Mapping[str, int]


class ShardMaker:
    """Makes shards in a folder from blocks, with the folder's tokenizer."""

    def __init__(self, out: Path, names: Sequence[str] | None) -> None:
        self.out = out
        self.encoder = load_encoder(out / TOKENIZER)
        self.finder = None if names is None else EntityFinder(names, self.encoder)

    def make(self, block: Block) -> Record:
        """Tokenize a block, write its shard, and return its record."""
        content = tokenize_block(block.text, self.encoder, self.finder)
        with whole_folder(shard_folder(self.out, block.number)) as draft:
            for name, array in content.arrays.items():
                with (draft / f"{name}.bin").open("wb") as file:
                    file.write(np.ascontiguousarray(array).data)
            record = _record(block, content, draft)
            (draft / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return record


def tokenize_block(text: bytes, encoder: LibraryIds, finder: EntityFinder | None = None) -> ShardContent:
    """The arrays of a shard, without sentences that have no token and documents that have no sentence."""
    texts: list[str] = []
    bounds = [0]
    paragraphs = 0
    for document in text.split(b"\n\n"):
        for paragraph in document.decode().split("\n"):
            texts.extend(sentence_texts(paragraph))
            paragraphs += 1
        bounds.append(len(texts))
    encoded = encoder.encode(texts)
    arrays = _arrays(encoded, np.array(bounds))
    if finder is not None:
        arrays["entities"] = finder.find(encoded)
    counts = {
        "tokens": len(encoded.ids),
        "words": int(encoded.words.sum(dtype=np.int64)),
        "sentences": len(arrays["sentences"]) - 1,
        "paragraphs": paragraphs,
        "documents": len(arrays["documents"]) - 1,
        "entities": len(arrays.get("entities", ())),
    }
    return ShardContent(arrays, counts)


def finished_record(out: Path, block: Block) -> Record | None:
    """The record of the block's shard, if it exists, was made from the same text and is undamaged."""
    folder = shard_folder(out, block.number)
    try:
        record: Record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        check_shard(folder, record, verify=True)
        return record if record["text_sha256"] == text_checksum(block.text) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RequestError):
        return None


def _arrays(encoded: EncodedTexts, documents: Integers) -> dict[str, NDArray[Any]]:
    filled = encoded.lengths > 0
    sentences = np.append(0, np.cumsum(encoded.lengths[filled]))
    filled_before = np.append(0, np.cumsum(filled))
    return {
        "tokens": encoded.ids,
        "words": encoded.words,
        "sentences": sentences.astype("<i8"),
        "documents": np.unique(filled_before[documents]).astype("<i8"),
    }


def _record(block: Block, content: ShardContent, draft: Path) -> Record:
    files = {
        f"{name}.bin": {"bytes": array.nbytes, "sha256": file_checksum(draft / f"{name}.bin")}
        for name, array in content.arrays.items()
    }
    return {"text_sha256": text_checksum(block.text), "counts": dict(content.counts), "files": files}


def text_checksum(text: bytes) -> str:
    """SHA-256 of a block's text."""
    return hashlib.sha256(text).hexdigest()
