"""What the other routes of text-embeddings-inference take."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator, WithJsonSchema

from bertkit.serve.routes.schema import IDS, MODEL, TEXT, Texts, lenient_example, several

Pairs = list[tuple[str, str | None]]


def read_pairs(value: object) -> tuple[bool, Pairs]:
    """(whether it is one, what): a text; [text] or [text, text]; or a list of these two."""
    if isinstance(value, str):
        return True, [(value, None)]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value) and len(value) <= 2:
        return True, [_pair(value, 0)]
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return False, [_pair(item, number) for number, item in enumerate(value)]
    raise ValueError("give a text, a pair [text, text], or a list of [text] and [text, text]")


def _pair(item: list[Any], number: int) -> tuple[str, str | None]:
    if not 1 <= len(item) <= 2 or not all(isinstance(part, str) for part in item):
        raise ValueError(f"item {number} is no [text] or [text, text]")
    return item[0], item[1] if len(item) == 2 else None


def read_ids(value: object) -> list[list[int]]:
    """Token ids of one text, or of several."""
    lists = [value] if isinstance(value, list) and value and type(value[0]) is int else value
    if not isinstance(lists, list) or not lists:
        raise ValueError("give token ids, or a list of token ids; at least one")
    for number, item in enumerate(lists):
        if not isinstance(item, list) or not all(type(token) is int for token in item):
            raise ValueError(f"item {number} is no list of token ids")
    return lists


PAIR = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
PairsInput = Annotated[
    tuple[bool, Pairs],
    PlainValidator(read_pairs),
    WithJsonSchema({"anyOf": [TEXT, PAIR, {"type": "array", "items": PAIR, "minItems": 1}]}),
]
TextList = Annotated[list[str], Field(min_length=1), FailFast()]  # else each of a million wrong items is told
IdsInput = Annotated[list[list[int]], PlainValidator(read_ids), WithJsonSchema(several(IDS))]


class PredictRequest(BaseModel):
    """Texts or pairs for a model with classes."""

    model_config = lenient_example(inputs="a fine film")

    inputs: PairsInput
    raw_scores: bool = False
    truncate: bool | None = None
    model: str | None = MODEL


class RerankRequest(BaseModel):
    """A query and the texts to rank by it."""

    model_config = lenient_example(query="pets", texts=["Interest rates rose.", "A dog lay on the rug."])

    query: str
    texts: TextList
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    model: str | None = MODEL


class SimilarityInputs(BaseModel):
    """One sentence and those that it is compared with."""

    source_sentence: str
    sentences: TextList


class SimilarityRequest(BaseModel):
    """Cosines between one sentence and others."""

    model_config = lenient_example(
        inputs={"source_sentence": "A cat sat.", "sentences": ["A dog lay.", "Interest rates rose."]}
    )

    inputs: SimilarityInputs
    parameters: dict[str, Any] | None = None
    model: str | None = MODEL


class TokenizeRequest(BaseModel):
    """Texts to cut into tokens."""

    model_config = lenient_example(inputs="embeddings of tokens")

    inputs: Texts
    add_special_tokens: bool = True
    pairs: bool = Field(False, description="Whether a text with ||| is two texts, read together.")
    model: str | None = MODEL


class DecodeRequest(BaseModel):
    """Token ids to turn into text."""

    model_config = lenient_example(ids=[[5, 6, 7]])

    ids: IdsInput
    skip_special_tokens: bool = True
    model: str | None = MODEL


class HuggingFaceRequest(BaseModel):
    """What Hugging Face's InferenceClient sends, whatever the task."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": {"inputs": "A cat sat on the mat."}})

    inputs: Any
    parameters: dict[str, Any] | None = None
