"""What requests look like: read strictly, explained by the schema, each with an example that works."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from bertkit.poolings import NoPooling, PoolingName
from bertkit.serve.plans.vectors import Input
from bertkit.text.length import TooLong

TEXT = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
MODEL = Field(None, description="One of /v1/models; without it the first that can do what is asked.")
LENGTH = Field(None, description="What becomes of texts over the model's length; the server's choice by default.")


def several(kind: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of one thing, or a list of them."""
    return {"anyOf": [kind, {"type": "array", "items": kind, "minItems": 1}], **more}


def read_inputs(value: object) -> list[Input]:
    """One text, several, token ids of one, or of several; all ids but the first are checked once they are truncated."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a text, a list of texts, token ids, or a list of token ids; at least one")
    if type(value[0]) is int:
        return [value]
    return [_read_input(item, number) for number, item in enumerate(value)]


def _read_input(item: object, number: int) -> Input:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and type(item[0]) is int:
        return item
    raise ValueError(f"item {number} is {_kind(item)}; give a text or a list of token ids")


def read_texts(value: object) -> list[str]:
    """One text, or several."""
    if isinstance(value, str):
        return [value]
    return _texts(value, "a text or a list of texts")


def _texts(value: object, wanted: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"give {wanted}, at least one")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise ValueError(f"item {number} is {_kind(item)}; give {wanted}")
    return value


def read_sentences(value: object) -> list[str | tuple[str, ...]]:
    """One text, or several, each plain or as a list of its words."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a text, or a list of texts or of lists of words; at least one")
    return [item if isinstance(item, str) else tuple(_texts(item, "a text or a list of words")) for item in value]


def read_choices(value: object) -> list[list[str]]:
    """The choices of one question, or of several."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [_texts(item, "a list of choices") for item in value]
    return [_texts(value, "a list of choices")]


def _kind(item: object) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "an object",
        list: "a list",
        str: "a text",
    }
    return names.get(type(item), "null")


MANY = {"type": "array", "minItems": 1}
INPUTS = {"anyOf": [TEXT, {**MANY, "items": TEXT}, IDS, {**MANY, "items": IDS}]}
Inputs = Annotated[Sequence[Input], PlainValidator(read_inputs), WithJsonSchema(INPUTS)]
Texts = Annotated[list[str], PlainValidator(read_texts), WithJsonSchema(several(TEXT))]
WORDS = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
Sentences = Annotated[
    list[str | tuple[str, ...]],
    PlainValidator(read_sentences),
    WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": WORDS, "minItems": 1}]}),
]
CHOICES = {"type": "array", "items": TEXT, "minItems": 1}
Choices = Annotated[list[list[str]], PlainValidator(read_choices), WithJsonSchema(several(CHOICES))]


def example(**fields: Any) -> ConfigDict:
    """A request's example; fields that nobody knows are refused."""
    return ConfigDict(extra="forbid", json_schema_extra={"example": fields})


def lenient_example(**fields: Any) -> ConfigDict:
    """The same for routes whose clients send more than we read."""
    return ConfigDict(extra="ignore", json_schema_extra={"example": fields})


class VectorChoices(BaseModel):
    """How texts become vectors; what is not said is as the model's folder says."""

    model: str | None = MODEL
    pooling: PoolingName | NoPooling | None = Field(
        None, description="One vector for each text, or with 'none' for each token."
    )
    layers: Annotated[list[int], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Put side by side; -1 is the last, 0 the embeddings."
    )
    pairs: bool = Field(False, description="Whether a text with ||| is two texts, read together.")
    too_long: TooLong | None = LENGTH
    dimensions: int | None = Field(None, ge=1, description="Only the first so many numbers, scaled to length 1.")


class OpenAIRequest(VectorChoices):
    """What OpenAI's clients send to /v1/embeddings, and bertkit's own choices."""

    model_config = lenient_example(input=["A cat sat on the mat.", "A dog lay on the rug."])

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    user: str | None = None


class EmbedRequest(VectorChoices):
    """What text-embeddings-inference's clients send to /embed and /embed_all."""

    model_config = lenient_example(inputs=["A cat sat on the mat.", "A dog lay on the rug."])

    inputs: Inputs
    normalize: bool | None = Field(
        True, description="To length 1, by default as text-embeddings-inference does; null is as the folder says."
    )
    truncate: bool | None = Field(None, description="true cuts texts that are too long, false refuses them.")
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    prompt_name: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


class FillRequest(BaseModel):
    """Texts with blanks."""

    model_config = example(text="Paris is the [MASK] of France.", top=3)

    text: Texts
    top: int = Field(5, ge=1, description="Words for each blank.")
    model: str | None = MODEL
    too_long: TooLong | None = Field(None, description="By default window, unless the server refuses long texts.")


class ClassifyRequest(BaseModel):
    """Texts, or pairs of texts."""

    model_config = example(texts=["a fine film", "a dull film"])

    texts: Texts
    pairs: Texts | None = Field(None, description="The second text of each pair.")
    model: str | None = MODEL


class TagRequest(BaseModel):
    """Texts, plain or as lists of words."""

    model_config = example(texts=["Ada lives in London"])

    texts: Sentences
    model: str | None = MODEL


class AnswerRequest(BaseModel):
    """A question and the passage to answer it from, or as many of both."""

    model_config = example(question="Where does Ada live?", passage="Ada lives in London and Alan lives in Rome.")

    question: Texts
    passage: Texts
    best: int = Field(1, ge=1, le=20, description="How many candidates to list.")
    model: str | None = MODEL


class ChooseRequest(BaseModel):
    """A question and its choices, or as many of both."""

    model_config = example(question="The film was", choices=["a joy.", "of wood.", "seven."])

    question: Texts
    choices: Choices
    model: str | None = MODEL


class AttentionRequest(BaseModel):
    """One text or pair to look at."""

    model_config = example(text="The animal was tired.", layer=1, head=1)

    text: str
    pair: str | None = None
    layer: int | None = Field(None, ge=1, description="From 1; without it all.")
    head: int | None = Field(None, ge=1, description="From 1; without it all.")
    encoding_format: Literal["float", "base64"] = "float"
    model: str | None = MODEL
