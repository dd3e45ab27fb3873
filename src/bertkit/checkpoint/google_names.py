"""Google's variable names and Hugging Face's: ordered rules, each a pattern and its replacement."""

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
    """A checkpoint under Hugging Face names, kernels transposed, and why each other variable was left out."""

    family: str  # a row of bertkit's families
    tensors: dict[str, Array]
    ignored: dict[str, str]


@dataclass(frozen=True)
class _Layout:
    """How the names of one kind of model look: one that shows the kind, those that belong to it, their renames."""

    family: str
    marker: str
    scopes: str
    renames: Rules


TRAINING: Rules = (
    (r"(?i)(^|/)(adam|lamb|momentum|rmsprop|adagrad|adafactor)\w*(/|$)", "an optimizer's slot"),
    (r"/ExponentialMovingAverage$", "a running mean of a weight"),
    (r"(^|/)(global_step|\w+_power|loss_scale|(good|bad)_steps)$", "a counter or scale of the training"),
)

ELSEWHERE: Rules = (
    (r"^generator", "the generator's; generator=True takes it"),
    (r"^(electra|discriminator_predictions)/", "the discriminator's"),
    (r"^task_specific/", "a task's head, which Hugging Face's ELECTRA builds otherwise"),
    (r"", "no part of the model"),
)

ALBERT: Rules = (
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

GENERATOR: Rules = (
    (r"^generator/", "electra/"),
    (r"^(generator_predictions/output|generator_lm_head)_bias$", "generator_lm_head/bias"),
)

EVERY_FAMILY: Rules = (
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
    _Layout("electra", r"^generator/embeddings/", r"^generator", GENERATOR),  # trained with embeddings of its own
    _Layout("electra", r"^generator/encoder/", r"^(generator|electra/embeddings/)", GENERATOR),
)

LAYOUTS = (
    _Layout("albert", r"^bert/encoder/transformer/", r"^(bert/|cls/|output_(weights|bias)$)", ALBERT),
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
    some = ", ".join(list(variables)[:3]) or "none"
    raise RequestError(f"the checkpoint is not of {kind}: its variables are {some}; convert one that is")


def _reason_to_ignore(name: str, layout: _Layout) -> str | None:
    rules = TRAINING if re.search(layout.scopes, name) else (*TRAINING, *ELSEWHERE)
    return next((reason for pattern, reason in rules if re.search(pattern, name)), None)


def _rename(name: str, layout: _Layout) -> str:
    for pattern, replacement in layout.renames + EVERY_FAMILY:
        name = re.sub(pattern, replacement, name)
    return name


def _transposed(name: str, array: Array) -> Array:
    """TensorFlow's kernels are stored in x out, the weights of torch's linear layers out x in."""
    if not name.endswith("/kernel"):
        return array
    if array.ndim != 2:
        raise RequestError(f"the kernel {name!r} has shape {array.shape}, not (in, out); {SAVE_AGAIN}")
    return np.ascontiguousarray(array.T)
