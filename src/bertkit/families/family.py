"""What a family of models is: its settings, and how Hugging Face names its config fields, tensors and classes.

FAMILIES are the published families that bertkit loads and saves in Hugging Face's layout, one file per row. Below them
are names that several families share.

Tables of names have two columns: bertkit's on the left, Hugging Face's on the right. A name stands for its `.weight`
and `.bias`; `{i}` is the layer's number; a tuple is concatenated by rows (queries, keys and values are one matrix).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
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


def _unchanged(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    return settings


def _no_fields(settings: Settings) -> dict[str, Any]:
    return {}


def _same_object(config_json: Mapping[str, Any]) -> Mapping[str, Any]:
    return config_json


@dataclass(frozen=True)
class Stored:
    """A tensor that Hugging Face stores in another form: its complete name there, and the conversions of both ways."""

    name: str
    read: Callable[[Any], Any]  # from the stored form
    write: Callable[[Any], Any]  # to it


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of FAMILIES: everything that bertkit knows of a published family."""

    name: str  # model_type in config.json
    class_stem: str  # what transformers' classes of this family start with
    kind: Literal["encoder", "decoder", "encoder-decoder"] = "encoder"
    tokenizer: Literal["WordPiece", "BPE", "Unigram"]  # of the published models
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that differ from BERT-base
    every_size: Mapping[str, Any] = field(default_factory=dict)  # settings that are not a matter of size

    # config.json
    config_fields: Mapping[str, str]  # bertkit's setting -> field
    config_defaults: Mapping[str, float]  # of transformers' config class, for fields that a file does not have
    activation_field: str = "hidden_act"
    required_fields: Mapping[str, Any] = field(
        default_factory=dict
    )  # other values are refused: bertkit does not compute them
    read_config: Callable[[Settings, Mapping[str, Any]], Settings] = _unchanged  # settings, config.json -> settings
    write_config: Callable[[Settings], dict[str, Any]] = _no_fields  # settings -> more fields of config.json
    flatten: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _same_object  # config.json -> its fields in one object
    nest: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _same_object  # the inverse

    # model.safetensors
    prefix: str  # of the base model's tensors in a model with a head
    encoder: Names  # name after `encoder.` -> name after the prefix
    heads: Mapping[str, Names]  # head -> complete names on both sides; "" is the base model with its pooler
    tied: Mapping[str, str]  # second name of a tensor -> its first name, which is used if present
    stored: Mapping[str, Stored] = field(default_factory=dict)  # complete name in bertkit, instead of a table's row
    constants: tuple[str, ...] = ()  # endings of names in the file that bertkit computes instead of loading

    # classes of transformers
    class_endings: Mapping[HeadSet, str] = field(default_factory=lambda: CLASS_ENDINGS)  # after class_stem
    more_classes: Mapping[HeadSet, str] = field(default_factory=dict)  # complete names
    causal_class: str | None = None  # with `is_decoder` and a masked-word head; None: the family has no `is_decoder`

    @property
    def classes(self) -> dict[HeadSet, str]:
        """Hugging Face's class for each set of heads."""
        usual = {heads: self.class_stem + ending for heads, ending in self.class_endings.items()}
        return {**usual, **self.more_classes}

    @property
    def published(self) -> bool:
        """Whether transformers has classes of this family; the others are saved in bertkit's own layout."""
        return bool(self.classes)

    @property
    def heads_of_class(self) -> dict[str, HeadSet]:
        """The heads of each class."""
        causal = {} if self.causal_class is None else {self.causal_class: ("masked_word",)}
        return {name: heads for heads, name in self.classes.items()} | causal


# Name of a family (model_type in config.json) -> file in this folder, and the constant in it.
FAMILY_ROWS = {
    "bert": "bert:BERT",
    "roberta": "roberta:ROBERTA",
    "xlm-roberta": "xlm_roberta:XLM_ROBERTA",
    "camembert": "xlm_roberta:CAMEMBERT",
    "albert": "albert:ALBERT",
    "electra": "electra:ELECTRA",
    "distilbert": "distilbert:DISTILBERT",
    "modernbert": "modernbert:MODERNBERT",
    "mpnet": "mpnet:MPNET",
    "gpt2": "gpt:GPT2",
    "openai-gpt": "gpt:GPT",
    "marian": "marian:MARIAN",
    "encoder-decoder": "encoder_decoder:ENCODER_DECODER",
    "elmo": "recurrent:ELMO",
    "awd-lstm": "recurrent:AWD_LSTM",
    "rnn": "recurrent:RNN",
}


class _Families(Mapping[str, Family]):
    """The rows by name; a row's file is imported when the row is first read."""

    def __getitem__(self, name: str) -> Family:
        module, _, constant = FAMILY_ROWS[name].partition(":")
        family: Family = getattr(import_module(f"bertkit.families.{module}"), constant)
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILY_ROWS)

    def __len__(self) -> int:
        return len(FAMILY_ROWS)


FAMILIES: Mapping[str, Family] = _Families()

# Names that BERT shares with other families.
SIZE_FIELDS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "max_length": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "init_std": "initializer_range",
}
CONFIG_FIELDS = {
    **SIZE_FIELDS,
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
CONFIG_DEFAULTS: dict[str, float] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
EMBEDDINGS: Names = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
LAYER: Names = {
    "layers.{i}.attention.qkv": (
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    "layers.{i}.attention.out": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
# The classifier of RoBERTa and ELECTRA has two layers.
TWO_LAYERS: Names = {"pooler.dense": "classifier.dense", "heads.classify.out": "classifier.out_proj"}


def head_names(
    dense: str,
    norm: str,
    decoder: str,
    *,
    pooler: str | None = None,
    next_sentence: str | None = None,
    classify: Names | None = None,
    choose: Names | None = None,
) -> dict[str, Names]:
    """The names of the heads that most families have; `dense`, `norm` and `decoder` are the masked-word head's.

    `pooler` is the base model's, if it has one. `classify` and `choose` are what these heads have besides a last layer
    called "classifier": by default, the pooler.
    """
    base: Names = {} if pooler is None else {"pooler.dense": pooler}
    names: dict[str, Names] = {
        "": base,
        "masked_word": {
            "heads.masked_word.dense": dense,
            "heads.masked_word.norm": norm,
            "heads.masked_word.decoder": decoder,
        },
        "classify": {"heads.classify.out": "classifier", **(base if classify is None else classify)},
        "choose": {"heads.choose.out": "classifier", **(base if choose is None else choose)},
        "tag": {"heads.tag.out": "classifier"},
        "answer": {"heads.answer.out": "qa_outputs"},
    }
    return (
        names
        if next_sentence is None
        else {**names, "next_sentence": {**base, "heads.next_sentence.out": next_sentence}}
    )


def transposed(names: Mapping[str, str]) -> dict[str, Stored]:
    """Weights that are stored as inputs x outputs: stem in bertkit -> stem in the file, both complete."""

    def transpose(tensor: Any) -> Any:
        return tensor.t()

    rows = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in names.items()}
    return {ours: Stored(theirs, transpose, transpose) for ours, theirs in rows.items()}


def whole_number(value: object) -> object:
    """768 for 768.0, because some tools write every number as a float; other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def json_object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key of config.json; empty if there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise RequestError(f"{key}={value!r} must be an object")
    return value or {}
