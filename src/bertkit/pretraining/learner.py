"""What is trained: the objective over its one or two models, fresh or carried on, and how they are saved."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.model.model import BertModel, copied, new_model
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import token_row
from bertkit.pretraining.objectives.targets import PretrainingModule
from bertkit.pretraining.recipe import Recipe, directed
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.distributed import full_tensor


@dataclass(frozen=True)
class SavedModel:
    """A model that a checkpoint writes as a folder of its own."""

    model: BertModel
    tokenizer: Tokenizer

    def save(self, folder: Path) -> None:
        """The Hugging Face layout."""
        length = self.model.config.max_length
        save_checkpoint(Checkpoint(model=self.model, tokenizer=self.tokenizer, max_length=length), folder)


def load_start(start: Path, recipe: Recipe) -> Checkpoint:
    """The model to carry on from, with the heads and the attention that the objective needs."""
    found = load_checkpoint(start, heads=_heads(recipe), seed=recipe.train.seed)
    model, wanted = found.model, directed(found.model.config, recipe.data)
    return found if model.config == wanted else replace(found, model=copied(model, wanted, model.state_dict()))


def build_learner(recipe: Recipe, start: Checkpoint | None = None) -> PretrainingModule:
    """Fresh models, or the one of `start` carried on, with the losses of the recipe's objectives."""
    rows = recipe.data.rows
    model = start.model if start else new_model(recipe.model, _heads(recipe), seed=recipe.train.seed)
    if model.pooler is not None and all(head.reads == "tokens" for head in model.heads.values()):
        model.pooler.requires_grad_(False)  # nothing reads it, and ranks would wait for its gradient
    seed = recipe.train.seed
    return token_row(recipe.data.objective).module(model, rows, recipe.train) or ForPretraining(model, rows, seed)


def whole_model(model: BertModel) -> BertModel:
    """The model itself or, where its tensors are spread over ranks, a whole copy; then every rank must ask."""
    parts = model.state_dict()
    tensors = {name: full_tensor(tensor) for name, tensor in parts.items()}
    if all(tensors[name] is part for name, part in parts.items()):
        return model
    return copied(model, model.config, tensors)


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all tensors that are learned, each once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _heads(recipe: Recipe) -> dict[str, int | None]:
    return dict.fromkeys(head for row in recipe.data.rows for head in row.heads)
