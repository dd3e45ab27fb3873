"""The models of one server by name; models with equal encoders share one, and so its forward pass."""

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from bertkit.checkpoint.bundled import SENTENCES, bundled_folder, embedding_model, model_folder, model_name
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
    def explains(self) -> bool:
        """Whether attribution can explain its predictions."""
        explained = self.answers is not None and type(self.answers.task).explain is not Task.explain
        return explained or self.bert.model.fills

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
) -> Models:
    """Load folders, each PATH or NAME=PATH, onto one device; without any, the bundled models."""
    use_backend = None if backend is None else pick(BACKENDS, backend, "backend")
    berts: dict[str, Bert] = {}
    bundled: set[str] = set()
    variant = None if arguments else embedding_model(dtype=dtype)
    bundled_models = [("bertkit", None), *([] if variant is None else [(SENTENCES, str(variant))])]
    for name, path in [_name_and_path(argument) for argument in arguments] or bundled_models:
        if name in berts:
            raise RequestError(f"two models are called '{name}'; name them apart, as NAME=PATH")
        berts[name] = load(path)
        if model_folder(path).is_relative_to(bundled_folder()):
            bundled.add(name)
        try:
            berts[name].to(device, dtype)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from error
        if berts[name].checkpoint.tokenizer is None:
            raise RequestError(f"{path} holds no tokenizer, so its model can read nothing; put its vocab.txt there")
    models = Models(share_encoders(berts, bundled), None if variant is None else SENTENCES)
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
