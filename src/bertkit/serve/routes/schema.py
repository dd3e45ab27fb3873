"""Request models: validated strictly, described in the OpenAPI document, each with an example that works."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, create_model

from bertkit.tasks.row import TaskRow
from bertkit.text.length import TooLong

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


INPUT_TYPES: dict[str, Any] = {"texts": Texts, "sentences": Sentences, "choices": Choices}


def request_schema(row: TaskRow) -> type[BaseModel]:
    """What a task's route is asked, as its row says."""
    fields: dict[str, Any] = {}
    for given in row.fields:
        kind = INPUT_TYPES[given.kind]
        about = given.description or None
        fields[given.name] = (
            (kind | None, Field(None, description=about)) if given.optional else (kind, Field(description=about))
        )
    for option in row.options:
        fields[option.name] = (int, Field(option.default, ge=1, le=option.maximum, description=option.description))
    fields["model"] = (str | None, MODEL)
    name = f"{row.route.title().replace('-', '')}Request"
    config = example(**row.request_example)
    return create_model(name, __config__=config, __doc__=row.request_summary, **fields)


class AttentionRequest(BaseModel):
    """One text or pair to look at."""

    model_config = example(text="The animal was tired.", layer=1, head=1)

    text: str
    pair: str | None = None
    layer: int | None = Field(None, ge=1, description="From 1; without it all.")
    head: int | None = Field(None, ge=1, description="From 1; without it all.")
    encoding_format: Literal["float", "base64"] = "float"
    model: str | None = MODEL
