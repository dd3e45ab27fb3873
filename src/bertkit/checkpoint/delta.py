"""A tuned model as one small file: the strongest directions of the change of its encoder from the base model."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bertkit.checkpoint.low_rank import differences, low_rank_changes
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.small import add_changes, pack, unpack
from bertkit.checkpoint.tensors import fingerprint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.model.pooling import EmbedSettings

FORMAT = "bertkit change of a model 1"
ENCODER = "encoder."
MIN_COSINE = 0.99
HEADER_BYTES = 1024  # of the file, besides its tensors
# Questions, news, talk, instructions and prose, on which vectors are compared.
TEXTS = (
    "How do I reset the password of my account?",
    "The committee voted on Monday to postpone the merger until next year.",
    "A man is playing a guitar on the street.",
    "Two dogs run across a field of snow.",
    "The stock fell by four percent after the quarterly report.",
    "no idea what you mean, that never happened to me",
    "Water boils at one hundred degrees at the level of the sea.",
    "She had not been to the old house since the summer her father died.",
    "Preheat the oven, then mix the flour with the butter and the sugar.",
    "The enzyme breaks down proteins in the small intestine.",
    "What is the capital of Australia?",
    "The bridge was built by the Romans in the second century and is still in use.",
    "I would rather walk than wait another hour for the bus.",
    "Quantum computers may one day break the ciphers that protect messages today.",
    "The team scored twice in the last five minutes and won the cup.",
    "Please send the signed contract back by Friday.",
)


@dataclass(frozen=True, kw_only=True)
class DeltaReport:
    """Size and fidelity of a tuned model that is stored as a change."""

    bytes: int
    kept: float  # share of the squared change that is stored
    cosine_mean: float  # between the vectors of sample texts by the restored and the tuned model
    cosine_least: float


def save_delta(
    base: Checkpoint,
    tuned: Checkpoint,
    path: Path | str,
    budget_bytes: int,
    *,
    texts: Sequence[str] = TEXTS,
    least_cosine: float = MIN_COSINE,
) -> DeltaReport:
    """Write how `tuned` differs from `base` to a file of at most `budget_bytes`.

    Refused if the mean cosine between the vectors of the tuned and the restored model is under `least_cosine`;
    0 accepts any.
    """
    if embed_of(tuned).dense is not None:
        raise RequestError(f"{path}: a change holds the encoder alone, and not dense layers; save a whole folder")
    base_tensors, tuned_tensors = _encoder(base), _encoder(tuned)
    content, stored = _content(base_tensors, tuned_tensors, tuned, budget_bytes)
    restored = _with_encoder(base, add_changes(base_tensors, unpack(stored)), embed_of(tuned))
    cosines = vector_cosines(replace(tuned, embed=embed_of(tuned)), restored, texts)
    report = DeltaReport(
        bytes=len(content),
        kept=_share_kept(base_tensors, tuned_tensors, _encoder(restored)),
        cosine_mean=float(cosines.mean()),
        cosine_least=float(cosines.min()),
    )
    if report.cosine_mean < least_cosine:
        raise RequestError(
            f"{path}: {budget_bytes:,} bytes keep {report.kept:.1%} of the change, and vectors come back with a mean "
            f"cosine of {report.cosine_mean:.4f}, under {least_cosine}; allow more bytes, or tune with rank=32 or less"
        )
    with whole_file(path) as draft:
        draft.write_bytes(content)
    return report


def load_delta(base: Checkpoint, path: Path | str) -> Checkpoint:
    """The tuned model: a copy of `base` with the file's changes added to its encoder."""
    path, base_tensors = Path(path), _encoder(base)
    header, stored = _read(path)
    if header.get("base") != fingerprint(base_tensors):
        raise RequestError(f"{path} is a change of another model than this one; load it with the one it was made from")
    try:
        settings = json.loads(header["embed"])
        embed = EmbedSettings.read(settings)
        return _with_encoder(base, add_changes(base_tensors, unpack(stored)), embed)
    except (RequestError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} is not as bertkit writes it ({error}); save it again") from error


def vector_cosines(one: Checkpoint, other: Checkpoint, texts: Sequence[str]) -> Tensor:
    """The cosine between two models' vectors of each text."""
    first, second = (torch.from_numpy(text_vectors(checkpoint, texts)) for checkpoint in (one, other))
    return F.cosine_similarity(first, second, dim=-1)


def embed_of(checkpoint: Checkpoint) -> EmbedSettings:
    """The embedding settings of a tuned model; by default the mean, normalized."""
    return checkpoint.embed or EmbedSettings(pooling="mean", normalize=True)


def _content(
    base_tensors: Mapping[str, Tensor], tuned_tensors: Mapping[str, Tensor], tuned: Checkpoint, budget: int
) -> tuple[bytes, dict[str, Tensor]]:
    """The bytes of the file, and the tensors in it."""
    changes = low_rank_changes(base_tensors, tuned_tensors, budget - HEADER_BYTES)
    stored = {name: tensor.cpu().contiguous() for name, tensor in pack(changes).items()}
    header = {"format": FORMAT, "base": fingerprint(base_tensors), "sha256": fingerprint(stored)}
    return save(stored, metadata={**header, "embed": json.dumps(embed_of(tuned).as_json())}), stored


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The file's header and tensors, checked against its checksum."""
    try:
        with safe_open(path, framework="pt") as file:
            header, stored = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(f"{path} is missing, truncated or corrupt ({error}); copy it again") from error
    if header.get("format") != FORMAT:
        raise RequestError(f"{path} holds no change of a model; it was not written by save_delta of this version")
    if header.get("sha256") != fingerprint(stored):
        raise RequestError(f"{path} is damaged: its numbers are not those of its checksum; copy it again")
    return header, stored


def _encoder(checkpoint: Checkpoint) -> dict[str, Tensor]:
    state = checkpoint.model.state_dict()
    return {name: tensor for name, tensor in state.items() if name.startswith(ENCODER)}


def _with_encoder(base: Checkpoint, tensors: Mapping[str, Tensor], embed: EmbedSettings) -> Checkpoint:
    """A copy of the base with other encoder tensors; its heads stay."""
    model = deepcopy(base.model)
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        if name not in parameters or parameters[name].shape != tensor.shape or not torch.isfinite(tensor).all():
            raise RequestError(f"{name} is no tensor of this encoder, or holds NaN or infinity")
        parameters[name].data.copy_(tensor)
    return replace(base, model=model, embed=embed)


def _share_kept(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], restored: Mapping[str, Tensor]) -> float:
    """Share of the squared change that was restored."""
    total = sum(float(change.square().sum()) for change in differences(base, tuned).values())
    lost = sum(float((tuned[name] - restored[name].to(tuned[name].device)).square().sum()) for name in tuned)
    return 1 - lost / total if total else 1.0
