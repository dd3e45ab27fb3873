"""What is trained: the objective over its one or two models, fresh or carried on, and how they are saved."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.errors import RequestError
from bertkit.model.model import BertModel
from bertkit.model.weights import copied, new_model
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import token_row
from bertkit.pretraining.recipe import Recipe, directed
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.distributed import Ranks, shard, whole


@dataclass(frozen=True)
class PretrainingLearner:
    """What is trained: the module with its losses, and the models in it by the name they are saved under."""

    module: nn.Module
    weights: Mapping[str, float]  # of each loss
    models: Mapping[str, BertModel]

    def shard(self, place: Ranks) -> None:
        """Spread the tensors over the ranks, layer by layer."""
        shard(self.module, [layer for model in self.models.values() for layer in model.encoder.layers], place)

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors of the module that are in none of its models: what only a loss needs."""
        inside = {id(tensor) for model in self.models.values() for tensor in model.state_dict(keep_vars=True).values()}
        named = self.module.state_dict(keep_vars=True).items()
        return {name: tensor for name, tensor in named if id(tensor) not in inside}

    def load_own_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `own_tensors` gave; every tensor must be there in its shape."""
        for name, own in self.own_tensors().items():
            if name not in tensors or tensors[name].shape != own.shape:
                raise RequestError(f"{name} is missing or of another shape")
            own.data.copy_(tensors[name])


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


def build_learner(recipe: Recipe, start: Checkpoint | None = None) -> PretrainingLearner:
    """Fresh models, or the one of `start` carried on, with the losses of the recipe's objectives."""
    rows = recipe.data.rows
    model = start.model if start else new_model(recipe.model, _heads(recipe), seed=recipe.train.seed)
    if model.pooler is not None and all(head.reads == "tokens" for head in model.heads.values()):
        model.pooler.requires_grad_(False)  # nothing reads it, and ranks would wait for its gradient
    seed = recipe.train.seed
    module = token_row(recipe.data.objective).module(model, rows, recipe.train) or ForPretraining(model, rows, seed)
    assert isinstance(module, nn.Module)
    return PretrainingLearner(module, module.weights, module.models)


def whole_model(model: BertModel) -> BertModel:
    """The model itself or, where its tensors are spread over ranks, a whole copy; then every rank must ask."""
    parts = model.state_dict()
    tensors = {name: whole(tensor) for name, tensor in parts.items()}
    if all(tensors[name] is part for name, part in parts.items()):
        return model
    return copied(model, model.config, tensors)


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all tensors that are learned, each once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _heads(recipe: Recipe) -> dict[str, int | None]:
    return dict.fromkeys(head for row in recipe.data.rows for head in row.heads)
