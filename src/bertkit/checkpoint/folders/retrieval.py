"""Folders of sentence-transformers' SparseEncoder (SPLADE) and MultiVectorEncoder (ColBERT), read and written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertkit._version import __version__
from bertkit.checkpoint.folders.modules import (
    LENGTH_FILE,
    PROMPT_FILE,
    TOKENS,
    dense_pairs,
    ordered_modules,
    read_dense,
    transformer_settings,
    write_dense,
    write_json,
    write_modules,
)
from bertkit.checkpoint.tensors import read_object
from bertkit.errors import RequestError
from bertkit.model.retrieval import DOCUMENT, QUERY, Expansion, LateSettings, RetrievalSettings, SparseSettings

MODULE_CLASSES = {
    "Transformer": "base.modules.transformer.Transformer",
    "SpladePooling": "sparse_encoder.modules.splade_pooling.SpladePooling",
    "Dense": "base.modules.dense.Dense",
    "MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "Normalize": "base.modules.normalize.Normalize",
}
ON_TOKENS = {"module_input_name": TOKENS, "module_output_name": TOKENS}


@dataclass(frozen=True)
class FolderKind:
    """A row of FOLDER_KINDS: the modules of a kind of folder, in order, and how they are read and written."""

    modules: tuple[str, ...]
    settings: type[RetrievalSettings]
    read: Callable[[Path, Sequence[tuple[str, Path]], int], RetrievalSettings]
    write: Callable[[Path, Any], None]
    similarities: tuple[str, ...]  # names of its scores; the first is the default


def read_retrieval(folder: Path, hidden: int) -> RetrievalSettings | None:
    """How the folder's sparse or late vectors are made; None if it has neither. `hidden` is the encoder's width."""
    kind = FOLDER_KINDS.get(str(_config(folder).get("model_type")))
    return None if kind is None else kind.read(folder, ordered_modules(folder, kind.modules), hidden)


def write_retrieval(folder: Path, settings: RetrievalSettings) -> None:
    """Write the same settings as modules."""
    name, kind = next((name, kind) for name, kind in FOLDER_KINDS.items() if isinstance(settings, kind.settings))
    kind.write(folder, settings)
    versions = {"bertkit": __version__}
    prompts = {QUERY: settings.query_prefix, DOCUMENT: settings.document_prefix}
    mean = isinstance(settings, LateSettings) and settings.mean
    config = {"__version__": versions, "model_type": name, "prompts": prompts, "default_prompt_name": None}
    write_json(folder / PROMPT_FILE, {**config, "similarity_fn_name": kind.similarities[int(mean)]})


def _config(folder: Path) -> dict[str, Any]:
    return read_object(folder / PROMPT_FILE) if (folder / PROMPT_FILE).is_file() else {}


def _prefixes(folder: Path) -> dict[str, str]:
    """The prompts named query and document; sentence-transformers uses no other, and no default, for these two."""
    prompts = _config(folder).get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(prompts.get(side), str | None) for side in (QUERY, DOCUMENT)
    ):
        raise RequestError(f"{folder / PROMPT_FILE}: prompts must name texts, not {prompts!r:.80}")
    return {f"{side}_prefix": prompts.get(side) or "" for side in (QUERY, DOCUMENT)}


def _similarity(folder: Path, known: Sequence[str]) -> str:
    """The name of the folder's scores."""
    name = _config(folder).get("similarity_fn_name") or known[0]
    if name not in known:
        raise RequestError(
            f"{folder / PROMPT_FILE}: scores by {name!r} are not supported here, only {', '.join(known)}"
        )
    return str(name)


def _read_sparse(folder: Path, modules: Sequence[tuple[str, Path]], hidden: int) -> SparseSettings:
    task = transformer_settings(folder).get("transformer_task", "fill-mask")
    if [kind for kind, _ in modules] != list(SPARSE.modules) or task != "fill-mask":
        raise RequestError(
            f"{folder / 'modules.json'}: a sparse model is a Transformer with transformer_task='fill-mask' and "
            f"SpladePooling, not {' and '.join(kind for kind, _ in modules)} with {task!r}"
        )
    _similarity(folder, SPARSE.similarities)
    data = read_object(modules[1][1] / "config.json")
    try:
        how = {"pooling": data.get("pooling_strategy", "max"), "activation": data.get("activation_function", "relu")}
        return SparseSettings(**how, **_prefixes(folder))
    except RequestError as error:
        raise RequestError(f"{modules[1][1] / 'config.json'}: {error}") from error


def _write_sparse(folder: Path, settings: SparseSettings) -> None:
    pooling = {"pooling_strategy": settings.pooling, "activation_function": settings.activation}
    write_modules(
        folder,
        [
            (MODULE_CLASSES["Transformer"], None),
            (MODULE_CLASSES["SpladePooling"], {**pooling, "embedding_dimension": None}),
        ],
    )
    text = {"text": {"method": "forward", "method_output_name": "logits"}}
    settings_of_transformer = {"transformer_task": "fill-mask", "modality_config": text, "module_output_name": TOKENS}
    write_json(folder / LENGTH_FILE, settings_of_transformer)


def _read_late(folder: Path, modules: Sequence[tuple[str, Path]], hidden: int) -> LateSettings:
    if _config(folder).get("model_type") == "ColBERT":
        raise RequestError(
            f"{folder / PROMPT_FILE} is PyLate's; load the folder with sentence-transformers' MultiVectorEncoder "
            "and save it, then bertkit reads it"
        )
    paths = dict(modules)
    mask = read_object(paths["MultiVectorMask"] / "config.json") if "MultiVectorMask" in paths else {}
    if mask.get("keep_only_token_ids"):
        raise RequestError(f"{paths['MultiVectorMask'] / 'config.json'}: keep_only_token_ids is not supported")
    if "Normalize" in paths:
        _check_normalize(paths["Normalize"] / "config.json")
    transformer = transformer_settings(folder)
    expansion = transformer.get("query_expansion") if "MultiVectorMask" in paths else None
    return LateSettings(
        dense=read_dense((path for kind, path in modules if kind == "Dense"), hidden, TOKENS),
        normalize="Normalize" in paths,
        query_length=_length(folder, transformer, "query_length"),
        document_length=_length(folder, transformer, "document_length"),
        expansion=None if expansion is None else _read_expansion(folder, expansion),
        skipped=_names(paths, mask, "skiplist_words", ()),
        skipped_on=_names(paths, mask, "skiplist_tasks", (DOCUMENT,)),
        mean=_similarity(folder, LATE.similarities) == LATE.similarities[1],
        **_prefixes(folder),
    )


def _length(folder: Path, settings: Mapping[str, Any], name: str) -> int | None:
    length = settings.get(name)
    if length is not None and (type(length) is not int or length < 3):
        raise RequestError(f"{LENGTH_FILE} of {folder}: {name}={length!r} must be a whole number from 3")
    return length


def _names(paths: Mapping[str, Path], mask: Mapping[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    names = mask.get(name)
    if names is None:
        return default
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise RequestError(f"{paths['MultiVectorMask'] / 'config.json'}: {name} must list words, not {names!r:.80}")
    return tuple(names)


def _check_normalize(path: Path) -> None:
    """Refuse a Normalize module of whole texts, which have no vector here."""
    data = read_object(path) if path.is_file() else {}
    if data.get("module_input_name") != TOKENS:
        raise RequestError(f"{path}: module_input_name must be {TOKENS!r} for vectors of tokens")


def _read_expansion(folder: Path, data: Mapping[str, Any]) -> Expansion:
    place = f"{LENGTH_FILE} of {folder}: query_expansion"
    if not isinstance(data, Mapping) or data.get("strategy") not in ("fixed", "min"):
        raise RequestError(f"{place} must have the strategy 'fixed' or 'min', not {data!r:.80}")
    try:
        attend = bool(data.get("attend"))
        return Expansion(data.get("length", 0), data["strategy"] == "fixed", attend, data.get("token"))
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from error


def _write_late(folder: Path, settings: LateSettings) -> None:
    dense = dense_pairs(settings.dense)
    mask = {
        "skiplist_words": [*settings.skipped],
        "skiplist_tasks": [*settings.skipped_on],
        "keep_only_token_ids": None,
    }
    configs: dict[str, dict[str, Any]] = {"MultiVectorMask": mask, "Normalize": {**ON_TOKENS}}
    kinds = ["Transformer", *["Dense"] * len(dense), "MultiVectorMask", *["Normalize"] * settings.normalize]
    paths = write_modules(folder, [(MODULE_CLASSES[kind], configs.get(kind)) for kind in kinds])
    for path, (linear, activation) in zip(paths[1:], dense, strict=False):
        write_dense(path, linear, activation, **ON_TOKENS)
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    text = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    transformer = {"transformer_task": "feature-extraction", "modality_config": text, "module_output_name": TOKENS}
    expansion = None if settings.expansion is None else _expansion_json(settings.expansion)
    optional = {key: value for key, value in {**lengths, "query_expansion": expansion}.items() if value is not None}
    write_json(folder / LENGTH_FILE, {**transformer, **optional})


def _expansion_json(expansion: Expansion) -> dict[str, Any]:
    strategy = "fixed" if expansion.fixed else "min"
    return {
        "strategy": strategy,
        "attend": expansion.attend,
        "token": expansion.token,
        "length": expansion.length,
    }


SPARSE = FolderKind(("Transformer", "SpladePooling"), SparseSettings, _read_sparse, _write_sparse, ("dot",))
LATE = FolderKind(
    ("Transformer", "Dense", "MultiVectorMask", "Normalize"),
    LateSettings,
    _read_late,
    _write_late,
    ("maxsim", "meanmaxsim"),
)
# By model_type of config_sentence_transformers.json; "ColBERT" is PyLate's.
FOLDER_KINDS: Mapping[str, FolderKind] = MappingProxyType(
    {"SparseEncoder": SPARSE, "MultiVectorEncoder": LATE, "ColBERT": LATE}
)
