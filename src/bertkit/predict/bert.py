"""`bertkit.load()`: a model folder as an object for embeddings, predictions and a look inside."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch

from bertkit.checkpoint.hugging_face import LoadReport
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.engine.batches import Passage, known_segments, make_batch
from bertkit.engine.cpu import repack, use_onnx
from bertkit.engine.embed import Embedded, embed_blocks
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.encoder import Trace
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings, Layers
from bertkit.poolings import NoPooling, PoolingName
from bertkit.settings import pick
from bertkit.text.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Tokenizer
from bertkit.text_inputs import ChoicesCall, PairsCall, TextsCall, listed_texts, overloaded, refuse_unlisted

if TYPE_CHECKING:
    from bertkit.predict.answers import Answers
    from bertkit.predict.fill import Filled
    from bertkit.predict.fill_words import FilledTogether
    from bertkit.predict.onnx.export import Exported
    from bertkit.predict.quantize import Fidelity
    from bertkit.predict.questions import JudgedWord
    from bertkit.predict.search import Found, Searched, Stored, VectorBlock
    from bertkit.predict.target import TracedTarget
    from bertkit.predict.write import Writer
    from bertkit.tasks.answer import Answered
    from bertkit.tasks.choose import Chosen
    from bertkit.tasks.classify import Classified
    from bertkit.tasks.multilabel import Labeled
    from bertkit.tasks.rate_words import RatedWords
    from bertkit.tasks.regress import Rated
    from bertkit.tasks.tag import Tagged
    from bertkit.tasks.write import Written

    Classification = Classified | Labeled | Rated


@dataclass(frozen=True)
class TextTrace(Trace):
    """Every layer's tensors for one text, and its tokens."""

    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()  # of a decoder's trace: the tokens that `cross_weights` are over


class VectorOptions(TypedDict, total=False):
    """Keyword arguments of `Bert.embed` that do not change the type of its result."""

    layers: Layers | None
    normalize: bool | None
    too_long: TooLong


class WriteOptions(TypedDict, total=False):
    """Keyword arguments of `Bert.write` and `Bert.stream`."""

    tokens: int
    beams: int
    length_penalty: float
    temperature: float | None
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[str]


def load(
    path: Path | str | None = None,
    *,
    tokenizer: Path | str | None = None,
    quantize: str | None = None,
    backend: str | None = None,
) -> "Bert":
    """Load a model folder: Hugging Face's layout, sentence-transformers', or a Google checkpoint.

    Without a path, the bundled model; "sentences" is its variant for embeddings, unless a folder has that name.
    With quantize="int8" it computes in 8-bit integers on the CPU, if its embeddings stay what they are (`quantize`).
    With backend="onnx" single short texts are computed by ONNX Runtime, which is faster there (`use_onnx`).
    """
    if not isinstance(path, str | Path | None) or path == "":
        raise RequestError(f"a model is named by the path of its folder, not by {path!r}")
    use_backend = None if backend is None else pick(BACKENDS, backend, "backend")
    bert = Bert(load_checkpoint(path, tokenizer=tokenizer))
    bert = bert if quantize is None else bert.quantize(quantize)
    return bert if use_backend is None else use_backend(bert)


class Bert:
    """A loaded model. Everything is computed on the model's device (`to`)."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.fidelity: Fidelity | None = None  # of a quantized model: how near its embeddings are to float32

    @property
    def model(self) -> BertModel:
        """The torch module."""
        return self.checkpoint.model

    @property
    def report(self) -> LoadReport:
        """Which tensors of the folder were loaded, which were missing or unused."""
        return self.checkpoint.report

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        if self.checkpoint.tokenizer is None:
            raise RequestError("this folder holds no tokenizer; pass one: bertkit.load(path, tokenizer='vocab.txt')")
        return self.checkpoint.tokenizer

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, texts: str, *, pooling: PoolingName | NoPooling | None = None, **options: Unpack[VectorOptions]
    ) -> np.ndarray: ...
    @overload
    def embed(
        self, texts: Sequence[str], *, pooling: NoPooling, **options: Unpack[VectorOptions]
    ) -> list[np.ndarray]: ...
    @overload
    def embed(
        self, texts: Sequence[str], *, pooling: PoolingName | None = None, **options: Unpack[VectorOptions]
    ) -> np.ndarray: ...
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        too_long: TooLong = "truncate",
    ) -> np.ndarray | list[np.ndarray]:
        """Embeddings: float32 [texts, width], or [width] for one text; with pooling='none' a list of [tokens, width].

        pooling: a name of `bertkit.poolings`, or none. layers: any of them, concatenated; -1 is the last, 0 the
        embedding layer. Texts over the limit are truncated with a warning, read through windows, or refused.
        None is the folder's setting, which a sentence-transformers folder has; else the mean over the last layer.
        """
        settings = self.embed_settings(pooling=pooling, layers=layers, normalize=normalize)
        blocks = list(self.embed_blocks(_listed(texts), settings, too_long))
        _warn_of_long_texts([block.lengths for block in blocks if block.lengths.long])
        if isinstance(texts, str):
            vector: np.ndarray = blocks[0].vectors[0]
            return vector
        if settings.per_token:
            return [vector for block in blocks for vector in block.vectors]
        if not blocks:
            return np.zeros((0, self.width(settings)), dtype=np.float32)
        return np.concatenate([block.vectors for block in blocks]) if len(blocks) > 1 else np.asarray(blocks[0].vectors)

    def embed_blocks(
        self,
        texts: Iterable[str],
        settings: EmbedSettings,
        too_long: TooLong = "truncate",
        where: Callable[[int], str] = "text number {}".format,
    ) -> Iterator[Embedded]:
        """Embeddings of any number of texts in constant memory: blocks of texts with their vectors."""
        limit = self.checkpoint.max_length
        return embed_blocks(self.model, self.tokenizer, texts, settings, limit, too_long, where)

    def embed_settings(
        self, *, pooling: str | None = None, layers: Layers | None = None, normalize: bool | None = None
    ) -> EmbedSettings:
        """The folder's settings with these changes."""
        base = self.checkpoint.embed or EmbedSettings()
        return base.changed(pooling=pooling, layers=layers, normalize=normalize)

    def similarity(self, one: Sequence[str], other: Sequence[str] | None = None) -> np.ndarray:
        """float32 [one, other]: cosines between the texts' embeddings; with one list, between its own texts."""
        left = self.embed(_listed(one, single=False), normalize=True)
        right = left if other is None else self.embed(_listed(other, single=False), normalize=True)
        cosines: np.ndarray = left @ right.T
        return cosines

    @overload
    def search(  # type: ignore[overload-overlap]
        self, query: str, texts: "Searched | None" = None, k: int = 10, *, vectors: "Stored | None" = None
    ) -> "list[Found]": ...
    @overload
    def search(
        self, query: Sequence[str], texts: "Searched | None" = None, k: int = 10, *, vectors: "Stored | None" = None
    ) -> "list[list[Found]]": ...
    def search(
        self,
        query: str | Sequence[str],
        texts: "Searched | None" = None,
        k: int = 10,
        *,
        vectors: "Stored | None" = None,
    ) -> "list[Found] | list[list[Found]]":
        """The `k` texts nearest to the query by cosine, exactly: a Found each, best first, equal ones in input order.

        `texts` is any iterable of str, read in blocks, or an array or Path of vectors. `vectors`: those of the texts,
        which are then not computed; an array, or a .npy file as `bertkit embed` writes it. For several queries a list.
        """
        from bertkit.predict.search import check_count, search_blocks, searched_blocks

        count, settings = check_count(k), self.embed_settings().one_vector()
        blocks = searched_blocks(texts, vectors, self.width(settings), partial(self._vector_blocks, settings))
        nearest = search_blocks(self.embed(_listed(query)), blocks, count)
        return nearest[0] if isinstance(query, str) else nearest

    def _vector_blocks(self, settings: EmbedSettings, texts: Iterable[str]) -> "Iterator[VectorBlock]":
        from bertkit.predict.search import VectorBlock

        reports = []
        for block in self.embed_blocks(texts, settings):
            reports += [block.lengths] if block.lengths.long else []
            yield VectorBlock(np.asarray(block.vectors), block.texts)
        _warn_of_long_texts(reports)

    @overload
    def fill(
        self, text: str, *, top: int = 5, together: Literal[True], too_long: TooLong = "window"
    ) -> "list[FilledTogether]": ...

    @overload
    def fill(
        self,
        text: str,
        *,
        top: int = 5,
        candidates: Sequence[str] | None = None,
        pieces: int = 1,
        together: Literal[False] = False,
        too_long: TooLong = "window",
    ) -> "list[Filled]": ...

    def fill(
        self,
        text: str,
        *,
        top: int = 5,
        candidates: Sequence[str] | None = None,
        pieces: int = 1,
        together: bool = False,
        too_long: TooLong = "window",
    ) -> "list[Filled] | list[FilledTogether]":
        """The best words for each [MASK] of the text, with probabilities.

        `candidates`: scores these words only, of any number of pieces. `pieces`: whole words of up to so many pieces.
        `together`: the best words for all blanks jointly. `fill_words.py` says how several pieces are scored.
        """
        if [candidates is not None, pieces != 1, together].count(True) > 1:
            raise RequestError("candidates, pieces and together are three ways to fill; choose one of them")
        from bertkit.predict.fill import fill
        from bertkit.predict.fill_words import ChainFiller

        limit = self.checkpoint.max_length
        if candidates is None and pieces == 1 and not together:
            return fill(self.model, self.tokenizer, text, top=top, limit=limit, too_long=too_long)
        chains = ChainFiller(self.model, self.tokenizer, limit, too_long)
        if candidates is not None:
            return chains.candidates(text, candidates)
        return chains.together(text, top) if together else chains.whole_words(text, top, pieces)

    @overload
    def follows(self, first: str, second: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def follows(self, first: Sequence[str], second: Sequence[str]) -> list[float]: ...
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """The probability that the second text follows the first, by the next-sentence or sentence-order head."""
        found: float | list[float] = self._question("follows", first, first=_listed(first), second=_listed(second))
        return found

    @overload
    def replaced(self, text: str) -> "list[JudgedWord]": ...  # type: ignore[overload-overlap]
    @overload
    def replaced(self, text: Sequence[str]) -> "list[list[JudgedWord]]": ...
    def replaced(self, text: str | Sequence[str]) -> "list[JudgedWord] | list[list[JudgedWord]]":
        """Each word with the probability that it was replaced, by ELECTRA's discriminator; for several texts, lists."""
        found: list[JudgedWord] | list[list[JudgedWord]] = self._question("replaced", text, text=_listed(text))
        return found

    def _question(self, name: str, argument: object, **inputs: list[str]) -> Any:
        """The answers of a head of pre-training: one where the caller's argument was a str, else a list."""
        from bertkit.predict.questions import ask

        found = ask(name, self.model, self.tokenizer, self.checkpoint.max_length, **inputs)
        return found[0] if isinstance(argument, str) else found

    @cached_property
    def answers(self) -> "Answers":
        """The model with the task that it was fine-tuned for."""
        from bertkit.predict.answers import Answers  # imports scipy, which only fine-tuned models need

        return Answers.of(self.checkpoint)

    @overloaded(PairsCall["Classification", "list[Classification]"])
    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> "Classification | list[Classification]":
        """A Classified, Labeled or Rated, as the model was fine-tuned, for a text or pair; for several, a list."""
        return self._ask("classify", texts, texts=_listed(texts), pairs=None if pairs is None else _listed(pairs))

    @overloaded(TextsCall["Tagged", "list[Tagged]"])
    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> "Tagged | list[Tagged]":
        """A Tagged, with spans in characters, for a text; for several, which may be lists of words, a list."""
        return self._ask("tag", texts, texts=_sentences(texts))

    @overload
    def answer(self, question: str, passage: str) -> "Answered": ...  # type: ignore[overload-overlap]
    @overload
    def answer(self, question: Sequence[str], passage: Sequence[str]) -> "list[Answered]": ...
    def answer(self, question: str | Sequence[str], passage: str | Sequence[str]) -> "Answered | list[Answered]":
        """An Answered: where the passage answers the question, in characters, or that it does not; or a list."""
        return self._ask("answer", question, question=_listed(question), passage=_listed(passage))

    @overloaded(ChoicesCall["Chosen", "list[Chosen]"])
    def choose(
        self, question: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> "Chosen | list[Chosen]":
        """A Chosen: which of its choices fits a question; for several questions, a list."""
        lists = [choices] if isinstance(question, str) else choices
        return self._ask("choose", question, question=_listed(question), choices=lists)

    @overloaded(TextsCall["RatedWords", "list[RatedWords]"])
    def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> "RatedWords | list[RatedWords]":
        """A RatedWords, a number for each word, for a text; for several, which may be lists of words, a list."""
        return self._ask("rate-words", texts, texts=_sentences(texts))

    def _ask(self, route: str, argument: object, **inputs: Any) -> Any | list[Any]:
        """The model's predictions: one where the caller's argument was a str, else a list."""
        predictions = self.answers.ask(route, **inputs)
        return predictions[0] if isinstance(argument, str) else predictions

    def trace(self, text: str, pair: str | None = None) -> TextTrace:
        """Every layer's queries, keys, values, weights and output for one text or pair.

        Of an encoder-decoder: the encoder's for a text; with a target as `pair` the decoder's, with `cross_weights`.
        """
        if pair is not None and self.model.decoder is not None:
            traced = self.trace_target(text, pair)
            found, tokens = traced.trace, tuple(self.tokenizer.tokens(traced.target.ids))
            source = tuple(self.tokenizer.tokens(traced.source.ids))
            return TextTrace(found.embeddings, found.layers, found.output, tokens, source)
        encoding = self.tokenizer.encode(text, pair)
        report_lengths([len(encoding.ids)], self.checkpoint.max_length, "refuse")
        with torch.inference_mode():
            passage = Passage(encoding.ids, self.known_segments(encoding.segments))
            trace = self.model.encoder.trace(make_batch([passage], self.model.device))
        tokens = tuple(self.tokenizer.tokens(encoding.ids))
        return TextTrace(trace.embeddings, trace.layers, trace.output, tokens)

    def trace_target(self, source: str, target: str) -> "TracedTarget":
        """The decoder's trace while an encoder-decoder writes the target of a source, with the tokens of both."""
        from bertkit.predict.target import trace_target

        limit = self.checkpoint.max_length
        return trace_target(self.model, self.tokenizer, self.writer.start_id, limit, source, target)

    @overload
    def write(self, texts: str, **settings: Unpack[WriteOptions]) -> "Written": ...  # type: ignore[overload-overlap]
    @overload
    def write(self, texts: Sequence[str], **settings: Unpack[WriteOptions]) -> "list[Written]": ...
    def write(self, texts: str | Sequence[str], **settings: Unpack[WriteOptions]) -> "Written | list[Written]":
        """A Written: a prompt continued by a decoder, or what an encoder-decoder writes for a source; or a list.

        Greedy unless `beams`, or `temperature`, `top_k` or `top_p` are given, which sample (`seed`). It ends with the
        model's end token, one of the texts in `stop`, or after `tokens` new tokens.
        """
        written = self.writer.write(_listed(texts), self.writer.settings(settings))
        return written[0] if isinstance(texts, str) else written

    def stream(self, text: str, **settings: Unpack[WriteOptions]) -> Iterator[str]:
        """The same for one text, piece by piece while it is generated."""
        return self.writer.stream(text, self.writer.settings(settings))

    def perplexity(self, texts: Sequence[str]) -> list[float]:
        """How surprised a decoder is by each text: exp of its mean loss per token; lower is better."""
        return self.writer.perplexity(_listed(texts, single=False))

    @cached_property
    def writer(self) -> "Writer":
        """Generates text, where the model can."""
        from bertkit.predict.write import Writer

        return Writer(self.checkpoint)

    def to(self, device: str | torch.device, dtype: str | None = None) -> "Bert":
        """Move the model to a device, and change its dtype: float32, bfloat16, float16 or int8. Returns itself.

        Half precision is for GPUs; embeddings then equal float32's to about three digits. int8 is for CPUs, and
        refused if it would change the embeddings (`quantize`).
        """
        torch_dtype = None if dtype is None else pick(DTYPES, dtype, "dtype")
        if dtype == "int8" and torch.device(device).type != "cpu":
            raise RequestError(f"int8 is for CPUs; on '{device}' choose bfloat16, float16 or float32")
        if dtype is not None and self.fidelity is not None:
            from bertkit.predict.quantize import dequantize

            dequantize(self.model)
            self.fidelity = None
        self.model.to(device, torch_dtype)
        return self.quantize() if dtype == "int8" else self

    @property
    def dtype(self) -> str:
        """The dtype that the layers compute in: float32, bfloat16, float16 or int8."""
        from bertkit.predict.quantize import int8_maps

        encoder = self.model.encoder
        return "int8" if int8_maps(encoder) else str(encoder.dtype).removeprefix("torch.")

    def quantize(self, how: str = "int8", samples: Sequence[str] = ()) -> "Bert":
        """Compute linear layers in 8-bit integers on the CPU; refused if embeddings would change. Returns itself.

        `samples`: texts to measure that on, at best your own; by default sentences and random tokens. `fidelity` then
        says how near the embeddings are. A saved model stays in float32.
        """
        from bertkit.predict.quantize import quantize

        texts, pooling = _listed(samples, single=False), self.embed_settings().pooling
        self.fidelity = quantize(self.model, how, self.checkpoint.tokenizer, texts, pooling)
        return self

    def use_onnx(self) -> "Bert":
        """Compute single texts of up to 64 tokens by ONNX Runtime, in float32 on the CPU. Returns itself.

        It keeps its own copy of the weights, and needs the packages of the extra `onnx`. Torch computes all others.
        """
        use_onnx(self.model.eval().encoder)
        return self

    def refresh(self) -> "Bert":
        """Compute with the weights as they are now, after edits that could not be detected. Returns itself.

        Needed only for small edits through `weight.data` or NumPy, such as of single numbers: others are detected.
        Packed weights, ONNX Runtime's copy and int8 weights are made again; int8 is refused as in `quantize`.
        """
        repack(self.model.encoder)
        return self if self.fidelity is None else self.to("cpu", "int8")

    def save(self, path: Path | str) -> None:
        """Write the model as a folder that bertkit and transformers load."""
        save_checkpoint(self.checkpoint, path)

    def export_onnx(self, path: Path | str, *, answers: Sequence[str] | None = None) -> "Exported":
        """Write the model as an ONNX file in a new folder, with its tokenizer beside it (`predict/onnx/export.py`)."""
        from bertkit.predict.onnx.export import export_onnx  # needs the packages of the extra `onnx`

        return export_onnx(self.checkpoint, path, answers=answers)

    def __repr__(self) -> str:
        config = self.model.config
        heads = ", ".join(self.model.heads) or "none"
        return (
            f"Bert({config.family}, {config.depth} layers of {config.width}, {config.vocab_size} words, heads: {heads})"
        )

    def known_segments(self, segments: Sequence[int]) -> Sequence[int]:
        """Segment ids that the model has: all 0 for a family without a second segment."""
        return known_segments(self.model.config, segments)

    def width(self, settings: EmbedSettings) -> int:
        """The width of an embedding."""
        return settings.width(self.model.config.width)


# The dtype of the weights; int8 weights are made from float32 ones, and kept beside them.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}
BACKENDS: dict[str, Callable[[Bert], Bert]] = {"onnx": Bert.use_onnx}


def _listed(texts: str | Sequence[str], *, single: bool = True) -> list[str]:
    """Texts as a list; a single text is a list of one where `single` allows it."""
    if isinstance(texts, str) and not single:
        raise RequestError("a list of texts belongs here; one text would be compared letter by letter")
    return listed_texts(texts)


def _sentences(texts: str | Sequence[str | Sequence[str]]) -> list[str | Sequence[str]]:
    """Texts, or lists of words, as a list."""
    refuse_unlisted(texts)
    if not isinstance(texts, Iterable):
        raise RequestError(f"texts must be a str or a list of them, not {type(texts).__name__}")
    return [texts] if isinstance(texts, str) else list(texts)


def _warn_of_long_texts(reports: Sequence[LengthReport]) -> None:
    """Warn of texts over the limit, if there were any."""
    if reports:
        warnings.warn(str(reduce(LengthReport.joined, reports)), BertkitWarning, stacklevel=3)
