"""The types of calls that give one result for a str and a list for several, of `Bert` and of the clients.

A method is written once and decorated, as with `overloaded(TextsCall[Tagged, list[Tagged]])`. Type checkers see the
overloads of the protocol, with the method's results in them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from bertkit.poolings import NoPooling, PoolingName

One = TypeVar("One", covariant=True)
Many = TypeVar("Many", covariant=True)
Word = TypeVar("Word")
Words = TypeVar("Words")
Given = TypeVar("Given", covariant=True)
ManyGiven = TypeVar("ManyGiven", covariant=True)
Call = TypeVar("Call")
Layers = Sequence[int] | int
TooLong = Literal["truncate", "window", "refuse"]
GivenLabels = Sequence[str] | Mapping[str, str]  # names of labels, or descriptions by name


def overloaded(call: Callable[..., Call]) -> Callable[[Callable[..., object]], Call]:
    """A decorator: type checkers see the overloads of the protocol `call`; at run time the method is unchanged."""

    def unchanged(method: Any) -> Any:
        return method

    return unchanged


class TextCall(Protocol[One, Many]):
    """A call with one text, or with several."""

    @overload
    def __call__(self, text: str) -> One: ...
    @overload
    def __call__(self, text: Sequence[str]) -> Many: ...


class TextsCall(Protocol[One, Many]):
    """A call with one text, or with several, each a text or a list of words."""

    @overload
    def __call__(self, texts: str) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str | Sequence[str]]) -> Many: ...


class SidedCall(Protocol[One, Many]):
    """A call with one text, or with several, which are documents or queries."""

    @overload
    def __call__(self, texts: str, *, query: bool = False) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], *, query: bool = False) -> Many: ...


class LabelOptions(TypedDict, total=False):
    """Keyword arguments of `classify` that go with `labels`."""

    multi_label: bool
    template: str | None


class ClassifyCall(Protocol[One, Many, Given, ManyGiven]):
    """A call with one text or pair of texts, or with several; `Given` and `ManyGiven` are by labels of the call."""

    @overload
    def __call__(self, texts: str, pairs: str | None = None, *, labels: None = None) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, labels: None = None) -> Many: ...
    @overload
    def __call__(self, texts: str, *, labels: GivenLabels, **options: Unpack[LabelOptions]) -> Given: ...
    @overload
    def __call__(self, texts: Sequence[str], *, labels: GivenLabels, **options: Unpack[LabelOptions]) -> ManyGiven: ...


class FollowsCall(Protocol[One, Many]):
    """A call with two texts, or with several first and second ones."""

    @overload
    def __call__(self, first: str, second: str) -> One: ...
    @overload
    def __call__(self, first: Sequence[str], second: Sequence[str]) -> Many: ...


class PassageCall(Protocol[One, Many]):
    """A call with a question and a passage, or with several."""

    @overload
    def __call__(self, question: str, passage: str) -> One: ...
    @overload
    def __call__(self, question: Sequence[str], passage: Sequence[str]) -> Many: ...


class BestAnswersCall(Protocol[One, Many]):
    """The same, with a number of candidates."""

    @overload
    def __call__(self, question: str, passage: str, *, best: int = 1) -> One: ...
    @overload
    def __call__(self, question: Sequence[str], passage: Sequence[str], *, best: int = 1) -> Many: ...


class ChoicesCall(Protocol[One, Many]):
    """A call with a question and its choices, or with several questions."""

    @overload
    def __call__(self, question: str, choices: Sequence[str]) -> One: ...
    @overload
    def __call__(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> Many: ...


class RankCall(Protocol[One, Many]):
    """A call with a query and the texts to rank, or with several queries."""

    @overload
    def __call__(self, query: str, texts: Sequence[str], top: int | None = None) -> One: ...
    @overload
    def __call__(self, query: Sequence[str], texts: Sequence[Sequence[str]], top: int | None = None) -> Many: ...


class FillCall(Protocol[One, Many]):
    """`Client.fill`: a call with one text with blanks, or with several."""

    @overload
    def __call__(
        self, text: str, *, top: int = 5, whole_words: bool = True, too_long: TooLong | None = None
    ) -> One: ...
    @overload
    def __call__(
        self, text: Sequence[str], *, top: int = 5, whole_words: bool = True, too_long: TooLong | None = None
    ) -> Many: ...


class FillOptions(TypedDict, total=False):
    """Keyword arguments of `Bert.fill` that do not change the type of its result."""

    top: int
    candidates: Sequence[str] | None
    pieces: int
    whole_words: bool
    too_long: TooLong


class BlanksCall(Protocol[Word, Words]):
    """`Bert.fill`: a `Word` is for one blank, `Words` are for all blanks together."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, text: str, *, together: Literal[True], **options: Unpack[FillOptions]
    ) -> list[Words]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, text: str, *, together: Literal[False] = False, **options: Unpack[FillOptions]
    ) -> list[Word]: ...
    @overload
    def __call__(
        self, text: Sequence[str], *, together: Literal[True], **options: Unpack[FillOptions]
    ) -> list[list[Words]]: ...
    @overload
    def __call__(
        self, text: Sequence[str], *, together: Literal[False] = False, **options: Unpack[FillOptions]
    ) -> list[list[Word]]: ...


class WriteOptions(TypedDict, total=False):
    """Keyword arguments of `write` and `stream`."""

    tokens: int
    beams: int
    length_penalty: float
    temperature: float | None
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[str]


class WriteCall(Protocol[One, Many]):
    """A call with one prompt or source, or with several."""

    @overload
    def __call__(self, texts: str, **options: Unpack[WriteOptions]) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], **options: Unpack[WriteOptions]) -> Many: ...


class VectorOptions(TypedDict, total=False):
    """Keyword arguments of `Bert.embed` that do not change the type of its result."""

    layers: Layers | None
    normalize: bool | None
    dimensions: int | None
    prompt_name: str | None
    too_long: TooLong


class RequestOptions(TypedDict, total=False):
    """The same of `Client.embed`; None is the server's setting."""

    layers: Layers | None
    normalize: bool | None
    dimensions: int | None
    prompt_name: str | None
    too_long: TooLong | None
    pairs: bool


PoolingOrNone = PoolingName | NoPooling | None


class EmbedCall(Protocol[One, Many]):
    """`Bert.embed`: an array, but for several texts without pooling a list of arrays."""

    @overload
    def __call__(self, texts: str, *, pooling: PoolingOrNone = None, **options: Unpack[VectorOptions]) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], *, pooling: NoPooling, **options: Unpack[VectorOptions]) -> Many: ...
    @overload
    def __call__(
        self, texts: Sequence[str], *, pooling: PoolingName | None = None, **options: Unpack[VectorOptions]
    ) -> One: ...


class RequestEmbedCall(Protocol[One, Many]):
    """`Client.embed`, in the same way."""

    @overload
    def __call__(self, texts: str, *, pooling: PoolingOrNone = None, **options: Unpack[RequestOptions]) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], *, pooling: NoPooling, **options: Unpack[RequestOptions]) -> Many: ...
    @overload
    def __call__(
        self, texts: Sequence[str], *, pooling: PoolingName | None = None, **options: Unpack[RequestOptions]
    ) -> One: ...
