"""Load and save a model folder: config.json, weights, tokenizer, and bertkit.json for everything else."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bertkit._version import __version__
from bertkit.checkpoint import hugging_face, sentence_transformers
from bertkit.checkpoint.bundled import (
    ADAPTER_FILE,
    has_tokenizer,
    is_adapter,
    model_folder,
    model_name,
    tokenizer_folder,
    with_tokenizer,
)
from bertkit.checkpoint.folders.modules import PROMPT_FILE, transformer_folder
from bertkit.checkpoint.hub import download_hint
from bertkit.checkpoint.hugging_face import NATIVE_TYPE, LoadReport, architecture, config_from_json, config_to_json
from bertkit.checkpoint.sentence_transformers import CROSS_ENCODER_FIELDS
from bertkit.checkpoint.small import write_small
from bertkit.checkpoint.tensors import read_object, read_tensors, write_tensors
from bertkit.config import BertConfig
from bertkit.errors import RequestError, warn
from bertkit.families.family import FAMILIES
from bertkit.files import whole_folder
from bertkit.model.heads import HEADS as OUTPUT_HEADS
from bertkit.model.heads import outputs_of
from bertkit.model.model import BertModel, hide_masks
from bertkit.model.pooling import EmbedSettings, Layers
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.checkpoint.adapters import Adapter, PartUpdate
    from bertkit.model.low_rank import Updates
    from bertkit.model.retrieval import RetrievalSettings

MAX_LABELS = 1_000_000
# Fields of config.json that bertkit does not use but other tools do: they are saved again.
KEPT_FIELDS: tuple[str, ...] = (
    "problem_type",
    "classifier_dropout",
    "classifier_dropout_prob",
    "seq_classif_dropout",
    "qa_dropout",
    "summary_last_dropout",
    "decoder_start_token_id",
    "forced_eos_token_id",
    "bos_token_id",
    "eos_token_id",
    "cls_token_id",
    "sep_token_id",
    "embedding_dropout",
    *CROSS_ENCODER_FIELDS,
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a model folder holds."""

    model: BertModel
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()  # of the classify or tag head, in the order of its outputs
    embed: EmbedSettings | None = None  # None: the folder does not say
    retrieval: "RetrievalSettings | None" = None  # of models with sparse vectors, or vectors of tokens
    max_length: int = 512  # tokens of a text, [CLS] and [SEP] included
    settings: Mapping[str, Any] = field(default_factory=dict)  # of config.json, for other tools: see KEPT_FIELDS
    task: Mapping[str, Any] = field(default_factory=dict)  # of a fine-tuned model: name, decision, length policy, ...
    report: LoadReport = field(default_factory=lambda: LoadReport(()))
    folder: Path | None = None  # that it was loaded from

    @property
    def name(self) -> str:
        """What the model is called; "" if it was not loaded from a folder."""
        return "" if self.folder is None else model_name(self.folder)

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer; a checkpoint without one is refused."""
        if self.tokenizer is None:
            raise RequestError("this folder holds no tokenizer; pass one: bertkit.load(path, tokenizer='vocab.txt')")
        return self.tokenizer

    def embed_settings(
        self,
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> EmbedSettings:
        """The folder's settings with these changes; more dimensions than vectors have are refused."""
        changes: dict[str, Any] = {"pooling": pooling, "layers": layers, "normalize": normalize}
        changes |= {"dimensions": dimensions, "prompt_name": prompt_name}
        settings = (self.embed or EmbedSettings()).changed(**changes)
        settings.width(self.model.config.width)
        return settings


@dataclass(frozen=True)
class _Source:
    """A checkpoint as it is on disk."""

    config: BertConfig
    settings: Mapping[str, Any]  # the fields of config.json
    tensors: Mapping[str, Tensor]
    folder: Path
    dropped: Mapping[str, str] = field(default_factory=dict)


def load_checkpoint(
    path: Path | str | None,
    *,
    heads: Mapping[str, int | None] | None = None,
    tokenizer: Path | str | None = None,
    seed: int = 0,
    base: Path | str | None = None,
) -> Checkpoint:
    """Load a Hugging Face, sentence-transformers or Google folder; None and the names in `bundled` are bundled models.

    `heads` replaces the file's heads: tensors that the file lacks are drawn from `seed` and listed in the report. An
    adapter's folder is merged into its trunk: `base`, or the one that it names.
    """
    folder = model_folder(path)
    if is_adapter(folder):
        from bertkit.checkpoint.adapters import read_adapter
        from bertkit.model.low_rank import merge

        adapter = read_adapter(folder)
        trunk = load_checkpoint(_trunk_folder(adapter, base), tokenizer=tokenizer)
        attached = attached_checkpoint(adapter, trunk)
        merge(attached.checkpoint.model, attached.updates)
        return attached.checkpoint
    if base is not None:
        raise RequestError(f"{folder} is a whole model and has no base; leave base={base} out")
    source = _read_source(folder)
    model, report = _build_model(source, heads, seed)
    loaded_tokenizer = Tokenizer.load(tokenizer_folder(tokenizer)) if tokenizer else _tokenizer(source.folder)
    _check_vocabulary(loaded_tokenizer, source.config, folder)
    retrieval = _retrieval(folder, source)
    if retrieval is not None and retrieval.fills and heads is None and not model.fills:
        raise RequestError(f"{folder} is a sparse model, but its weights have no masked-word head; copy it again")
    if loaded_tokenizer is not None:
        hide_masks(model, loaded_tokenizer.mask_id)
    return Checkpoint(
        model=model.eval(),
        tokenizer=loaded_tokenizer,
        labels=_labels(source.settings) if _named_outputs(model.heads) else (),
        embed=_embed(folder, source) if retrieval is None else None,
        retrieval=retrieval,
        max_length=_max_length(folder, source),
        settings={key: source.settings[key] for key in KEPT_FIELDS if key in source.settings}
        | _cross_encoder_fields(folder),
        task=_task(source.folder),
        report=report,
        folder=folder,
    )


@dataclass(frozen=True)
class AttachedCheckpoint:
    """An adapter's checkpoint, whose model has the trunk's own encoder, and the updates of that encoder."""

    checkpoint: Checkpoint
    updates: "Updates"


def attached_checkpoint(adapter: "Adapter", trunk: Checkpoint, checksum: str | None = None) -> AttachedCheckpoint:
    """An adapter on a trunk in memory, which is not changed (`adapters.attach`)."""
    from bertkit.checkpoint.adapters import attach

    attached = attach(adapter, trunk.model, where=trunk.name or "this model", checksum=checksum)
    task, own = _task(adapter.folder), adapter.own.get("config", {})
    heads = {name: outputs_of(head) for name, head in attached.model.heads.items()}
    own_heads = {name: outputs_of(head) for name, head in trunk.model.heads.items()}
    outputs = next((heads[name] or 0 for name in heads if _named_outputs([name])), 0)
    labels = tuple(task.get("labels", ())) or (trunk.labels if heads == own_heads else ())
    checkpoint = replace(
        trunk,
        model=attached.model,
        labels=labels if len(labels) == outputs else tuple(f"LABEL_{i}" for i in range(outputs)),
        task=task,
        settings={**trunk.settings, **{key: own[key] for key in KEPT_FIELDS if key in own}},
        embed=trunk.embed if heads == own_heads else None,
        folder=adapter.folder,
    )
    return AttachedCheckpoint(checkpoint, attached.updates)


def _trunk_folder(adapter: "Adapter", base: Path | str | None) -> Path | str:
    """The folder of an adapter's trunk: `base`, or the one that it names."""
    named = adapter.base if base is None else base
    if not named:
        raise adapter.refused(f"{ADAPTER_FILE} names no trunk; name it, as in bertkit.load(adapter, base='FOLDER')")
    folder = model_folder(named)
    if is_adapter(folder):
        raise adapter.refused(f"its trunk {folder} is an adapter itself; save that one merged (bert.save), and name it")
    if not folder.exists():
        raise adapter.refused(f"its trunk {named} is not here; name it, as in bertkit.load(adapter, base='FOLDER')")
    return named


def save_checkpoint(checkpoint: Checkpoint, path: Path | str) -> None:
    """Write a folder that bertkit, transformers and, if possible, sentence-transformers load; whole or not at all."""
    _save(checkpoint, path, lambda tensors, folder: _save_tensors(tensors, folder / "model.safetensors"))


def save_adapter(
    checkpoint: Checkpoint, path: Path | str, trunk: Path, scaling: tuple[int, float], updates: "Iterable[PartUpdate]"
) -> None:
    """Write an adapter's folder, whole or not at all; the checkpoint's encoder is that of the model in `trunk`.

    `scaling` is rank and alpha; an update is that of a matrix's part, without the scale.
    """
    from bertkit.checkpoint.adapters import write_adapter

    _, native = folder_config(checkpoint.model, checkpoint.labels)
    with whole_folder(path) as folder:
        own = write_adapter(folder, checkpoint.model, trunk, scaling, updates, native=native)
        content = {**bertkit_settings(checkpoint), "adapter": {**own, "config": dict(checkpoint.settings)}}
        _write_json(folder / "bertkit.json", content)


def save_small(checkpoint: Checkpoint, path: Path | str, *, delta: bool = False, budget: int | None = None) -> None:
    """Save with rounded weights (`small`), a quarter of the size, which only bertkit loads.

    With `delta` the folder holds only what differs from the parent folder, itself a small one, which is needed to load
    it; with a `budget` of bytes too, only the strongest directions of the difference (`low_rank`).
    """
    base, changes = Path(path).absolute().parent if delta else None, None
    if budget is not None:
        from bertkit.checkpoint.low_rank import low_rank_changes

        changes = partial(low_rank_changes, budget=budget)
    _save(checkpoint, path, lambda tensors, folder: write_small(tensors, folder, base, changes), base, small=True)


def _save(
    checkpoint: Checkpoint,
    path: Path | str,
    write: Callable[[dict[str, Tensor], Path], None],
    base: Path | None = None,
    *,
    small: bool = False,
) -> None:
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    known = None if base is None else _tokenizer(base)
    settings, native = folder_config(model, checkpoint.labels)
    tensors = hugging_face.model_tensors(model, native=native)
    with whole_folder(path) as folder:
        _write_json(folder / "config.json", {**settings, **_generation_ids(checkpoint), **checkpoint.settings})
        write(tensors, folder)
        if tokenizer is not None and (known is None or known.hash != tokenizer.hash):
            tokenizer.save(folder, cls_last=model.config.parts.two_streams)
            state_length(folder / "tokenizer_config.json", checkpoint.max_length)
        if checkpoint.retrieval is not None:
            from bertkit.checkpoint.folders.retrieval import write_retrieval

            write_retrieval(folder, checkpoint.retrieval)
        # sentence-transformers cannot load small weights; its files are then needed only for dense layers.
        elif checkpoint.embed is not None and (not small or checkpoint.embed.dense is not None):
            sentence_transformers.write_settings(folder, checkpoint.embed, model.config.width, checkpoint.max_length)
        _write_json(folder / "bertkit.json", bertkit_settings(checkpoint))


def _generation_ids(checkpoint: Checkpoint) -> dict[str, int]:
    """The tokens with which generation starts and ends, for transformers; of models that generate."""
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    causal = model.config.parts.causal and "masked_word" in model.heads
    if tokenizer is None or not (causal or model.decoder is not None):
        return {}
    ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return ids if model.decoder is None else {**ids, "decoder_start_token_id": tokenizer.cls_id}


def folder_config(model: BertModel, labels: tuple[str, ...] = ()) -> tuple[dict[str, Any], bool]:
    """config.json for a model, and whether only bertkit reads it, because no Hugging Face class has its parts."""
    settings = config_to_json(model.config)
    heads = {name: outputs_of(head) for name, head in model.heads.items()}
    has_class = hugging_face.has_class(model.config, heads, model.pooler is not None)
    if settings["model_type"] != NATIVE_TYPE and has_class:
        settings["architectures"] = [hugging_face.hugging_face_class(model.config, heads)]
        if _named_outputs(heads):
            names = labels or tuple(f"LABEL_{i}" for i in range(next(iter(heads.values())) or 0))
            settings["id2label"] = {str(i): name for i, name in enumerate(names)}
            settings["label2id"] = {name: i for i, name in enumerate(names)}
        return settings, False
    data = config_to_json(model.config, native=True)
    return {**data, "heads": heads, "pooler": model.pooler is not None, "id2label": dict(enumerate(labels))}, True


def _named_outputs(heads: Iterable[str]) -> bool:
    """Whether config.json names the outputs of one of the heads."""
    return any(OUTPUT_HEADS[head].labels for head in heads)


def _build_model(source: _Source, heads: Mapping[str, int | None] | None, seed: int) -> tuple[BertModel, LoadReport]:
    """The model of a source, with its tensors."""
    native = source.settings.get("model_type") == NATIVE_TYPE
    chosen = _heads(source, native) if heads is None else dict(heads)
    if "masked_word" in chosen and source.settings.get("tie_word_embeddings") is False:
        raise RequestError(
            f"{source.folder}: tie_word_embeddings=false is not supported; the masked-word head is always tied"
        )
    with torch.device("meta"):
        model = BertModel(source.config, chosen, pooler=_has_pooler(source, native))
    try:
        report = hugging_face.fill_model(model, source.tensors, seed=seed, native=native)
    except RequestError as error:
        raise RequestError(f"{source.folder}: {error}") from error
    if heads is None and report.new:
        raise RequestError(
            f"{source.folder}: the file holds only a part of its head: {report.new[0]} is missing "
            f"({len(report.new)} such); copy it again, or ask for the heads you want to make anew"
        )
    return model, LoadReport(report.used, {**report.dropped, **source.dropped}, report.new)


def _read_source(folder: Path) -> _Source:
    if not (folder / "config.json").is_file():
        from bertkit.checkpoint.google import is_google

        if is_google(folder):
            return _read_google_source(folder)
    if not folder.is_dir():
        hint = download_hint(str(folder))
        raise RequestError(f"{folder} is not a folder; a model is a folder with config.json and weights{hint}")
    _refuse_broken_links(folder)
    if _is_sentence_transformers(folder):
        folder = transformer_folder(folder)
    settings = read_object(folder / "config.json")
    config = config_from_json(settings, str(folder / "config.json"))
    return _Source(config, settings, read_tensors(folder), folder)


def _is_sentence_transformers(folder: Path) -> bool:
    """Whether a sentence-transformers folder says how its vectors are made."""
    return (folder / "modules.json").is_file()


def _retrieval(folder: Path, source: _Source) -> "RetrievalSettings | None":
    """How a folder of sentence-transformers says that sparse or late vectors are made; None if it has neither."""
    if not _is_sentence_transformers(folder):
        return None
    from bertkit.checkpoint.folders.retrieval import read_retrieval

    return read_retrieval(folder, source.config.width)


def _cross_encoder_fields(folder: Path) -> dict[str, Any]:
    """Fields of config.json that a CrossEncoder's folder has in a file of its own."""
    return sentence_transformers.cross_encoder_fields(folder) if (folder / PROMPT_FILE).is_file() else {}


def _refuse_broken_links(folder: Path) -> None:
    """Model caches are made of links; a broken one would count as a missing file."""
    for path in folder.iterdir():
        if path.is_symlink() and not path.exists():
            raise RequestError(f"{path} is a link that leads nowhere; copy the file it should lead to")


def _read_google_source(path: Path) -> _Source:
    """A TensorFlow checkpoint, with its variables under Hugging Face's names."""
    from bertkit.checkpoint.google import read_google
    from bertkit.checkpoint.google_names import hugging_face_names

    google = read_google(path)
    renamed = hugging_face_names(google.variables)
    tensors = {name: torch.from_numpy(array) for name, array in renamed.tensors.items()}
    settings = {**google.config, "model_type": renamed.family}
    config = config_from_json(settings, f"the config of {path}")
    embedding_width = settings.get("embedding_size")
    if renamed.family == "bert" and embedding_width not in (
        None,
        config.width,
    ):  # Hugging Face's BERT has no such field
        config = replace(config, embedding_width=embedding_width)
    folder = google.vocab.parent if google.vocab else path if path.is_dir() else path.parent
    return _Source(config, settings, tensors, folder, renamed.ignored)


def _heads(source: _Source, native: bool) -> dict[str, int | None]:
    if native:
        return _native_heads(source)
    family = source.config.family
    names = set(hugging_face.clean_names(source.tensors, family).values())
    labels = len(_labels(source.settings))
    return {head: labels for head in hugging_face.heads_of(family, architecture(source.settings), names)}


def _native_heads(source: _Source) -> dict[str, int | None]:
    heads = source.settings.get("heads", {})
    valid = isinstance(heads, dict) and all(n is None or (isinstance(n, int) and n > 0) for n in heads.values())
    if not valid:
        raise RequestError(f"{source.folder / 'config.json'}: heads={heads!r} must name heads and their outputs")
    return dict(heads)


def _has_pooler(source: _Source, native: bool) -> bool:
    if native:
        return bool(source.settings.get("pooler"))
    stem = FAMILIES[source.config.family].heads[""].get("pooler.dense")
    names = hugging_face.clean_names(source.tensors, source.config.family).values()
    return f"{stem}.weight" in names


def _labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the labels by id; Hugging Face writes none if there are two without names."""
    names = settings.get("id2label")
    if not isinstance(names, dict) or not names:
        count = settings.get("num_labels", 2)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
            raise RequestError(f"config.json: num_labels={count!r} must be a whole number from 1 to {MAX_LABELS:,}")
        return tuple(f"LABEL_{i}" for i in range(count))
    try:
        order = sorted(names, key=int)
    except ValueError as error:
        raise RequestError("config.json: id2label must count labels from 0") from error
    if [int(key) for key in order] != list(range(len(order))):
        raise RequestError("config.json: id2label must count labels from 0 without gaps")
    return tuple(str(names[key]) for key in order)


def _tokenizer(folder: Path) -> Tokenizer | None:
    folder = with_tokenizer(folder)
    return Tokenizer.load(folder) if has_tokenizer(folder) else None


def _check_vocabulary(tokenizer: Tokenizer | None, config: BertConfig, folder: Path) -> None:
    if tokenizer is None:
        return
    if tokenizer.size > config.vocab_size:
        raise RequestError(
            f"{folder}: the tokenizer has {tokenizer.size} entries but the model only {config.vocab_size} rows; "
            "they belong to different models"
        )
    if tokenizer.size < 0.9 * config.vocab_size:
        sizes = f"{folder}: the tokenizer has {tokenizer.size} entries for the model's {config.vocab_size} rows"
        warn(f"{sizes}; make sure that they belong together")
    if max(tokenizer.encode("").segments) >= max(config.segments, 1):
        raise RequestError(f"{folder}: the tokenizer gives segments that the model has no rows for")


def _embed(folder: Path, source: _Source) -> EmbedSettings | None:
    """Of bertkit.json, with the dense layers of the folder's modules; else of the modules; None: neither."""
    saved = _bertkit_json(source.folder).get("embed")
    modules = _is_sentence_transformers(folder) and not _cross_encoder_fields(folder)
    found = sentence_transformers.read_settings(folder, source.config.width) if modules else None
    if not saved:
        return found
    try:
        return replace(EmbedSettings.read(saved), dense=None if found is None else found.dense)
    except (TypeError, KeyError, ValueError, RequestError) as error:
        path = source.folder / "bertkit.json"
        raise RequestError(f"{path}: embed is not as bertkit writes it: {error}") from error


def _max_length(folder: Path, source: _Source) -> int:
    """The smallest limit of the positions and of the folder's files."""
    limits = [source.config.max_length, _bertkit_json(source.folder).get("max_length")]
    tokenizer_config = source.folder / "tokenizer_config.json"
    if tokenizer_config.is_file():
        limits.append(read_object(tokenizer_config).get("model_max_length"))
    if _is_sentence_transformers(folder):
        limits.append(sentence_transformers.read_length(folder))
    known = [limit for limit in limits if limit is not None]
    for limit in known:
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 2:
            raise RequestError(f"{folder}: a length limit of {limit!r} leaves no room between [CLS] and [SEP]")
    return int(min(known))


def _task(folder: Path) -> dict[str, Any]:
    task = _bertkit_json(folder).get("task", {})
    if not isinstance(task, dict) or (task and not isinstance(task.get("name"), str)):
        raise RequestError(f"{folder / 'bertkit.json'}: task is not as bertkit writes it: it has no name")
    return task


def _bertkit_json(folder: Path) -> dict[str, Any]:
    path = folder / "bertkit.json"
    return read_object(path) if path.is_file() else {}


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    write_tensors(tensors, path, metadata={"format": "pt"})
    path.chmod((path.parent / "config.json").stat().st_mode)  # safetensors makes it readable for the owner only


def bertkit_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of bertkit.json."""
    settings: dict[str, Any] = {"bertkit": __version__, "max_length": checkpoint.max_length}
    if checkpoint.embed is not None:
        settings["embed"] = checkpoint.embed.as_json()
    if checkpoint.task:
        settings["task"] = dict(checkpoint.task)
    return settings


def state_length(path: Path, length: int) -> None:
    """Write the maximum length of a text to tokenizer_config.json, where transformers reads it."""
    settings = read_object(path) if path.is_file() else {}
    _write_json(path, {**settings, "model_max_length": length})


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
