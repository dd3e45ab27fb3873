"""The models of one server by name; models with equal encoders share one, and so its forward pass."""

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bertkit.checkpoint.adapters import Adapter, read_adapter, trunk_checksum
from bertkit.checkpoint.bundled import (
    SENTENCES,
    bundled_folder,
    embedding_model,
    is_adapter,
    model_folder,
    model_name,
)
from bertkit.checkpoint.save_load import attached_checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.engine.adapters import EncoderAdapter
from bertkit.engine.cuda_graph import CudaRecorder
from bertkit.engine.recorded import RecordedPasses
from bertkit.errors import RequestError
from bertkit.model.attention import takes_packed
from bertkit.model.encoder import Encoder
from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import tie
from bertkit.model.pooling import EmbedSettings
from bertkit.predict.answers import Answers
from bertkit.predict.bert import BACKENDS, Bert, load
from bertkit.predict.quantize import int8_maps
from bertkit.predict.questions import answerable
from bertkit.serve.engine import SharedEncoder
from bertkit.serve.refusals import Refusal
from bertkit.settings import pick
from bertkit.tasks.table import task_heads
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer

MAX_CACHED_SETTINGS = 256  # of each model
ZERO_SHOT = "zero-shot"  # the ability to classify by labels that come with a request


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One loaded model: its name, its abilities, and the encoder that computes its sequences."""

    name: str
    bert: Bert
    shared_encoder: SharedEncoder
    checksum: str  # of the encoder
    answers: Answers | None = None  # the task of a fine-tuned model
    bundled: bool = False  # whether it comes with the package
    trunk_checksum: str | None = None  # by which adapters know it; None: no adapter may be put on it
    trunk: str | None = None  # of an adapter: the name of the model whose encoder it shares

    @property
    def own_tensors(self) -> list[Tensor]:
        """Its parameters; of an adapter, those beside the trunk's."""
        adapter, model = self.shared_encoder.adapter, self.bert.model
        if adapter is None:
            return [*model.parameters()]
        updates = [tensor for update in adapter.updates.values() for tensor in (update.up, update.down)]
        return [*updates, *(tensor for name, tensor in model.named_parameters() if not name.startswith("encoder."))]

    def refuse_adapter(self, what: str) -> None:
        """Refuse what reads the encoder's weights themselves, which are the trunk's alone."""
        if self.trunk is not None:
            message = f"'{self.name}' is an adapter on '{self.trunk}', which a server computes without {what}"
            raise Refusal(422, f"{message}; ask bertkit.load(FOLDER) of the adapter", "model")

    @property
    def limit(self) -> int:
        """Maximum tokens of one sequence."""
        return self.bert.checkpoint.max_length

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.bert.tokenizer

    @cached_property
    def embed_settings(self) -> Callable[..., EmbedSettings]:
        """`Checkpoint.embed_settings`, cached: most requests ask for the same settings."""
        return lru_cache(MAX_CACHED_SETTINGS)(self.bert.checkpoint.embed_settings)

    @cached_property
    def width(self) -> Callable[[EmbedSettings], int]:
        """The width of an embedding, cached."""
        hidden = self.bert.model.config.width
        return lru_cache(MAX_CACHED_SETTINGS)(lambda settings: settings.width(hidden))

    @cached_property
    def first_segment_only(self) -> bool:
        """Whether all tokens of a single text are of the first segment, which every family has."""
        return not any(self.bert.tokenizer.encode("a").segments)

    @property
    def task(self) -> str | None:
        """The task it was fine-tuned for."""
        return self.answers.task.name if self.answers else None

    @property
    def ranks(self) -> bool:
        """Whether it was fine-tuned to score texts by a query."""
        return self.answers is not None and self.answers.task.row.ranks

    @property
    def explains(self) -> bool:
        """Whether attribution can explain its predictions."""
        explained = self.answers is not None and type(self.answers.task).explain is not Task.explain
        return self.trunk is None and (explained or self.bert.model.fills)

    @property
    def abilities(self) -> tuple[str, ...]:
        """The kinds of requests that it can answer: its own task first, then what its encoder can do."""
        task = (self.answers.task.row.route,) if self.answers else ()
        fill = ("fill",) if self.bert.model.fills else ()
        write = ("write",) if self.bert.model.writes else ()
        given = (ZERO_SHOT,) if self.bert.zero_shot.way else ()
        return tuple(dict.fromkeys((*task, *fill, *answerable(self.bert.model), *write, "embed", *given)))


class Models:
    """All models by name; the first one answers requests that name none, `embedder` those for embeddings."""

    def __init__(self, models: Sequence[ServedModel], embedder: str | None = None) -> None:
        if not models:
            raise RequestError("a server needs one model at least; name a folder")
        self._embedder = embedder
        self.by_name: Mapping[str, ServedModel] = {served.name: served for served in models}

    @property
    def shared_encoders(self) -> list[SharedEncoder]:
        """The different encoders."""
        return list({served.shared_encoder.key: served.shared_encoder for served in self.by_name.values()}.values())

    @property
    def on_cpu(self) -> bool:
        """Whether they run on the CPU."""
        return self.named(None).bert.model.device.type == "cpu"

    @property
    def abilities(self) -> set[str]:
        """The abilities of all models."""
        return {ability for served in self.by_name.values() for ability in served.abilities}

    @property
    def trunks(self) -> list[ServedModel]:
        """The models that adapters may be put on."""
        return [served for served in self.by_name.values() if served.trunk_checksum is not None]

    def add(self, served: ServedModel) -> None:
        """Serve one more model from now on. The table is replaced, not changed, so that any thread may read it."""
        self.refuse_taken(served.name)
        self.by_name = {**self.by_name, served.name: served}

    def refuse_taken(self, name: str) -> None:
        """Refuse a second model of a name."""
        if name in self.by_name:
            raise Refusal(409, f"the name '{name}' is taken; drop that adapter first, or choose another name", "name")

    def drop(self, name: str) -> ServedModel:
        """Take an adapter out of the table; requests that have it are still answered. Other models are refused."""
        served = self.named(name)
        if served.trunk is None:
            users = [other.name for other in self.by_name.values() if other.trunk == name]
            why = f"adapters use it ({', '.join(users)})" if users else "the server was started with it"
            raise Refusal(409, f"'{name}' is no adapter, and {why}; stop the server to drop it", "name")
        self.by_name = {other: served for other, served in self.by_name.items() if other != name}
        return served

    def named(self, name: str | None) -> ServedModel:
        """The model of this name; without one the first."""
        if name is None:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            raise Refusal(404, f"no model '{name:.60}' here; choose from: {', '.join(self.by_name)}", "model")
        return self.by_name[name]

    def embedder(self, name: str | None, *, pooling: object = None, layers: object = None) -> ServedModel:
        """The model for embeddings: that of this name; the one for it if nothing is named; else the first."""
        return self.named(self._embedder if name is None and pooling is None and layers is None else name)

    def reranker(self, name: str | None) -> ServedModel:
        """The model that compares texts with a query: that of this name; the first made for it; else `embedder`."""
        made = [served for served in self.by_name.values() if served.ranks]
        return made[0] if name is None and made else self.embedder(name)

    def able(self, name: str | None, ability: str) -> ServedModel:
        """The model of this name, or the first that can do it; one that cannot is refused."""
        if name is None:
            for served in self.by_name.values():
                if ability in served.abilities:
                    return served
            raise Refusal(404, f"no model here can {ability}; start the server with one that can")
        served = self.named(name)
        if ability not in served.abilities:
            raise Refusal(422, f"the model '{name}' cannot {ability}; it can {', '.join(served.abilities)}", "model")
        return served


def load_models(
    arguments: Sequence[str],
    device: torch.device,
    *,
    dtype: str = "float32",
    backend: str | None = None,
    load: Callable[[str | None], Bert] = load,
    as_trunks: bool = False,
) -> Models:
    """Load folders, each PATH or NAME=PATH, onto one device; without any, the bundled models.

    Adapters among them share the encoder of the model that they were trained on, which has to be there as well; one
    that is served alone is merged into it.
    `as_trunks`: adapters may be added later.
    """
    use_backend = None if backend is None else pick(BACKENDS, backend, "backend")
    berts: dict[str, Bert] = {}
    bundled: set[str] = set()
    variant = None if arguments else embedding_model(dtype=dtype)
    bundled_models = [("bertkit", None), *([] if variant is None else [(SENTENCES, str(variant))])]
    named = [_name_and_path(argument) for argument in arguments] or bundled_models
    folders = {name: model_folder(path) for name, path in named} if len(named) > 1 else {}
    adapters = {name: folder for name, folder in folders.items() if is_adapter(folder)}
    checksums: dict[str, str] = {}
    for name, path in named:
        if [other for other, _ in named].count(name) > 1:
            raise RequestError(f"two models are called '{name}'; name them apart, as NAME=PATH")
        if name in adapters:
            continue
        berts[name] = load(path)
        if adapters or as_trunks:
            checksums[name] = trunk_checksum(berts[name].model.encoder)
        if model_folder(path).is_relative_to(bundled_folder()):
            bundled.add(name)
        try:
            berts[name].to(device, dtype)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from error
        if berts[name].checkpoint.tokenizer is None:
            raise RequestError(f"{path} holds no tokenizer, so its model can read nothing; put its vocab.txt there")
    if not berts:
        trunk = read_adapter(next(iter(adapters.values()))).base or "TRUNK"
        raise RequestError(
            f"{' and '.join(adapters)}: adapters need their trunk beside them: bertkit serve {trunk} ..."
        )
    whole = [replace(each, trunk_checksum=checksums.get(each.name)) for each in share_encoders(berts, bundled)]
    models = Models(whole, None if variant is None else SENTENCES)
    for name, folder in adapters.items():
        models.add(serve_adapter(models.trunks, name, folder))
    if use_backend is not None:
        for bert in {served.shared_encoder.key: served.bert for served in models.by_name.values()}.values():
            use_backend(bert)
    return models


def share_encoders(berts: Mapping[str, Bert], bundled: Container[str] = ()) -> list[ServedModel]:
    """Models to serve; of equal encoders only the first is kept. `bundled` are the names of the package's own."""
    shared_encoders: dict[str, SharedEncoder] = {}
    served = []
    for name, bert in berts.items():
        checksum = encoder_checksum(bert.model.encoder)
        if checksum not in shared_encoders:
            shared_encoders[checksum] = new_shared_encoder(bert.model.encoder)
        shared_encoder = shared_encoders[checksum]
        _use_encoder(bert, shared_encoder.encoder)
        answers = bert.answers if set(task_heads()) & set(bert.model.heads) else None
        served.append(ServedModel(name, bert, shared_encoder, checksum, answers, name in bundled))
    return served


def serve_adapter(trunks: Sequence[ServedModel], name: str, folder: Path) -> ServedModel:
    """An adapter on the trunk among these that it was trained on: it shares the encoder and has heads of its own."""
    adapter = read_adapter(folder)
    trunk = _trunk_of(adapter, trunks)
    attached = attached_checkpoint(adapter, trunk.bert.checkpoint, trunk.trunk_checksum)
    bert, encoder = Bert(attached.checkpoint), trunk.shared_encoder.encoder
    if bert.model.writes:
        raise RequestError(f"{folder}: adapters of models that write cannot share a trunk; save and serve it merged")
    for part in (bert.model.heads, bert.model.pooler):
        if part is not None:
            part.to(bert.model.device, encoder.dtype)
    shared = SharedEncoder(encoder, None, EncoderAdapter.of(encoder, attached.updates))
    answers = bert.answers if set(task_heads()) & set(bert.model.heads) else None
    checksum = hashlib.sha256(f"{trunk.checksum} {fingerprint(adapter.tensors)}".encode()).hexdigest()
    return ServedModel(name, bert, shared, checksum, answers, trunk=trunk.name)


def _trunk_of(adapter: Adapter, trunks: Sequence[ServedModel]) -> ServedModel:
    """By its checksum; of an adapter that PEFT wrote, which has none, by its folder, else the only one."""
    known = adapter.own.get("trunk")
    if known is not None:
        found = [trunk for trunk in trunks if trunk.trunk_checksum == known]
    else:
        found = [trunk for trunk in trunks if adapter.base and trunk.bert.path == model_folder(adapter.base)]
        found = found or list(trunks) * (len(trunks) == 1)
    if found:
        return found[0]
    here = ", ".join(f"'{trunk.name}' (encoder {str(trunk.trunk_checksum)[:12]})" for trunk in trunks)
    own = f" (encoder {known[:12]})" if known else ""
    raise adapter.refused(f"its trunk is {adapter.base}{own}, and the models here are {here}; start the server with it")


def new_shared_encoder(encoder: Encoder) -> SharedEncoder:
    """For one encoder; on a GPU its passes are recorded, where its attention kernel takes packed batches."""
    if encoder.config.recurrent:
        return SharedEncoder(encoder, None)
    attention, config = encoder.stack[0].attention, encoder.config
    weight = attention.out.weight
    with torch.inference_mode():
        kernel = takes_packed(weight.new_empty(0, 3, config.heads, config.width // config.heads))
    packed = kernel and attention.relative is None  # kernels for packed batches take no relative positions
    return SharedEncoder(encoder, RecordedPasses(encoder, CudaRecorder(weight.device)) if packed else None)


def encoder_checksum(encoder: Encoder) -> str:
    """SHA-256 of an encoder's shape, parameters and quantization; dropout does not count."""
    config = encoder.config
    parts = replace(config.parts, word_head=None, pooler="tanh", pooler_norm=False, pooling="first", token_pooler=False)
    shape = replace(config, dropout=0.0, attention_dropout=0.0, init_std=0.02, parts=parts)
    digest = hashlib.sha256(repr(shape).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    for name, int8_map in int8_maps(encoder).items():  # which layers are quantized, and how
        digest.update(name.encode() + int8_map.unsmooth_I.numpy().tobytes())
    return digest.hexdigest()


def _use_encoder(bert: Bert, encoder: Encoder) -> None:
    """Replace the model's encoder by an equal, shared one; the masked-word head's weights are tied to it."""
    if bert.model.encoder is encoder:
        return
    bert.model.encoder = encoder
    if "masked_word" in bert.model.heads:
        head = bert.model.heads["masked_word"]
        assert isinstance(head, MaskedWordHead)
        head.decoder.weight = encoder.embeddings.word.weight
    if bert.model.decoder is not None:
        tie(bert.model)


def _name_and_path(argument: str) -> tuple[str, str | None]:
    """Of `NAME=PATH`; a plain path is named after its folder or run."""
    name, equals, path = argument.partition("=")
    if equals and name and "/" not in name and not Path(argument).exists():
        return name, path
    return model_name(Path(argument)), argument
