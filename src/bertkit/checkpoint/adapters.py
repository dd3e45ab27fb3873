"""Adapter folders in PEFT's layout: low-rank updates of a trunk's linear maps, and the heads that were trained with it.

`adapter_config.json` and `adapter_model.safetensors` are PEFT's; tensors are named after the trunk's file, so the rows
of families/ name them. bertkit adds `bertkit.json` with the task, and under "adapter" the trunk's checksum.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertkit.checkpoint.bundled import ADAPTER_FILE, bundled_folder, model_name
from bertkit.checkpoint.hugging_face import WEIGHT_DTYPES, clean_names, state_names, stored_form
from bertkit.checkpoint.tensors import fingerprint, read_object, read_safetensors, write_tensors
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES, json_object
from bertkit.model.encoder import Encoder
from bertkit.model.heads import outputs_of
from bertkit.model.low_rank import LowRankUpdate, Updates, stacked
from bertkit.model.model import BertModel, tie

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
STORED = torch.float16  # rank 8 and a head are then under 1 MB for small models; PEFT converts it to float32
# PEFT's kind of task -> bertkit's head.
TASK_TYPES = {"SEQ_CLS": "classify", "TOKEN_CLS": "tag", "QUESTION_ANS": "answer"}
# What these say of the computation is not `W + scale * up @ down`, so any other value is refused.
PLAIN_FIELDS: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # others also change the trunk
}
NO_FIELDS = (
    *("use_dora", "lora_bias", "use_qalora", "use_bdlora", "layer_replication", "trainable_token_indices"),
    *("target_parameters", "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config"),
    *("monteclora_config", "megatron_config"),
)


@dataclass(frozen=True)
class Adapter:
    """An adapter as it is on disk."""

    folder: Path
    config: Mapping[str, Any]  # adapter_config.json
    settings: Mapping[str, Any]  # bertkit.json; empty for PEFT's own folders
    tensors: Mapping[str, Tensor]  # without PREFIX

    @property
    def base(self) -> str:
        """The name or folder of its trunk; "" if the folder does not say."""
        return str(self.config.get("base_model_name_or_path") or "")

    @property
    def own(self) -> Mapping[str, Any]:
        """What bertkit notes beside PEFT's settings: heads, pooling, the trunk's checksum, whether names are ours."""
        noted = self.settings.get("adapter", {})
        return noted if isinstance(noted, dict) else {}

    def describe(self) -> dict[str, Any]:
        """Its trunk, rank, scale and number of linear maps."""
        maps = sum(name.endswith(DOWN) for name in self.tensors)
        scaling = {"LoRA rank": self.config["r"], "alpha": self.config["lora_alpha"]}
        return {"adapter of": self.base, **scaling, "maps": maps}

    def refused(self, problem: str) -> RequestError:
        """An error that names the folder."""
        return RequestError(f"{self.folder}: {problem}")


@dataclass(frozen=True)
class Attached:
    """A model that has the trunk's encoder itself and heads of its own, and the updates of the encoder's matrices."""

    model: BertModel
    updates: Updates


class PartUpdate(NamedTuple):
    """The update, without its scale, of part `number` of a matrix."""

    matrix: str
    number: int
    update: LowRankUpdate


@dataclass(frozen=True)
class _Map:
    """Where a linear map of the file is in the model: part `number` of `count` by rows."""

    matrix: str
    number: int
    count: int


def read_adapter(folder: Path) -> Adapter:
    """Read and check a folder, without its trunk."""
    config = read_object(folder / ADAPTER_FILE)
    try:
        _check_config(config)
    except RequestError as error:
        raise RequestError(f"{folder / ADAPTER_FILE}: {error}") from error
    if not (folder / WEIGHTS).is_file():
        raise RequestError(f"{folder} holds no {WEIGHTS}, which {ADAPTER_FILE} needs; copy the whole folder again")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_safetensors(folder / WEIGHTS).items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in WEIGHT_DTYPES or not torch.isfinite(tensor).all():
            problem = "holds NaN or infinity" if tensor.is_floating_point() else f"is {tensor.dtype}"
            raise RequestError(f"{folder / WEIGHTS}: {name} {problem}; train the adapter again")
    settings = read_object(folder / "bertkit.json") if (folder / "bertkit.json").is_file() else {}
    return Adapter(folder, config, settings, tensors)


def trunk_checksum(encoder: Encoder) -> str:
    """By which an adapter knows its trunk: of the encoder's parameters."""
    return fingerprint(encoder.state_dict())


def trunk_name(folder: Path) -> str:
    """What an adapter calls its trunk: a model of the package by its name, any other by its absolute path."""
    bundled = folder.absolute().is_relative_to(bundled_folder())
    return model_name(folder) if bundled else str(folder.resolve())


def attach(adapter: Adapter, trunk: BertModel, *, where: str, checksum: str | None = None) -> Attached:
    """The adapter on a trunk, which is not changed; another trunk than its own is refused.

    `where` names the trunk in errors; `checksum` is its `trunk_checksum`, if that is known already.
    """
    known = adapter.own.get("trunk")
    found = None if known is None else checksum or trunk_checksum(trunk.encoder)
    if known != found:
        raise adapter.refused(
            f"this adapter belongs to {adapter.base} (encoder {str(known)[:12]}), not to {where} (encoder "
            f"{str(found)[:12]}); name its own trunk, as in bertkit.load(adapter, base=...)"
        )
    model = _with_heads(adapter, trunk)
    updates, whole = _read_tensors(adapter, model)
    _fill_heads(adapter, model, trunk, {name: u for name, u in updates.items() if not _in_encoder(name)}, whole)
    return Attached(model.eval(), {name: update for name, update in updates.items() if _in_encoder(name)})


def adaptable(model: BertModel, *, native: bool) -> dict[str, tuple[str, ...]]:
    """The weights of the layers' linear maps, and the names of each in the file: several if they are parts by rows."""
    prefix = "encoder.layers."
    return {name: names for name, names in _linear_maps(model, native=native).items() if name.startswith(prefix)}


def write_adapter(
    folder: Path,
    model: BertModel,
    trunk: Path,
    scaling: tuple[int, float],
    updates: Iterable[PartUpdate],
    *,
    native: bool,
) -> dict[str, Any]:
    """Write PEFT's two files; returns what bertkit notes beside them (`Adapter.own`).

    The model has the encoder of `trunk`, and the heads to save. `native`: no class of transformers has its parts.
    """
    maps, tensors = adaptable(model, native=native), dict[str, Tensor]()
    for matrix, number, update in updates:
        stem = maps[matrix][number].removesuffix(".weight")
        tensors |= {stem + DOWN: update.down, stem + UP: update.up}
    targets = [name.removesuffix(DOWN) for name in tensors if name.endswith(DOWN)]
    prefix = FAMILIES[model.config.family].prefix
    state, modules = model.state_dict(), dict[str, None]()
    for ours, theirs in state_names(model, native=native):
        if not _in_encoder(ours):
            tensors |= dict(zip(theirs, state[ours].chunk(len(theirs)), strict=True))
            modules |= dict.fromkeys(name.removeprefix(prefix).split(".")[0] for name in theirs)
    stored = {PREFIX + name: tensor.detach().cpu().to(STORED).contiguous() for name, tensor in tensors.items()}
    write_tensors(stored, folder / WEIGHTS, metadata={"format": "pt"})
    config = _config_json(trunk_name(trunk), next(iter(model.heads)), scaling, targets, [*modules])
    (folder / ADAPTER_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / WEIGHTS).chmod((folder / ADAPTER_FILE).stat().st_mode)  # safetensors: readable for the owner only
    heads = {name: outputs_of(head) for name, head in model.heads.items()}
    checksum, pooling = trunk_checksum(model.encoder), model.config.parts.pooling
    return {"trunk": checksum, "heads": heads, "pooling": pooling, "native": native}


def _config_json(
    trunk: str, head: str, scaling: tuple[int, float], targets: list[str], modules: list[str]
) -> dict[str, Any]:
    """adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": {ours: theirs for theirs, ours in TASK_TYPES.items()}.get(head),
        "base_model_name_or_path": trunk,
        "r": scaling[0],
        "lora_alpha": scaling[1],
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": targets,
        "modules_to_save": modules,
    }


def _check_config(config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise RequestError(f"peft_type={config.get('peft_type')!r} is not supported, only 'LORA'")
    for name, valid in {**PLAIN_FIELDS, **dict.fromkeys(NO_FIELDS, (None, False, [], {}))}.items():
        if config.get(name, valid[0]) not in valid:
            raise RequestError(f"{name}={config[name]!r} is not supported; merge the adapter by PEFT and load that")
    for name, patterns, kind in (("r", "rank_pattern", int), ("lora_alpha", "alpha_pattern", (int, float))):
        by_pattern = json_object(config, patterns)
        for key, value in {name: config.get(name), **by_pattern}.items():
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                raise RequestError(f"{key}={value!r} must be a number over 0; copy the adapter again")


def _with_heads(adapter: Adapter, trunk: BertModel) -> BertModel:
    """A model with the adapter's heads, still without values, on the trunk's encoder."""
    heads = adapter.own.get("heads") or _guessed_heads(adapter, trunk)
    counts = heads.values() if isinstance(heads, dict) else [0]
    if not all(count is None or (isinstance(count, int) and count > 0) for count in counts):
        raise adapter.refused(f"heads={heads!r} in bertkit.json is not as bertkit writes it; copy the adapter again")
    own_heads = {name: outputs_of(head) for name, head in trunk.heads.items()}
    pooling = adapter.own.get("pooling", trunk.config.parts.pooling)
    config = replaced(trunk.config, parts=replaced(trunk.config.parts, pooling=pooling))
    with torch.device("meta"):
        model = BertModel(config, heads or own_heads, pooler=trunk.pooler is not None and not heads)
    model.encoder = trunk.encoder
    return model


def _guessed_heads(adapter: Adapter, trunk: BertModel) -> dict[str, int | None]:
    """Of PEFT's kind of task: the head, with as many outputs as it has in the file; empty: the trunk's own heads."""
    head = TASK_TYPES.get(str(adapter.config.get("task_type")))
    own = {name for name in trunk.heads if name in TASK_TYPES.values()}
    head = head or next(iter(own), None)
    names = {} if head is None else FAMILIES[trunk.config.family].heads.get(head, {})
    stem = names.get(f"heads.{head}.out")
    weight = adapter.tensors.get(f"{stem}.weight")
    if weight is None and head not in (None, *own):
        task = adapter.config["task_type"]
        raise adapter.refused(
            f"task_type={task}, but neither {WEIGHTS} nor the trunk {adapter.base} holds {stem}.weight"
        )
    return {} if head is None or weight is None else {head: len(weight)}


def _linear_maps(model: BertModel, *, native: bool) -> dict[str, tuple[str, ...]]:
    """The weights of all linear maps and their names in the file; not those that the file has in another form."""
    family = FAMILIES[model.config.family]
    weights = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    named = {ours: theirs for ours, theirs in state_names(model, native=native) if ours in weights}
    return {ours: theirs for ours, theirs in named.items() if native or stored_form(family, ours) is None}


def _read_tensors(adapter: Adapter, model: BertModel) -> tuple[Updates, dict[str, Tensor]]:
    """(the update of each matrix, the tensors that are stored whole by their names in the trunk's file)."""
    native = bool(adapter.own.get("native"))
    linear = _linear_maps(model, native=native)
    maps = {
        theirs.removesuffix(".weight"): _Map(ours, number, len(names))
        for ours, names in linear.items()
        for number, theirs in enumerate(names)
    }
    stems = {name: name.removesuffix(DOWN).removesuffix(UP) for name in adapter.tensors}
    cleaned = {stem: None for name, stem in stems.items() if stem != name}
    full = {stem: stem if native else _clean(f"{stem}.weight", model).removesuffix(".weight") for stem in cleaned}
    _check_targets(adapter, set(full.values()), maps)
    parts: dict[str, dict[int, LowRankUpdate]] = {}
    for stem, name in full.items():
        if name not in maps:
            raise adapter.refused(
                f"{stem} is no linear map of its trunk {adapter.base or '(not named)'}; name another trunk"
            )
        place = maps[name]
        shape = model.get_parameter(place.matrix).shape
        update = _update(adapter, stem, (shape[0] // place.count, shape[1]))
        parts.setdefault(place.matrix, {})[place.number] = update
    others = [name for name, stem in stems.items() if stem == name]
    whole = {name if native else _clean(name, model): adapter.tensors[name] for name in others}
    counts = {matrix: len(names) for matrix, names in linear.items()}
    updates = {name: _joined(found, counts[name], model.get_parameter(name)) for name, found in parts.items()}
    return updates, whole


def _clean(name: str, model: BertModel) -> str:
    """The name as the trunk's family has it, with the base model's prefix."""
    return clean_names({name: torch.empty(0)}, model.config.family)[name]


def _joined(parts: Mapping[int, LowRankUpdate], count: int, matrix: Tensor) -> LowRankUpdate:
    """The update of a whole matrix; parts without one have an update of rank 0."""
    rows, columns = len(matrix) // count, matrix.shape[1]
    none = LowRankUpdate(torch.zeros(rows, 0), torch.zeros(0, columns))
    return stacked([parts.get(number, none) for number in range(count)])


def _update(adapter: Adapter, stem: str, shape: tuple[int, int]) -> LowRankUpdate:
    """The update of one linear map, times its scale; both tensors must have the shapes that the config says."""
    rank = int(_by_pattern(adapter, "rank_pattern", stem, adapter.config["r"]))
    alpha = _by_pattern(adapter, "alpha_pattern", stem, adapter.config["lora_alpha"])
    for ending, expected in ((DOWN, (rank, shape[1])), (UP, (shape[0], rank))):
        tensor = adapter.tensors.get(stem + ending)
        if tensor is None:
            raise adapter.refused(f"{WEIGHTS} lacks {stem}{ending}; copy the adapter again")
        if tuple(tensor.shape) != expected:
            raise adapter.refused(
                f"{stem}{ending} has shape {tuple(tensor.shape)}, but r={rank} in {ADAPTER_FILE} and the trunk "
                f"{adapter.base} make it {expected}; name the trunk it was trained on, or copy the adapter again"
            )
    scale = alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
    down, up = (adapter.tensors[stem + ending].float() for ending in (DOWN, UP))
    return LowRankUpdate(up * scale, down)


def _by_pattern(adapter: Adapter, field: str, stem: str, default: float) -> float:
    """PEFT's exceptions for some linear maps: the first pattern that the end of the name matches."""
    patterns: Mapping[str, float] = adapter.config.get(field) or {}
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", stem)), default)


def _check_targets(adapter: Adapter, found: set[str], maps: Mapping[str, _Map]) -> None:
    """Refuse a target that the trunk does not have, and a map that a target names but the file lacks."""
    targets = adapter.config.get("target_modules")
    partial = any(adapter.config.get(name) for name in ("layers_to_transform", "exclude_modules"))
    for target in targets if isinstance(targets, list) else []:
        named = [name for name in maps if f".{name}".endswith(f".{target}")]
        if not named:
            raise adapter.refused(f"target_modules names {target!r}, which its trunk {adapter.base} does not have")
        missing = [name for name in named if name not in found and _in_encoder(maps[name].matrix)]
        if missing and not partial:
            raise adapter.refused(f"{WEIGHTS} lacks {missing[0]}{DOWN}; copy the adapter again")


def _fill_heads(
    adapter: Adapter, model: BertModel, trunk: BertModel, updates: Updates, whole: Mapping[str, Tensor]
) -> None:
    """Give heads and pooler their values: those of the adapter, else the trunk's, plus their updates."""
    state, earlier, left = dict[str, Tensor](), trunk.state_dict(), dict(whole)
    for ours, theirs in state_names(model, native=bool(adapter.own.get("native"))):
        if _in_encoder(ours):
            continue
        shape = model.state_dict()[ours].shape
        if all(name in left for name in theirs):
            value = torch.cat([left.pop(name) for name in theirs]).float()
        elif ours in earlier and earlier[ours].shape == shape:
            value = earlier[ours]
        else:
            raise adapter.refused(
                f"neither {WEIGHTS} nor the trunk {adapter.base} holds {theirs[0]}; "
                "save it with the adapter (modules_to_save)"
            )
        if value.shape != shape:
            raise adapter.refused(f"{theirs[0]} has shape {tuple(value.shape)}, but the trunk makes it {tuple(shape)}")
        state[ours] = value + updates[ours].matrix.to(value) if ours in updates else value
    if left:
        raise adapter.refused(f"{next(iter(left))} is neither a low-rank update nor part of a head; train without it")
    model.load_state_dict(state, strict=False, assign=True)
    tie(model)


def _in_encoder(name: str) -> bool:
    return name.startswith("encoder.")
