"""Fields that request models share: validated strictly, described in the OpenAPI document."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

TEXT = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
MODEL = Field(None, description="One of /v1/models; by default the first that can answer the request.")
LENGTH = Field(None, description="What is done with texts over the model's length; by default the server's policy.")


def one_or_several(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of one item or a list of items."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def read_texts(value: object) -> list[str]:
    """One text, or several."""
    if isinstance(value, str):
        return [value]
    return _texts(value, "a text or a list of texts")


def _texts(value: object, expected: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"give {expected}, at least one")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise ValueError(f"item {number} is {kind_of(item)}; give {expected}")
    return value


def read_sentences(value: object) -> list[str | tuple[str, ...]]:
    """One text, or several, each plain or as a list of its words."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a text, or a list of texts or of lists of words; at least one")
    return [item if isinstance(item, str) else tuple(_texts(item, "a text or a list of words")) for item in value]


def read_choices(value: object) -> list[list[str]]:
    """The choices of one question or the texts of one query, or of several."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [_texts(item, "a list of texts") for item in value]
    return [_texts(value, "a list of texts")]


def kind_of(item: object) -> str:
    """The type of a JSON value, for messages."""
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "an object",
        list: "a list",
        str: "a text",
    }
    return names.get(type(item), "null")


Texts = Annotated[list[str], PlainValidator(read_texts), WithJsonSchema(one_or_several(TEXT))]
WORDS = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
Sentences = Annotated[
    list[str | tuple[str, ...]],
    PlainValidator(read_sentences),
    WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": WORDS, "minItems": 1}]}),
]
CHOICES = {"type": "array", "items": TEXT, "minItems": 1}
Choices = Annotated[list[list[str]], PlainValidator(read_choices), WithJsonSchema(one_or_several(CHOICES))]


def read_labels(value: object) -> object:
    """Names of labels, or descriptions by name; what is in them is checked where they are read."""
    if not isinstance(value, list | dict):
        raise ValueError("give a list of labels, or an object with a description for each")
    return value


LABELS_SCHEMA = {"anyOf": [CHOICES, {"type": "object", "additionalProperties": TEXT}]}
GivenLabels = Annotated[Any, PlainValidator(read_labels), WithJsonSchema(LABELS_SCHEMA)]
# Fields of requests that bring labels which the model was not trained on.
LABEL_FIELDS: dict[str, Any] = {
    "labels": (
        GivenLabels | None,
        Field(
            None, description="Labels to choose from, or descriptions by name; for models with the ability zero-shot."
        ),
    ),
    "multi_label": (bool, Field(False, description="Whether each label is judged by itself.")),
    "template": (str | None, Field(None, description="The sentence around the name of a label, with {} for it.")),
}


def example(**fields: Any) -> ConfigDict:
    """Config with an example; unknown fields are refused."""
    return ConfigDict(extra="forbid", json_schema_extra={"example": fields})


def lenient_example(**fields: Any) -> ConfigDict:
    """Config with an example; unknown fields are ignored, for clients that send fields of other servers."""
    return ConfigDict(extra="ignore", json_schema_extra={"example": fields})
