"""`bertkit.load()`: a model folder as an object for embeddings, predictions and a look inside."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.calls import (
    BlanksCall,
    ChoicesCall,
    ClassifyCall,
    EmbedCall,
    FollowsCall,
    GivenLabels,
    Layers,
    PassageCall,
    RankCall,
    SidedCall,
    TextCall,
    TextsCall,
    TooLong,
    WriteCall,
    WriteOptions,
    overloaded,
)
from bertkit.checkpoint.bundled import SENTENCES, embedding_model
from bertkit.checkpoint.hugging_face import LoadReport
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.engine.cpu import onnx_of, repack, use_onnx
from bertkit.errors import RequestError
from bertkit.model.model import BertModel, parameter_count
from bertkit.predict.vectors import embed_texts, search_texts
from bertkit.settings import pick
from bertkit.text.tokenizer import Tokenizer
from bertkit.text_inputs import listed_texts, refuse_unlisted

if TYPE_CHECKING:
    from bertkit.predict.answers import Answers
    from bertkit.predict.fill import Filled
    from bertkit.predict.fill_words import FilledTogether
    from bertkit.predict.onnx.export import Exported
    from bertkit.predict.quantize import Fidelity
    from bertkit.predict.questions import JudgedWord
    from bertkit.predict.retrieval import SparseVector
    from bertkit.predict.search import Found
    from bertkit.predict.trace import TextTrace
    from bertkit.predict.write import Writer
    from bertkit.predict.zero_shot import ZeroShot
    from bertkit.report.page import PageResult
    from bertkit.report.why import Why
    from bertkit.tasks.answer import Answered
    from bertkit.tasks.choose import Chosen
    from bertkit.tasks.classify import Classified
    from bertkit.tasks.multilabel import Labeled
    from bertkit.tasks.rank import Ranked
    from bertkit.tasks.rate_words import RatedWords
    from bertkit.tasks.regress import Rated
    from bertkit.tasks.shared.label_set import LabelSet
    from bertkit.tasks.tag import Tagged
    from bertkit.tasks.write import Written

    Classification = Classified | Labeled | Rated

# Attributes that other parts of bertkit use; not in the list that an editor or `dir` shows.
PLUMBING = {"answers", "checkpoint", "writer", "zero_shot"}
# Views, which are defined on a Bert and so imported by name: method -> module with a function of that name.
VIEWS = {"look": "bertkit.inside.look.look", "why": "bertkit.inside.attribution.attribution"}


def load(
    path: Path | str | None = None,
    *,
    tokenizer: Path | str | None = None,
    device: str | torch.device | None = None,
    quantize: str | None = None,
    backend: str | None = None,
    base: Path | str | None = None,
) -> "Bert":
    """Load a model folder: Hugging Face's layout, sentence-transformers', a Google checkpoint, or PEFT's LoRA adapter.

    Without a path, the bundled model, whose variant "sentences" makes the embeddings (`Bert.embedder`).
    With quantize="int8" it computes in 8-bit integers on the CPU, if its embeddings stay what they are (`quantize`).
    With backend="onnx" single short texts are computed by ONNX Runtime, which is faster there (`use_onnx`).
    An adapter is merged into its trunk: `base`, or the one that it names.
    """
    if not isinstance(path, str | Path | None) or path == "":
        raise RequestError(f"a model is named by the path of its folder, not by {path!r}")
    use_backend = None if backend is None else pick(BACKENDS, backend, "backend")
    variant = embedding_model() if path is None and tokenizer is None else None
    bert = Bert(load_checkpoint(path, tokenizer=tokenizer, base=base), variant=variant)
    bert = bert if device is None else bert.to(device)
    bert = bert if quantize is None else bert.quantize(quantize)
    return bert if use_backend is None else use_backend(bert)


class Bert:
    """A loaded model. Everything is computed on the model's device (`to`)."""

    def __init__(self, checkpoint: Checkpoint, *, variant: Path | None = None) -> None:
        self.checkpoint = checkpoint
        self.fidelity: Fidelity | None = None  # of a quantized model: how near its embeddings are to float32
        self._variant = variant  # the model for embeddings, if it is another one
        self._embedder: Bert | None = None
        self._version = self._weight_version()

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
        return self.checkpoint.required_tokenizer

    @overloaded(EmbedCall[NDArray[np.float32], list[NDArray[np.float32]]])
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        too_long: TooLong = "truncate",
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Embeddings: float32 [texts, width], or [width] for one text; with pooling='none' a list of [tokens, width].

        pooling: a name of `bertkit.poolings`, or none. layers: any of them, concatenated; -1 is the last, 0 the
        embedding layer. Texts over the limit are truncated with a warning, read through windows, or refused.
        dimensions: so many leading numbers are kept, at length 1 again unless normalize=False. prompt_name: the prompt
        of the folder that is put before each text, such as query or document.
        None is the setting of the folder of `embedder`, else the mean over the last layer. Where pooling or layers are
        given, the vectors are those of this model itself.
        """
        source = (self if pooling is not None or layers is not None else self.embedder).checkpoint
        how: dict[str, Any] = {"pooling": pooling, "layers": layers, "normalize": normalize, "dimensions": dimensions}
        settings = source.embed_settings(**how, prompt_name=prompt_name)
        return embed_texts(source, texts, settings, too_long)

    @overloaded(SidedCall["SparseVector", "list[SparseVector]"])
    def sparse(self, texts: str | Sequence[str], *, query: bool = False) -> "SparseVector | list[SparseVector]":
        """A SparseVector (SPLADE) for a text: weights of word pieces; for several, a list. `query`: texts are queries.

        Only of models that were trained for it, such as folders of sentence-transformers' SparseEncoder.
        """
        from bertkit.predict.retrieval import sparse_texts

        return sparse_texts(self.checkpoint, texts, query=query)

    @overloaded(SidedCall[NDArray[np.float32], list[NDArray[np.float32]]])
    def token_vectors(
        self, texts: str | Sequence[str], *, query: bool = False
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """The vectors by which late interaction (ColBERT) compares: float32 [tokens, width]; for several texts a list.

        Only of models that were trained for it, such as folders of sentence-transformers' MultiVectorEncoder.
        """
        from bertkit.predict.retrieval import token_vectors

        return token_vectors(self.checkpoint, texts, query=query)

    @property
    def embedder(self) -> "Bert":
        """The model that makes the embeddings of `embed`, `similarity` and `search`; see its `name`.

        It is this one. Only where `load` was called without a path, it is the bundled variant for sentences, which the
        first call loads; it is not used in int8, nor once weights of this model have been changed.
        """
        if self._variant is None or self.fidelity is not None or self._weight_version() > self._version:
            return self
        if self._embedder is None:
            self._embedder = load(self._variant)
        if self._embedder._placement != self._placement:
            self._embedder.to(self.device, self.dtype)
        if onnx_of(self.model.encoder) is not None and onnx_of(self._embedder.model.encoder) is None:
            self._embedder.use_onnx()
        return self._embedder

    @property
    def _placement(self) -> tuple[torch.device, torch.dtype]:
        return self.model.device, self.model.encoder.dtype

    def _weight_version(self) -> int:
        """Grows with every change of a weight, such as by an optimizer; only for a model with a variant."""
        return sum(weight._version for weight in self.model.parameters()) if self._variant is not None else 0

    def similarity(self, one: Sequence[str], other: Sequence[str] | None = None) -> NDArray[np.float32]:
        """float32 [one, other]: cosines between the texts' embeddings; with one list, between its own texts."""
        left = self.embed(_listed(one, single=False), normalize=True)
        right = left if other is None else self.embed(_listed(other, single=False), normalize=True)
        cosines: NDArray[np.float32] = left @ right.T
        return cosines

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        texts: "Iterable[str] | np.ndarray | Path | None" = None,
        k: int = 10,
        *,
        vectors: "np.ndarray | Path | str | None" = None,
    ) -> "list[Found]": ...
    @overload
    def search(
        self,
        query: Sequence[str],
        texts: "Iterable[str] | np.ndarray | Path | None" = None,
        k: int = 10,
        *,
        vectors: "np.ndarray | Path | str | None" = None,
    ) -> "list[list[Found]]": ...
    def search(
        self,
        query: str | Sequence[str],
        texts: "Iterable[str] | np.ndarray | Path | None" = None,
        k: int = 10,
        *,
        vectors: "np.ndarray | Path | str | None" = None,
    ) -> "list[Found] | list[list[Found]]":
        """The `k` texts nearest to the query by cosine, exactly: a Found each, best first, equal ones in input order.

        `texts` is any iterable of str, read in blocks, or an array or Path of vectors. `vectors`: those of the texts,
        which are then not computed again at every call; an array, or a .npy file as `bertkit embed` or
        np.save(file, bert.embed(texts)) writes it. For several queries a list.
        A folder's prompts for queries and for documents are put before them.
        """
        nearest = search_texts(self.embedder.checkpoint, query, texts, k, vectors)
        return nearest[0] if isinstance(query, str) else nearest

    @overloaded(BlanksCall["Filled", "FilledTogether"])
    def fill(
        self,
        text: str | Sequence[str],
        *,
        top: int = 5,
        candidates: Sequence[str] | None = None,
        pieces: int = 1,
        together: bool = False,
        whole_words: bool = True,
        too_long: TooLong = "window",
    ) -> "list[Filled] | list[FilledTogether] | list[list[Filled] | list[FilledTogether]]":
        """The best words for each [MASK] of the text, with probabilities; for several texts, a list of such lists.

        `candidates`: scores these words only, of any number of pieces. `pieces`: whole words of up to so many pieces.
        `together`: the best words for all blanks jointly. `fill_words.py` says how several pieces are scored.
        `whole_words=False`: every token is a candidate, such as ##s or [UNK], also where a blank stands alone.
        """
        from bertkit.predict.fill_words import BlankSettings, fill_text

        how = BlankSettings(
            top=top,
            candidates=candidates,
            pieces=pieces,
            together=together,
            whole_words=whole_words,
            too_long=too_long,
        )
        filled = [fill_text(self.checkpoint, each, how) for each in _listed(text)]
        return filled[0] if isinstance(text, str) else filled

    @overloaded(FollowsCall[float, list[float]])
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """The probability that the second text follows the first, by the next-sentence or sentence-order head."""
        return self._question("follows", first, first=_listed(first), second=_listed(second))

    @overloaded(TextCall["list[JudgedWord]", "list[list[JudgedWord]]"])
    def replaced(self, text: str | Sequence[str]) -> "list[JudgedWord] | list[list[JudgedWord]]":
        """Each word with the probability that it was replaced, by ELECTRA's discriminator; for several texts, lists."""
        return self._question("replaced", text, text=_listed(text))

    def _question(self, name: str, argument: object, **inputs: list[str]) -> Any | list[Any]:
        """The answers of a head of pre-training: one where the caller's argument was a str, else a list."""
        from bertkit.predict.questions import ask

        found = ask(name, self.model, self.tokenizer, self.checkpoint.max_length, **inputs)
        return found[0] if isinstance(argument, str) else found

    @cached_property
    def answers(self) -> "Answers":
        """The model with the task that it was fine-tuned for."""
        from bertkit.predict.answers import Answers  # imports scipy, which only fine-tuned models need

        return Answers.of(self.checkpoint)

    @overloaded(ClassifyCall["Classification", "list[Classification]", "Classified", "list[Classified]"])
    def classify(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        labels: GivenLabels | None = None,
        multi_label: bool = False,
        template: str | None = None,
    ) -> "Classification | list[Classification]":
        """A Classified, Labeled or Rated, as the model was fine-tuned, for a text or pair; for several, a list.

        With `labels`, names or descriptions by name, a Classified by these, on which it was not trained: by an
        entailment head or by vectors of sentences. `multi_label`: each label is judged by itself. `template`: the
        sentence around a name, with {} for it.
        """
        from bertkit.tasks.shared.label_set import LabelSet

        given = LabelSet.asked(labels, template, multi_label=multi_label)
        inputs = {"texts": _listed(texts), "pairs": None if pairs is None else _listed(pairs)}
        predictions: list[Classification] = label_answers(self, given).ask("classify", **inputs)
        return predictions[0] if isinstance(texts, str) else predictions

    @cached_property
    def zero_shot(self) -> "ZeroShot":
        """What classifies by labels that come with a call."""
        from bertkit.predict.zero_shot import ZeroShot

        return ZeroShot(self.checkpoint)

    @overloaded(TextsCall["Tagged", "list[Tagged]"])
    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> "Tagged | list[Tagged]":
        """A Tagged, with spans in characters, for a text; for several, which may be lists of words, a list."""
        return self._ask("tag", texts, texts=_sentences(texts))

    @overloaded(PassageCall["Answered", "list[Answered]"])
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

    @cached_property
    def _ranking(self) -> "Answers":
        """As `answers`, also of a folder that does not say whether its one number rates or ranks."""
        from bertkit.predict.answers import Answers

        return self.answers if self.answers.task.row.ranks else Answers.of(self.checkpoint, "rank")

    @overloaded(RankCall["list[Ranked]", "list[list[Ranked]]"])
    def rank(
        self, query: str | Sequence[str], texts: Sequence[str] | Sequence[Sequence[str]], top: int | None = None
    ) -> "list[Ranked] | list[list[Ranked]]":
        """The texts by how well they answer the query, a Ranked each, best first; for several queries, a list.

        `top`: only so many; all are scored.
        """
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise RequestError(f"top={top!r} must be a whole number from 1: how many texts to give, or None for all")
        lists = [texts] if isinstance(query, str) else texts
        rankings = self._ranking.ask("rank", query=_listed(query), texts=lists)
        cut = rankings if top is None else [ranking[:top] for ranking in rankings]
        return cut[0] if isinstance(query, str) else cut

    @overloaded(TextsCall["RatedWords", "list[RatedWords]"])
    def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> "RatedWords | list[RatedWords]":
        """A RatedWords, a number for each word, for a text; for several, which may be lists of words, a list."""
        return self._ask("rate-words", texts, texts=_sentences(texts))

    def _ask(self, route: str, argument: object, **inputs: Any) -> Any | list[Any]:
        """The model's predictions: one where the caller's argument was a str, else a list."""
        predictions = self.answers.ask(route, **inputs)
        return predictions[0] if isinstance(argument, str) else predictions

    def trace(self, text: str, pair: str | None = None) -> "TextTrace":
        """Every layer's queries, keys, values, weights and output for one text or pair.

        Of an encoder-decoder: the encoder's for a text; with a target as `pair` the decoder's, with `cross_weights`.
        """
        from bertkit.predict.trace import trace_text

        return trace_text(self.checkpoint, text, pair)

    def look(self, text: str, pair: str | None = None) -> "PageResult":
        """A page on what every layer computes for a text or pair (`bertkit.look`); a notebook shows it."""
        page: PageResult = self._view("look")(text, pair)
        return page

    def why(self, text: str, pair: str | None = None, *, target: str | None = None, word: str | None = None) -> "Why":
        """How much each word of a text or pair adds to the prediction (`bertkit.why`); a notebook shows it."""
        shares: Why = self._view("why")(text, pair, target=target, word=word)
        return shares

    def _view(self, name: str) -> Callable[..., Any]:
        return partial(getattr(import_module(VIEWS[name]), name), self)

    @overloaded(WriteCall["Written", "list[Written]"])
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
        if dtype == "int8" and not str(device).startswith("cpu"):
            raise RequestError(f"int8 is for CPUs; on '{device}' choose bfloat16, float16 or float32")
        if dtype is not None and self.fidelity is not None:
            from bertkit.predict.quantize import dequantize

            dequantize(self.model)
            self.fidelity = None
        changed = self._weight_version() > self._version
        self._move(device, torch_dtype)
        self._version = -1 if changed else self._weight_version()
        return self.quantize() if dtype == "int8" else self

    def _move(self, device: str | torch.device, dtype: torch.dtype | None) -> None:
        before = self.device
        try:
            self.model.to(device, dtype)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA, no such GPU, no memory left there
            self.model.to(before)  # what was moved before the error
            reason = str(error).splitlines()[0]
            raise RequestError(f"the model cannot be put on '{device}': {reason}; choose another, or 'cpu'") from error

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.device

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

        texts, pooling = _listed(samples, single=False), self.checkpoint.embed_settings().pooling
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
        self._version = -1  # the weights are not those of the variant's model any more
        return self if self.fidelity is None else self.to("cpu", "int8")

    def save(self, path: Path | str) -> None:
        """Write the model as a folder that bertkit and transformers load."""
        save_checkpoint(self.checkpoint, path)

    def export_onnx(self, path: Path | str, *, answers: Sequence[str] | None = None) -> "Exported":
        """Write the model as an ONNX file in a new folder, with its tokenizer beside it (`predict/onnx/export.py`)."""
        from bertkit.predict.onnx.export import export_onnx  # needs the packages of the extra `onnx`

        return export_onnx(self.checkpoint, path, answers=answers)

    @property
    def path(self) -> Path | None:
        """The folder that it was loaded from; None for a model that was made in Python."""
        return self.checkpoint.folder

    @property
    def name(self) -> str:
        """Its folder's name, or its run's; "bundled" and "sentences" are the models of the package."""
        return self.checkpoint.name or "unsaved"

    def __repr__(self) -> str:
        config, millions = self.model.config, parameter_count(self.model) / 1e6
        shape = f"{config.family}, {config.depth} layers of {config.width}, {millions:.1f} million parameters"
        heads = f"heads: {', '.join(self.model.heads) or 'none'}"
        notes = [f"embeddings by '{SENTENCES}'"] if self._variant is not None else []
        notes += [str(self.path)] if self.path is not None else []
        return f"Bert('{self.name}', {', '.join([shape, heads, f'{self.dtype} on {self.device}', *notes])})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in PLUMBING]

    if not TYPE_CHECKING:  # type checkers would take any other name for granted

        def __getattr__(self, name: str) -> Callable[..., Any]:
            from bertkit.predict.moved import MOVED, moved_method

            if name not in MOVED:
                raise AttributeError(f"'Bert' has no attribute '{name}'", name=name, obj=self)
            return moved_method(self.checkpoint, name)


# The dtype of the weights; int8 weights are made from float32 ones, and kept beside them.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}
BACKENDS: dict[str, Callable[[Bert], Bert]] = {"onnx": Bert.use_onnx}


def label_answers(bert: Bert, labels: "LabelSet | None") -> "Answers":
    """A model as a classifier with these labels, the bundled one by its embedder; None: those it was trained on."""
    if labels is None:
        return bert.answers
    source = bert if bert.zero_shot.way is not None else bert.embedder
    return source.zero_shot.answers(labels)


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
