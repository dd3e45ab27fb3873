"""Request models: validated strictly, described in the OpenAPI document, each with an example that works."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from bertkit.predict.length import TooLong

TEXT = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
MODEL = Field(None, description="One of /v1/models; without it the first that can do what is asked.")
LENGTH = Field(None, description="What becomes of texts over the model's length; the server's choice by default.")


def several(kind: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of one thing, or a list of them."""
    return {"anyOf": [kind, {"type": "array", "items": kind, "minItems": 1}], **more}


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
            raise ValueError(f"item {number} is {kind_of(item)}; give {wanted}")
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


def kind_of(item: object) -> str:
    """What a JSON value is, in words."""
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "an object",
        list: "a list",
        str: "a text",
    }
    return names.get(type(item), "null")


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
    """Config with an example; unknown fields are refused."""
    return ConfigDict(extra="forbid", json_schema_extra={"example": fields})


def lenient_example(**fields: Any) -> ConfigDict:
    """Config with an example; unknown fields are ignored, for clients that send more than is read here."""
    return ConfigDict(extra="ignore", json_schema_extra={"example": fields})


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
