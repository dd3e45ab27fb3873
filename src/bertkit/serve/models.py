"""The models of one server by name; models with equal encoders share one, and so its forward pass."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from bertkit.engine.cuda_graph import CudaRecorder
from bertkit.engine.recorded import RecordedPasses
from bertkit.errors import RequestError
from bertkit.model.attention import takes_packed
from bertkit.model.encoder import Encoder
from bertkit.model.heads import MaskedWordHead
from bertkit.model.pooling import EmbedSettings
from bertkit.predict.answers import Answers
from bertkit.predict.bert import BACKENDS, Bert, load
from bertkit.predict.quantize import int8_maps
from bertkit.serve.engine import SharedEncoder
from bertkit.serve.refusals import Refusal
from bertkit.settings import pick
from bertkit.tasks.table import task_heads
from bertkit.text.tokenizer import Tokenizer

SETTINGS_CACHED = 256  # different ones, of each model


@dataclass(frozen=True, eq=False)
class Served:
    """One loaded model: its name, what it can do, and the encoder that its sequences go through."""

    name: str
    bert: Bert
    shared_encoder: SharedEncoder
    checksum: str  # of the encoder
    answers: Answers | None = None  # of fine-tuned models

    @property
    def limit(self) -> int:
        """The most tokens of one sequence."""
        return self.bert.checkpoint.max_length

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.bert.tokenizer

    @cached_property
    def embed_settings(self) -> Callable[..., EmbedSettings]:
        """`Bert.embed_settings`, with the results of recent calls: most requests ask for the same."""
        return lru_cache(SETTINGS_CACHED)(self.bert.embed_settings)

    @cached_property
    def width(self) -> Callable[[EmbedSettings], int]:
        """`Bert.width`, likewise."""
        return lru_cache(SETTINGS_CACHED)(self.bert.width)

    @cached_property
    def plain_texts(self) -> bool:
        """Whether all tokens of a single text are of the first segment, which every family knows."""
        return not any(self.bert.tokenizer.encode("a").segments)

    @property
    def task(self) -> str | None:
        """The task it was fine-tuned for."""
        return self.answers.task.name if self.answers else None

    @property
    def abilities(self) -> tuple[str, ...]:
        """The routes that it can answer, best first: its own task comes before what every encoder can do."""
        own = (self.answers.task.row.route,) if self.answers else ()
        fill = ("fill",) if self.bert.model.fills else ()
        return (*own, *fill, "embed")


class Models:
    """All models by name; the first is the one that requests without a name mean."""

    def __init__(self, served: Sequence[Served]) -> None:
        if not served:
            raise RequestError("a server needs one model at least; name a folder")
        self.by_name: Mapping[str, Served] = {each.name: each for each in served}

    @property
    def shared_encoders(self) -> list[SharedEncoder]:
        """Every encoder once."""
        return list({each.shared_encoder.key: each.shared_encoder for each in self.by_name.values()}.values())

    @property
    def on_cpu(self) -> bool:
        """Whether they run on the CPU."""
        return self.named(None).bert.model.device.type == "cpu"

    @property
    def abilities(self) -> set[str]:
        """What some model can do."""
        return {ability for each in self.by_name.values() for ability in each.abilities}

    def named(self, name: str | None) -> Served:
        """The model of this name; without one the first."""
        if name is None:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            raise Refusal(404, f"no model '{name:.60}' here; choose from: {', '.join(self.by_name)}", "model")
        return self.by_name[name]

    def able(self, name: str | None, ability: str) -> Served:
        """The model of this name, or the first that can do it; one that cannot is refused."""
        if name is None:
            for each in self.by_name.values():
                if ability in each.abilities:
                    return each
            raise Refusal(404, f"no model here can {ability}; start the server with one that can")
        served = self.named(name)
        if ability not in served.abilities:
            raise Refusal(422, f"the model '{name}' cannot {ability}; it can {', '.join(served.abilities)}", "model")
        return served


def load_models(
    given: Sequence[str], device: torch.device, *, dtype: str = "float32", backend: str | None = None
) -> Models:
    """Folders, each as PATH or NAME=PATH, loaded onto one device; nothing given means the bundled model."""
    chosen = None if backend is None else pick(BACKENDS, backend, "backend")
    berts: dict[str, Bert] = {}
    for name, path in [_named(each) for each in given] or [("bertkit", None)]:
        if name in berts:
            raise RequestError(f"two models are called '{name}'; name them apart, as NAME=PATH")
        berts[name] = load(path)
        try:
            berts[name].to(device, dtype)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from error
        if berts[name].checkpoint.tokenizer is None:
            raise RequestError(f"{path} holds no tokenizer, so its model can read nothing; put its vocab.txt there")
    models = Models(share_encoders(berts))
    if chosen is not None:
        for bert in {served.shared_encoder.key: served.bert for served in models.by_name.values()}.values():
            chosen(bert)
    return models


def share_encoders(berts: Mapping[str, Bert]) -> list[Served]:
    """Served models; of equal encoders only the first is kept."""
    shared_encoders: dict[str, SharedEncoder] = {}
    served = []
    for name, bert in berts.items():
        checksum = encoder_checksum(bert.model.encoder)
        if checksum not in shared_encoders:
            shared_encoders[checksum] = new_shared_encoder(bert.model.encoder)
        shared_encoder = shared_encoders[checksum]
        _adopt(bert, shared_encoder.encoder)
        answers = bert.answers if set(task_heads()) & set(bert.model.heads) else None
        served.append(Served(name, bert, shared_encoder, checksum, answers))
    return served


def new_shared_encoder(encoder: Encoder) -> SharedEncoder:
    """For one encoder; on a GPU its passes are recorded, if its attention takes batches without padding."""
    weight, config = encoder.stack[0].attention.out.weight, encoder.config
    with torch.inference_mode():
        packed = takes_packed(weight.new_empty(0, 3, config.heads, config.width // config.heads))
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
    for name, made in int8_maps(encoder).items():  # which layers are quantized, and how
        digest.update(name.encode() + made.unsmooth_I.numpy().tobytes())
    return digest.hexdigest()


def _adopt(bert: Bert, encoder: Encoder) -> None:
    """Put the shared encoder in place of an equal one; the masked-word head's table is tied to it."""
    if bert.model.encoder is encoder:
        return
    bert.model.encoder = encoder
    if "masked_word" in bert.model.heads:
        head = bert.model.heads["masked_word"]
        assert isinstance(head, MaskedWordHead)
        head.decoder.weight = encoder.embeddings.word.weight


def _named(given: str) -> tuple[str, str | None]:
    """`NAME=PATH`, or a path whose last part is the name."""
    name, equals, path = given.partition("=")
    if equals and name and "/" not in name and not Path(given).exists():
        return name, path
    folder = Path(given).absolute()
    if folder.name == "..":
        folder = folder.resolve()
    # A run's best model lies in RUN/model: the run's name says more.
    return folder.parent.name if folder.name == "model" else folder.name, given
