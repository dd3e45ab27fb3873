"""Hugging Face's layout: a model's shape as config.json, and its weights under the names of their tensors.

The names are in the rows of families/.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bertkit.config import BertConfig, Parts, family_config
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES, Family, Names, Stored, json_object, whole_number
from bertkit.model.model import BertModel, initialize, tie
from bertkit.settings import flat, pick

FRACTIONS = ("dropout", "attention_dropout", "norm_epsilon", "init_std")  # settings that are not whole numbers

# Hugging Face's name -> bertkit's; of several names the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Fields of every family; bertkit does not compute what their other values mean, so they are refused.
REQUIRED_FIELDS: dict[str, Any] = {"position_embedding_type": "absolute", "add_cross_attention": False}

NATIVE_TYPE = "bertkit"  # model_type of a mixture of parts that Hugging Face has no class for
WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Old names of LayerNorm's parameters, and prefixes that wrappers such as DistributedDataParallel add.
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "model.")
ALIGNMENT = 64  # bytes: that of tensors which torch allocates


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor: used from the file, left in it, or newly initialized."""

    used: tuple[str, ...]  # names in the file
    dropped: Mapping[str, str] = field(default_factory=dict)  # name in the file -> reason
    new: tuple[str, ...] = ()  # bertkit's names

    def __str__(self) -> str:
        lines = [f"{len(self.used)} tensors used, {len(self.dropped)} dropped, {len(self.new)} newly made"]
        lines += [f"  dropped  {name}: {why}" for name, why in self.dropped.items()]
        lines += [f"  new      {name}" for name in self.new]
        return "\n".join(lines)


def config_from_json(data: Mapping[str, Any], where: str) -> BertConfig:
    """The config that a config.json describes; error messages start with `where`."""
    try:
        kind = _model_type(data)
        return _read_native(data) if kind == NATIVE_TYPE else _read_family(kind, data)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error


def config_to_json(config: BertConfig, *, native: bool = False) -> dict[str, Any]:
    """config.json for a config: the family's if that can express it, else one that only bertkit reads (`native`)."""
    if native or not FAMILIES[config.family].published:
        return _write_native(config)
    data = _write_family(config)
    try:
        complete = config_from_json(data, "") == config
    except RequestError:
        complete = False
    return data if complete else _write_native(config)


def _model_type(data: Mapping[str, Any]) -> str:
    """`model_type`; in files of 2019, which have none, by the class, or BERT if there are segments."""
    kind = data.get("model_type")
    if kind is not None:
        return str(kind)
    by_class = {name: family for family, row in FAMILIES.items() for name in row.heads_of_class}
    if name := architecture(data):
        return by_class.get(name, str(name))
    if "type_vocab_size" in data:
        return "bert"
    raise RequestError(f"it has no model_type; add one of: {', '.join(sorted(_published()))}")


def _published() -> dict[str, Family]:
    """The families that Hugging Face has; the others are never the model_type of a config.json."""
    return {name: row for name, row in FAMILIES.items() if row.published}


def architecture(data: Mapping[str, Any]) -> str | None:
    """The first class that a config.json names, if any."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _read_family(name: str, data: Mapping[str, Any]) -> BertConfig:
    row = FAMILIES.get(name)  # one row's file is imported, and not all of them
    family = row if row is not None and row.published else pick(_published(), name, "model_type")
    data = family.flatten(data)
    for key, value in {**REQUIRED_FIELDS, **family.required_fields}.items():
        if data.get(key, value) not in (value, None):
            raise RequestError(f"{key}={data[key]!r} is not supported, only {value!r}")
    # Missing fields have the defaults of transformers' config class.
    complete = {**family.config_defaults, **{key: value for key, value in data.items() if value is not None}}
    numbers = {
        ours: _number(complete, key, ours not in FRACTIONS)
        for ours, key in family.config_fields.items()
        if key in complete
    }
    settings = {**family.settings, **numbers, **_read_activation(family, data), **_read_causal(family, data)}
    if "pad_id" not in numbers:
        settings["pad_id"] = 0 if data.get("pad_token_id", 0) is None else family.settings.get("pad_id", 0)
    return family_config(name, "base", **family.read_config(settings, data))


def _read_activation(family: Family, data: Mapping[str, Any]) -> dict[str, str]:
    activation = data.get(family.activation_field)
    return {} if activation is None else {"activation": pick(ACTIVATIONS, str(activation), family.activation_field)}


def _read_causal(family: Family, data: Mapping[str, Any]) -> dict[str, bool]:
    """`is_decoder`; transformers ignores it in families whose attention has no causal mask."""
    value = data.get("is_decoder")
    if not value or family.kind != "encoder":
        return {}
    if value is not True or family.causal_class is None:
        raise RequestError(f"is_decoder={value!r} is not supported for {family.name}, only False")
    return {"causal": True}


def _write_family(config: BertConfig) -> dict[str, Any]:
    family, settings = FAMILIES[config.family], flat(config)
    data: dict[str, Any] = {"model_type": family.name}
    data |= {key: settings[ours] for ours, key in family.config_fields.items()}
    data[family.activation_field] = next(name for name, ours in ACTIVATIONS.items() if ours == config.parts.activation)
    if config.parts.causal and family.kind == "encoder" and family.causal_class is not None:
        data["is_decoder"] = True
    return dict(family.nest(data | family.write_config(settings)))


def _write_native(config: BertConfig) -> dict[str, Any]:
    shape = asdict(config)
    parts = shape.pop("parts")
    return {"model_type": NATIVE_TYPE, "shape": shape, "parts": parts}


def _read_native(data: Mapping[str, Any]) -> BertConfig:
    try:
        return BertConfig(**json_object(data, "shape"), parts=Parts(**json_object(data, "parts")))
    except TypeError as error:
        raise RequestError(f"not a shape that bertkit knows: {error}") from error


def _number(data: Mapping[str, Any], key: str, whole: bool) -> Any:
    value = whole_number(data[key]) if whole else data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{key}={value!r} must be a number")
    return value


def hugging_face_class(config: BertConfig, heads: Mapping[str, int | None]) -> str | None:
    """The name of the class with exactly these heads, if there is one."""
    family = FAMILIES[config.family]
    if config.parts.causal and tuple(heads) == ("masked_word",):
        return family.causal_class
    return family.classes.get(tuple(sorted(heads)))


def heads_of(name: str, architecture: str | None, tensors: set[str]) -> tuple[str, ...]:
    """The heads of a checkpoint: those of its class, or for an unknown class those whose tensors it has.

    A head without any tensor in the file does not count, whatever the class is.
    """
    family = FAMILIES[name]
    if architecture in family.heads_of_class:
        candidates = family.heads_of_class[architecture]
    else:  # `classifier` alone may be for classes, tags or choices
        candidates = tuple(head for head in family.heads if head in ("masked_word", "next_sentence", "replaced_token"))
    tied = {first for second, first in family.tied.items() if second in tensors}
    tied |= set() if family.kind == "encoder" else set(family.tied)  # GPT's vocabulary head has no tensor of its own
    return tuple(head for head in candidates if _head_tensors(family, head) & (tensors | tied))


def clean_names(tensors: Mapping[str, Tensor], name: str) -> dict[str, str]:
    """Name in the file -> current name in the family: no wrappers, no old endings, with the base model's prefix."""
    family, cleaned = FAMILIES[name], {}
    bases = {part.split(".")[0] for value in family.encoder.values() for part in _parts(value)}
    bases |= {"pooler"} if family.heads[""] else set()
    stored = [name for row in family.stored.values() for name in row.names if name.startswith(family.prefix)]
    bases |= {name.removeprefix(family.prefix).split(".")[0] for name in stored}
    for original in tensors:
        name = _unwrapped(original, family.prefix)
        for old, new in OLD_ENDINGS.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name.split(".")[0] in bases and not name.startswith(family.prefix):
            name = family.prefix + name
        cleaned[original] = name
    repeated = [name for name, count in Counter(cleaned.values()).items() if count > 1]
    if repeated:
        raise RequestError(
            f"the file holds {repeated[0]} under two names, {_sources(cleaned, repeated[0])}; remove one"
        )
    return cleaned


def _unwrapped(name: str, base: str) -> str:
    """The name without any number of wrappers' prefixes; the base model's own prefix stays."""
    while wrapper := next((prefix for prefix in WRAPPERS if prefix != base and name.startswith(prefix)), None):
        name = name.removeprefix(wrapper)
    return name


def _sources(cleaned: Mapping[str, str], name: str) -> str:
    return " and ".join(original for original, clean in cleaned.items() if clean == name)


def fill_model(model: BertModel, tensors: Mapping[str, Tensor], *, seed: int = 0, native: bool = False) -> LoadReport:
    """Put a checkpoint's tensors into a model on the meta device; missing tensors of heads are drawn from `seed`."""
    family = FAMILIES[model.config.family]
    cleaned = {name: name for name in tensors} if native else clean_names(tensors, family.name)
    present = {name: tensors[original] for original, name in cleaned.items()}
    tied = {second: first for second, first in family.tied.items() if second in present}
    for second, first in tied.items():
        present.setdefault(first, present[second])
    equal = {second for second, first in tied.items() if torch.equal(present[second], present[first])}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state, used, new = {}, set(), []
    for ours, theirs in state_names(model, native=native):
        if all(name in present for name in theirs):
            stored = None if native else stored_form(family, ours)
            parts = present if stored is None else {name: stored.read(present[name]) for name in theirs}
            state[ours] = _fitted(ours, theirs, parts, shapes[ours])
            used |= set(theirs)
        else:
            new.append(ours)
    _require_encoder(new)
    _refuse_more_encoder(family, set(cleaned.values()) - used)
    _assign(model, state, new, seed)
    unused = {original: name for original, name in cleaned.items() if name not in used}
    dropped = {original: _why_dropped(name, tied, equal, family) for original, name in unused.items()}
    return LoadReport(tuple(original for original, name in cleaned.items() if name in used), dropped, tuple(new))


def model_tensors(model: BertModel, *, native: bool = False) -> dict[str, Tensor]:
    """The model's tensors under Hugging Face's names, or bertkit's (`native`); a base model's have no prefix."""
    state, family = model.state_dict(), FAMILIES[model.config.family]
    prefix = "" if model.heads else family.prefix
    tensors = {}
    for ours, theirs in state_names(model, native=native):
        stored = None if native else stored_form(family, ours)
        for name, part in zip(theirs, state[ours].chunk(len(theirs)), strict=True):
            written = part if stored is None else stored.write(part, model.config.heads)
            tensors[name.removeprefix(prefix)] = written.detach().contiguous()
    return tensors


def state_names(model: BertModel, *, native: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every tensor of the model: bertkit's name, and the names of its parts in the file."""
    family = FAMILIES[model.config.family]
    table = _table(family, tuple(model.heads), model.config)
    for ours in model.state_dict():
        if ours in model.tied:  # not stored twice
            continue
        if native:
            yield ours, (ours,)
            continue
        if (stored := stored_form(family, ours)) is not None:
            yield ours, stored.names
            continue
        stem, _, ending = ours.rpartition(".")
        theirs = table.get(stem)
        if theirs is None:
            raise RequestError(f"Hugging Face's {family.name} has no place for {ours}")
        yield ours, tuple(f"{name}.{ending}" for name in theirs)


def has_class(config: BertConfig, heads: Mapping[str, int | None], pooler: bool) -> bool:
    """Whether a Hugging Face class has this encoder, these heads and this pooler."""
    pooler_known = not pooler or bool(heads) or "pooler.dense" in FAMILIES[config.family].heads[""]
    return hugging_face_class(config, heads) is not None and pooler_known


def _table(family: Family, heads: tuple[str, ...], config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Name in bertkit -> names in Hugging Face's file, both complete, with a row for each layer."""
    encoder = {
        f"encoder.{ours}": tuple(family.prefix + name for name in _parts(theirs))
        for ours, theirs in family.encoder.items()
    }
    table = _numbered(encoder, config.depth)
    for head in ("", *heads):
        rows = {ours: _parts(theirs) for ours, theirs in family.heads.get(head, {}).items()}
        table |= _numbered(rows, config.decoder_depth)
    return table


def _numbered(rows: Mapping[str, tuple[str, ...]], depth: int) -> dict[str, tuple[str, ...]]:
    """The rows, those with {i} once for each layer."""
    return {
        ours.format(i=index): tuple(name.format(i=index) for name in theirs)
        for ours, theirs in rows.items()
        for index in (range(depth) if "{i}" in ours else (0,))
    }


def stored_form(family: Family, ours: str) -> Stored | None:
    """How the file holds a tensor that is stored in another form; None: as it is."""
    if not family.stored:
        return None
    number = re.search(r"\.(\d+)\.", ours)
    row = family.stored.get(ours.replace(number[0], ".{i}.") if number else ours)
    index = number[1] if number else 0
    return None if row is None else replace(row, names=tuple(name.format(i=index) for name in row.names))


def _parts(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _head_tensors(family: Family, head: str) -> set[str]:
    rows: Names = family.heads.get(head, {})
    stems = [name for ours, theirs in rows.items() if ours.startswith("heads.") for name in _parts(theirs)]
    return {f"{stem.format(i=0)}.{ending}" for stem in stems for ending in ("weight", "bias")}


def _fitted(ours: str, theirs: tuple[str, ...], present: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """A tensor of the model, concatenated from the file's, in float32; shape and values are checked."""
    parts = [present[name] for name in theirs]
    rows = shape[0] // len(parts) if shape else 0
    for name, part in zip(theirs, parts, strict=True):
        if part.dtype not in WEIGHT_DTYPES or part.layout != torch.strided or part.is_meta:
            raise RequestError(f"{name} is {part.dtype} ({part.layout}); weights must be plain floating-point numbers")
        expected = (rows, *shape[1:]) if shape else ()
        if tuple(part.shape) != expected:
            raise RequestError(
                f"{name} has shape {tuple(part.shape)} in the file, but config.json makes it {expected}; "
                "the weights and the config belong to different models"
            )
        if not torch.isfinite(part.float()).all():
            raise RequestError(f"{name} holds NaN or infinity; the file is damaged or was saved by a run that diverged")
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).float()


def _require_encoder(new: list[str]) -> None:
    missing = [name for name in new if name.startswith("encoder.")]
    if missing:
        raise RequestError(
            f"the file lacks {len(missing)} tensors of the encoder, the first being {missing[0]}; "
            "it is not a whole model of the kind its config.json describes"
        )


def _refuse_more_encoder(family: Family, unused: set[str]) -> None:
    """Refuse layers or tables in the file that the config does not have: the vectors would be another model's."""
    names = [family.prefix + name for value in family.encoder.values() for name in _parts(value)]
    names += [name for value in family.heads.get("decoder", {}).values() for name in _parts(value)]
    stems = [re.escape(name) for name in names]
    encoder = re.compile("(" + "|".join(stem.replace(r"\{i\}", r"\d+") for stem in stems) + r")\.(weight|bias)")
    more = sorted(name for name in unused if encoder.fullmatch(name) and not name.endswith(family.unused))
    if more:
        raise RequestError(
            f"the file holds {len(more)} tensors of the encoder that config.json has no place for, such as {more[0]}; "
            "the weights and the config belong to different models"
        )


def _assign(model: BertModel, state: dict[str, Tensor], new: list[str], seed: int) -> None:
    """Tensors stay in the mapped file, except the heads': MKL's last bits depend on a matrix's alignment.

    Engines copy the layers' weights anyway; the word embeddings are too large for a copy.
    """
    for name in new:
        state[name] = torch.empty(model.get_parameter(name).shape)
    for name, tensor in state.items():
        if not name.startswith("encoder.") and tensor.data_ptr() % ALIGNMENT:
            state[name] = tensor.clone()
    state |= {second: state[first] for second, first in model.tied.items()}
    model.load_state_dict(state, assign=True)
    tie(model)
    initialize(model, seed=seed, only=new)


def _why_dropped(name: str, tied: Mapping[str, str], equal: set[str], family: Family) -> str:
    if name in tied:
        return f"a copy of {tied[name]}" if name in equal else f"the model uses {tied[name]} in its place"
    if name.endswith(family.constants):
        return "a constant, which bertkit computes"
    if name.endswith(family.unused):
        return "not used by this model"
    if name.endswith("position_ids"):
        return "a constant buffer of old versions"
    return "no part of this model"
