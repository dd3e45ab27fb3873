"""Hard negatives: for each pair of a file, texts of a corpus that are near its first text and are not its second.

The corpus is kept beside the output while a run lasts: vectors in a .npy file, texts in another. A block of pairs is
compared with all vectors, block by block, so that memory grows by 16 bytes with each pair and by 32 with each text. A
run that is killed resumes at its block.
"""

import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.bundled import embedding_model
from bertkit.data.examples import TextExample
from bertkit.data.tables import Columns, Row
from bertkit.engine.embed import embed_blocks
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.model.pooling import DOCUMENT, QUERY, EmbedSettings
from bertkit.predict.bert import Bert
from bertkit.predict.files.embed import VectorSettings, embed_file
from bertkit.predict.files.outputs import check_ending, json_text
from bertkit.predict.files.pipeline import Computed, Job, Output, RunOptions, describe, run_file
from bertkit.predict.files.resume import ROWS_STREAM, check_outputs, part_folder, refuse_other_settings
from bertkit.predict.files.rows import FileSettings, Item, RowSource, open_source
from bertkit.predict.search import Found, open_vectors, search_blocks, vector_blocks
from bertkit.progress import ShowProgress, silent
from bertkit.settings import Count, Natural, Range, check_fields
from bertkit.tasks.read import data_checksum
from bertkit.tasks.table import TASKS

PAIRS = TASKS["regress"]  # the task whose files have two texts in a row
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class MineSettings:
    """Which texts are taken as negatives of a pair."""

    negatives: Count = 5  # at most, drawn from the ranks first to last
    first: Count = 10  # nearer texts often answer the query, too
    last: Count = 100
    margin: Annotated[float, Range(0, 1)] = 0.95  # share of the positive's cosine that a negative's may have at most
    seed: Natural = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.last - self.first + 1 < self.negatives:
            ranks = f"ranks {self.first} to {self.last} (--from, --to)"
            raise RequestError(f"{ranks} are fewer than --negatives {self.negatives}; take more ranks")


class DocumentVectors(VectorSettings):
    """Vectors of length 1, of texts after the folder's prompt for documents."""

    def of(self, bert: Bert) -> EmbedSettings:
        """The folder's settings with these changes."""
        return replace(super().of(bert).side(DOCUMENT), normalize=True)


@dataclass(frozen=True)
class Mined:
    """The result of `mine_file`."""

    pairs: int
    negatives: int
    fewer: int  # pairs with fewer negatives than asked for
    none: int  # pairs with no negative
    skipped: int
    model: str


def mine_file(
    model: Path | None,
    pairs: Path,
    corpus: Path,
    out: Path,
    settings: MineSettings,
    file: FileSettings,
    options: RunOptions,
    *,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> Mined:
    """Write each pair with its negatives to a .jsonl file: query, positive, negatives and their cosines."""
    source, corpus_source = _opened(pairs, corpus, out, file, resume=options.resume)
    say(source.note)
    model = embedding_model(model, dtype=options.hardware.dtype)
    bert = options.hardware.load(model)
    common = {**describe(bert, source, options), "corpus": data_checksum(corpus), "mining": str(settings)}
    folder = _corpus_folder(out, common, resume=options.resume)
    texts = CorpusTexts.of(corpus_source, folder)
    if len(texts) < settings.last:
        shutil.rmtree(folder)
        raise RequestError(f"{corpus} has {len(texts):,} texts, and --to {settings.last} asks for more; lower --to")
    vectors = folder / "vectors.npy"
    if not vectors.exists():
        resumed = replace(options, resume=part_folder(vectors).exists(), on_error="stop")
        embed_file(model, corpus, vectors, DocumentVectors(), FileSettings(), resumed, show=show)
    known = KnownPairs.of(open_source(PAIRS, pairs, file.columns, file.format))
    job = MineJob(model, options.hardware, options.skip, settings, vectors, texts, known)
    state = run_file(source, job, bert, Output("mining", out, common), options, show)
    shutil.rmtree(folder)
    return replace(_counted(out, settings.negatives), skipped=state.skipped, model=bert.name)


def _opened(pairs: Path, corpus: Path, out: Path, file: FileSettings, *, resume: bool) -> tuple[RowSource, RowSource]:
    """Both files, and nothing in the way of the output."""
    check_ending(out, (".jsonl",))
    check_outputs(out, {}, resume=resume)
    if str(pairs) == "-" or str(corpus) == "-":
        raise RequestError("pairs and corpus are read more than once, and standard input cannot be; name files")
    source = open_source(PAIRS, pairs, file.columns, file.format)
    if source.columns.pair is None:
        raise RequestError(f"{pairs}: a pair has two texts; name the second column with pair=...")
    return source, open_source(None, corpus, Columns())


def _corpus_folder(out: Path, common: Mapping[str, str], *, resume: bool) -> Path:
    """The folder for the corpus, made or, with `resume`, that of a run with the same settings."""
    folder = out.with_name(f"{out.name}.corpus")
    path = folder / "settings.json"
    if not resume and folder.exists():
        raise RequestError(f"{folder} is left from a run that was stopped; --resume goes on, or remove it")
    if path.exists():
        refuse_other_settings(folder, json.loads(path.read_text(encoding="utf-8")), common)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(json.dumps(common, indent=2) + "\n", encoding="utf-8")
    return folder


def hashed(texts: Iterable[str]) -> list[int]:
    """A number of 64 bits for each text: a billion texts have equal ones by chance with a probability of 3 %."""
    return [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts]


@dataclass(frozen=True)
class CorpusTexts:
    """The texts of a corpus in one file, and the rows of equal texts."""

    path: Path
    starts: NDArray[np.int64]  # texts + 1: bytes of the file before each
    hashes: Hashes  # of each text

    @classmethod
    def of(cls, source: RowSource, folder: Path) -> "CorpusTexts":
        """Copy the texts to a file in `folder`; they are read again when a run is resumed."""
        starts, hashes = array("q", [0]), array("Q")
        with whole_file(folder / "texts") as draft, draft.open("wb") as file:
            for row in source.table.rows:
                if row.fault:
                    raise RequestError(row.fault)
                text = source.make_example(row)
                starts.append(starts[-1] + file.write(text.encode()))
                hashes.extend(hashed([text]))
        return cls(folder / "texts", np.array(starts, dtype=np.int64), np.array(hashes, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, row: int) -> str:
        with self.path.open("rb") as file:
            file.seek(int(self.starts[row]))
            return file.read(int(self.starts[row + 1] - self.starts[row])).decode()

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.hashes, kind="stable")

    @cached_property
    def _sorted(self) -> Hashes:
        return self.hashes[self._order]

    def rows_of(self, hashes: Hashes) -> set[int]:
        """The rows whose texts have one of these hashes."""
        spans = zip(*(np.searchsorted(self._sorted, hashes, side) for side in ("left", "right")), strict=True)
        return {int(row) for start, stop in spans for row in self._order[start:stop]}


@dataclass(frozen=True)
class KnownPairs:
    """All pairs of a file as hashes, sorted by the first text: what no negative of a text may be."""

    first: Hashes
    second: Hashes

    @classmethod
    def of(cls, source: RowSource) -> "KnownPairs":
        """Read the pairs; rows that cannot be used have none."""
        first, second = array("Q"), array("Q")
        for row in source.table.rows:
            example = _example(source, row)
            if example is not None:
                first.extend(hashed([example.text]))
                second.extend(hashed([example.pair or ""]))
        hashes = np.array(first, dtype=np.uint64), np.array(second, dtype=np.uint64)
        order = np.argsort(hashes[0], kind="stable")
        return cls(hashes[0][order], hashes[1][order])

    def of_text(self, text: str) -> Hashes:
        """The hashes of a first text and of all its second ones."""
        own = np.array(hashed([text]), dtype=np.uint64)
        start, stop = (np.searchsorted(self.first, own[0], side) for side in ("left", "right"))
        return np.concatenate([own, self.second[start:stop]])


def _example(source: RowSource, row: Row) -> TextExample | None:
    try:
        example = None if row.fault else source.make_example(row)
    except RequestError:  # said, or skipped, when the row is mined
        return None
    assert example is None or isinstance(example, TextExample)
    return example


@dataclass(frozen=True)
class MineJob(Job):
    """Pairs to pairs with negatives."""

    settings: MineSettings
    vectors: Path
    texts: CorpusTexts
    known: KnownPairs

    @property
    def head(self) -> bytes:
        """JSONL has none."""
        return b""

    def kept_cells(self, row: Row) -> Mapping[str, Any]:
        """None."""
        return {}

    def finish(self, stream: Path, rows: int) -> Path:
        """JSONL is complete."""
        return stream

    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """A block of pairs, each as a line with its negatives."""
        pairs: list[TextExample] = [item.example for item in items]
        documents = DocumentVectors().of(bert)
        queries_QD = _embedded(bert, [pair.text for pair in pairs], replace(documents, prefix=_query_prompt(bert)))
        positives_QD = _embedded(bert, [pair.pair or "" for pair in pairs], documents)
        left_out = [self.texts.rows_of(self.known.of_text(pair.text)) for pair in pairs]
        blocks = vector_blocks(open_vectors(self.vectors, documents.width(bert.model.config.width)))
        count = self.settings.last + max(map(len, left_out), default=0)
        nearest = search_blocks(queries_QD, blocks, count) if pairs else []
        scores = (queries_QD * positives_QD).sum(axis=1).tolist()
        rows = (self._row(*parts) for parts in zip(pairs, scores, left_out, nearest, strict=True))
        return Computed({ROWS_STREAM: "".join(f"{json_text(row)}\n" for row in rows).encode()}, len(items))

    def _row(self, pair: TextExample, score: float, left_out: set[int], nearest: Sequence[Found]) -> dict[str, Any]:
        """The line of one pair; without a negative it has no such field, which `finetune vectors` reads as none."""
        chosen = self.chosen(pair, score, [found for found in nearest if found.index not in left_out])
        row = {"query": pair.text, "positive": pair.pair, "positive_score": round(score, 6)}
        if not chosen:
            return row
        scores = [round(found.score, 6) for found in chosen]
        return {**row, "negatives": [self.texts[found.index] for found in chosen], "negative_scores": scores}

    def chosen(self, pair: TextExample, score: float, ranked: Sequence[Found]) -> list[Found]:
        """The negatives, nearest first: drawn from the ranks, without equal texts and those over the margin."""
        highest = self.settings.margin * score if score > 0 else score
        within = [found for found in ranked[self.settings.first - 1 : self.settings.last] if found.score <= highest]
        distinct = list({int(self.texts.hashes[found.index]): found for found in reversed(within)}.values())[::-1]
        draw = np.random.default_rng([self.settings.seed, *hashed([pair.text, pair.pair or ""])])
        count = min(self.settings.negatives, len(distinct))
        return [distinct[n] for n in sorted(draw.choice(len(distinct), count, replace=False))] if count else []


def _query_prompt(bert: Bert) -> str:
    return bert.checkpoint.embed_settings().side(QUERY).prefix


def _embedded(bert: Bert, texts: Sequence[str], settings: EmbedSettings) -> np.ndarray:
    """float32 [texts, width]; texts over the model's limit are cut."""
    blocks = embed_blocks(bert.model, bert.tokenizer, texts, settings, bert.checkpoint.max_length, "truncate")
    return np.concatenate([np.zeros((0, settings.width(bert.model.config.width))), *(b.vectors for b in blocks)])


def _counted(out: Path, asked: int) -> Mined:
    with out.open(encoding="utf-8") as lines:
        counts = np.array([len(json.loads(line).get("negatives", ())) for line in lines], dtype=np.int64)
    fewer, none = int((counts < asked).sum()), int((counts == 0).sum())
    return Mined(len(counts), int(counts.sum()), fewer, none, 0, "")
