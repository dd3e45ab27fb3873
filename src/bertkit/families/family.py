"""What a family of models is: its settings, and how Hugging Face names its config fields, tensors and classes.

Tables of names have two columns: bertkit's on the left, Hugging Face's on the right. A tensor name stands for its
`.weight` and `.bias`; `{i}` counts layers; a tuple is joined row upon row (queries, keys and values are one matrix).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bertkit.errors import RequestError

Names = Mapping[str, str | tuple[str, ...]]
Settings = dict[str, Any]  # fields of BertConfig and of its Parts, by name
HeadSet = tuple[str, ...]

# Hugging Face's class for each set of heads, without the family's name before it.
CLASS_ENDINGS: dict[HeadSet, str] = {
    (): "Model",
    ("masked_word",): "ForMaskedLM",
    ("classify",): "ForSequenceClassification",
    ("choose",): "ForMultipleChoice",
    ("tag",): "ForTokenClassification",
    ("answer",): "ForQuestionAnswering",
}


def _as_written(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    return settings


def _nothing_more(settings: Settings) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of FAMILIES: all that bertkit knows of a published family."""

    name: str  # model_type in config.json
    class_stem: str  # what transformers' classes of this family start with
    tokenizer: Literal["WordPiece", "BPE", "Unigram"]  # of the published models
    settings: Mapping[str, Any] = field(default_factory=dict)  # where they differ from BERT-base

    # config.json
    config_fields: Mapping[str, str]  # our setting -> field
    config_defaults: Mapping[str, float]  # of transformers' config class, for fields that a file leaves out
    activation_field: str = "hidden_act"
    required_fields: Mapping[str, Any] = field(default_factory=dict)  # any other value is arithmetic that we lack
    read_config: Callable[[Settings, Mapping[str, Any]], Settings] = _as_written  # settings, config.json -> settings
    write_config: Callable[[Settings], dict[str, Any]] = _nothing_more  # settings -> more fields of config.json

    # model.safetensors
    prefix: str  # of the base model's tensors in a model with a head
    encoder: Names  # what follows `encoder.` -> what follows the prefix
    heads: Mapping[str, Names]  # head -> whole names on both sides; "" is the base model with its pooler
    tied: Mapping[str, str]  # second name of a tensor -> its first name, which is used if present

    # classes of transformers
    more_classes: Mapping[HeadSet, str] = field(default_factory=dict)
    causal_class: str | None = None  # with `is_decoder` and a masked-word head; None: the family has no `is_decoder`

    @property
    def classes(self) -> dict[HeadSet, str]:
        """Hugging Face's class for each set of heads."""
        usual = {heads: self.class_stem + ending for heads, ending in CLASS_ENDINGS.items()}
        return {**usual, **self.more_classes}

    @property
    def heads_of_class(self) -> dict[str, HeadSet]:
        """The heads of each class."""
        causal = {} if self.causal_class is None else {self.causal_class: ("masked_word",)}
        return {name: heads for heads, name in self.classes.items()} | causal


def whole_number(value: object) -> object:
    """768.0 becomes 768: some tools write every number as a float. Other values stay."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def json_object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key of config.json; empty if there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise RequestError(f"{key}={value!r} must be an object")
    return value or {}
