"""What is trained: the objective over its one or two models, fresh or continued, and how they are saved.

A model continued on shards with a larger vocabulary gets rows for the new pieces: each row starts as the mean of the
old pieces that the text of the new one was split into.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.errors import RequestError
from bertkit.model.model import BertModel, copied, new_model
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import token_row
from bertkit.pretraining.objectives.targets import PretrainingModule
from bertkit.pretraining.recipe import Recipe, directed
from bertkit.text.shards.reader import ShardSet
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import longest_match
from bertkit.train.distributed import full_tensor

VOCABULARY_TENSORS = (
    "encoder.embeddings.word.weight",
    "heads.masked_word.decoder.weight",
    "heads.masked_word.decoder.bias",
)


@dataclass(frozen=True)
class SavedModel:
    """A model that a checkpoint stores in a folder of its own."""

    model: BertModel
    tokenizer: Tokenizer

    def save(self, folder: Path) -> None:
        """Write the folder in the Hugging Face layout."""
        length = self.model.config.max_length
        save_checkpoint(Checkpoint(model=self.model, tokenizer=self.tokenizer, max_length=length), folder)


def load_start(start: Path, recipe: Recipe) -> Checkpoint:
    """The model to continue from, with the heads and the attention direction that the objective needs."""
    checkpoint = load_checkpoint(start, heads=_heads(recipe), seed=recipe.train.seed)
    model, config = checkpoint.model, directed(checkpoint.model.config, recipe.data)
    if model.config == config:
        return checkpoint
    return replace(checkpoint, model=copied(model, config, model.state_dict()))


def build_learner(recipe: Recipe, start: Checkpoint | None = None) -> PretrainingModule:
    """New models, or the one of `start`, with the losses of the recipe's objectives."""
    rows = recipe.data.rows
    model = start.model if start else new_model(recipe.model, _heads(recipe), seed=recipe.train.seed)
    if model.pooler is not None and all(head.reads == "tokens" for head in model.heads.values()):
        model.pooler.requires_grad_(False)  # it is unused, and DDP would wait for its gradient
    seed = recipe.train.seed
    return token_row(recipe.data.objective).module(model, rows, recipe.train) or ForPretraining(model, rows, seed)


def whole_model(model: BertModel) -> BertModel:
    """The model or, if its tensors are sharded, a full copy; then every rank must call this."""
    shards = model.state_dict()
    tensors = {name: full_tensor(tensor) for name, tensor in shards.items()}
    if all(tensors[name] is tensor for name, tensor in shards.items()):
        return model
    return copied(model, model.config, tensors)


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _heads(recipe: Recipe) -> dict[str, int | None]:
    return dict.fromkeys(head for row in recipe.data.rows for head in row.heads)


def extended(start: Checkpoint, shards: ShardSet) -> Checkpoint:
    """The checkpoint with the shards' tokenizer: unchanged if that is its own, with more rows if it extends its own."""
    old, new = start.tokenizer, shards.tokenizer
    if old is None or old.hash == new.hash:
        return start
    if difference := first_difference(old, new):
        raise RequestError(
            f"{shards.folder} was made with another vocabulary than the model's: {difference}; make the shards with "
            "the model's own, or with one that 'bertkit vocab --extend MODEL' has made from it"
        )
    return replace(start, model=extended_model(start.model, old, new), tokenizer=new)


def first_difference(old: Tokenizer, new: Tokenizer) -> str | None:
    """Why a vocabulary does not extend another: the first piece with another id, or another way to split text."""
    pieces = {token_id: piece for piece, token_id in new.vocab.items()}
    for piece, token_id in sorted(old.vocab.items(), key=lambda item: item[1]):
        if new.vocab.get(piece) != token_id:
            there = f"is {pieces[token_id]!r}" if token_id in pieces else "has no piece"
            return f"id {token_id} {there} there and {piece!r} in the model"
    try:
        same = old.with_pieces(new_pieces(old, new)).hash == new.hash
    except RequestError as error:  # not WordPiece
        return str(error)
    return None if same else "the pieces are an extension, but text is cleaned or cut in another way"


def new_pieces(old: Tokenizer, new: Tokenizer) -> list[str]:
    """The pieces that only the new vocabulary has, in the order of their ids."""
    return sorted(new.vocab.keys() - old.vocab.keys(), key=new.vocab.__getitem__)


def extended_model(model: BertModel, old: Tokenizer, new: Tokenizer) -> BertModel:
    """A model with a row for every piece of `new`; old rows and all other tensors are unchanged."""
    size = max(model.config.vocab_size, new.size)  # a table may have unused rows
    pieces = new_pieces(old, new)
    rows = [new.vocab[piece] for piece in pieces]
    sources = [old_pieces(old, piece) for piece in pieces]
    tensors = model.state_dict()
    for name in VOCABULARY_TENSORS:
        if name in tensors:
            tensors[name] = _with_means(tensors[name], size, rows, sources)
    return copied(model, replace(model.config, vocab_size=size), tensors)


def old_pieces(old: Tokenizer, piece: str) -> list[int]:
    """The old ids of the text that is one piece in the new vocabulary; a ##piece is split as inside a word."""
    if not piece.startswith("##"):
        return old.encode_ids([piece])[0] or [old.unknown_id]
    inner = {name for name in old.vocab if name.startswith("##")}
    first, *rest = longest_match(piece[2:], inner | {name[2:] for name in inner}, unknown="")
    return [old.vocab[name] for name in (f"##{first}", *rest)] if first else [old.unknown_id]


@torch.no_grad()
def _with_means(table: Tensor, size: int, rows: Sequence[int], sources: Sequence[Sequence[int]]) -> Tensor:
    """The table with `size` rows, where each of `rows` is a mean of old rows; unused rows are zero."""
    larger = table.new_zeros((size, *table.shape[1:]))
    larger[: len(table)] = table
    for row, source in zip(rows, sources, strict=True):
        larger[row] = table[list(source)].mean(dim=0)
    return larger
