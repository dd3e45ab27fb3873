"""Google's variable names to Hugging Face's, by ordered rules: a pattern and its replacement."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.google_index import SAVE_AGAIN
from bertkit.errors import RequestError

Array = NDArray[Any]
Rules = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Renamed:
    """The variables under Hugging Face's names, kernels transposed, and why others were ignored."""

    family: str  # a row of bertkit's families
    tensors: dict[str, Array]
    ignored: dict[str, str]


@dataclass(frozen=True)
class _Layout:
    """The variable names of one kind of model."""

    family: str
    marker: str  # a name that only this kind has
    scopes: str  # the names that belong to it
    renames: Rules


TRAINING_STATE: Rules = (
    (r"(?i)(^|/)(adam|lamb|momentum|rmsprop|adagrad|adafactor)\w*(/|$)", "an optimizer's slot"),
    (r"/ExponentialMovingAverage$", "a running mean of a weight"),
    (r"(^|/)(global_step|\w+_power|loss_scale|(good|bad)_steps)$", "a counter or scale of the training"),
)

OTHER_PARTS: Rules = (
    (r"^generator", "the generator's; generator=True takes it"),
    (r"^(electra|discriminator_predictions)/", "the discriminator's"),
    (r"^task_specific/", "a task's head, which Hugging Face's ELECTRA builds otherwise"),
    (r"", "no part of the model"),
)

ALBERT_RENAMES: Rules = (
    (r"^bert/pooler/dense/", "albert/pooler/"),
    (r"^bert/", "albert/"),
    (r"/transformer/group_(\d+)/inner_group_(\d+)/", r"/albert_layer_groups/\1/albert_layers/\2/"),
    (r"/attention_1/(self|output)/", "/attention/"),
    (r"/ffn_1/intermediate/output/dense/", "/ffn_output/"),
    (r"/ffn_1/intermediate/dense/", "/ffn/"),
    (r"(/albert_layers/\d+)/LayerNorm/", r"\1/attention/LayerNorm/"),
    (r"(/albert_layers/\d+)/LayerNorm_1/", r"\1/full_layer_layer_norm/"),
    (r"^cls/predictions/(transform/)?", "predictions/"),
    (r"^cls/seq_relationship/", "sop_classifier/classifier/"),
)

GENERATOR_RENAMES: Rules = (
    (r"^generator/", "electra/"),
    (r"^(generator_predictions/output|generator_lm_head)_bias$", "generator_lm_head/bias"),
)

COMMON_RENAMES: Rules = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"^discriminator_predictions/dense_1/", "discriminator_predictions/dense_prediction/"),
    (r"^cls/squad/", "qa_outputs/"),
    (r"^output_(weights|bias)$", r"classifier/output_\1"),
    (r"_embeddings$", r"\g<0>/weight"),
    (r"/(kernel|gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
    (r"/", "."),
)

GENERATORS = (
    _Layout("electra", r"^generator/embeddings/", r"^generator", GENERATOR_RENAMES),  # trained with its own embeddings
    _Layout("electra", r"^generator/encoder/", r"^(generator|electra/embeddings/)", GENERATOR_RENAMES),
)

LAYOUTS = (
    _Layout("albert", r"^bert/encoder/transformer/", r"^(bert/|cls/|output_(weights|bias)$)", ALBERT_RENAMES),
    _Layout("electra", r"^electra/encoder/", r"^(electra|discriminator_predictions)/", ()),
    *GENERATORS,
    _Layout("bert", r"^bert/", r"^(bert/|cls/|output_(weights|bias)$)", ()),
)


def hugging_face_names(variables: Mapping[str, Array], *, generator: bool = False) -> Renamed:
    """Rename a BERT's, ALBERT's or ELECTRA's variables: every one ends in `tensors` or in `ignored`.

    Google keeps ELECTRA's two halves in one checkpoint: this takes the discriminator unless `generator` is set.
    """
    layout = _find_layout(variables, generator)
    tensors: dict[str, Array] = {}
    ignored: dict[str, str] = {}
    for name, array in variables.items():
        if reason := _reason_to_ignore(name, layout):
            ignored[name] = reason
            continue
        target = _rename(name, layout)
        if target in tensors:
            raise RequestError(f"{name!r} is the checkpoint's second variable for {target!r}; remove one")
        tensors[target] = _transposed(name, array)
    return Renamed(layout.family, tensors, ignored)


def _find_layout(variables: Mapping[str, Array], generator: bool) -> _Layout:
    for layout in GENERATORS if generator else LAYOUTS:
        if any(re.search(layout.marker, name) for name in variables):
            return layout
    kind = "an ELECTRA's generator" if generator else "a BERT, ALBERT or ELECTRA"
    names = ", ".join(list(variables)[:3]) or "none"
    raise RequestError(f"the checkpoint is not of {kind}: its variables are {names}; convert one that is")


def _reason_to_ignore(name: str, layout: _Layout) -> str | None:
    rules = TRAINING_STATE if re.search(layout.scopes, name) else (*TRAINING_STATE, *OTHER_PARTS)
    return next((reason for pattern, reason in rules if re.search(pattern, name)), None)


def _rename(name: str, layout: _Layout) -> str:
    for pattern, replacement in layout.renames + COMMON_RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _transposed(name: str, array: Array) -> Array:
    """A kernel of TensorFlow, in x out, as the weight of a torch linear layer, out x in; others as they are."""
    if not name.endswith("/kernel"):
        return array
    if array.ndim != 2:
        raise RequestError(f"the kernel {name!r} has shape {array.shape}, not (in, out); {SAVE_AGAIN}")
    return np.ascontiguousarray(array.T)
