"""What is trained: the objective over its one or two models, fresh or carried on, and how they are saved."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import BertConfig
from bertkit.model.model import BertModel
from bertkit.model.weights import copied, new_model
from bertkit.pretraining.batches import FILL
from bertkit.pretraining.objectives import MaskedWords, NextWords, ReplacedTokens
from bertkit.pretraining.recipe import Recipe, directed
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.distributed import Ranks, shard, whole


@dataclass(frozen=True)
class Learner:
    """What is trained: a module that gives sums, and the models in it by the name they are saved under."""

    module: MaskedWords | NextWords | ReplacedTokens
    models: dict[str, BertModel]

    def shard(self, place: Ranks) -> None:
        """Spread the tensors over the ranks, layer by layer."""
        shard(self.module, [layer for model in self.models.values() for layer in model.encoder.layers], place)


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
    found = load_checkpoint(start, heads=_heads(recipe.data.objective), seed=recipe.train.seed)
    model, wanted = found.model, directed(found.model.config, recipe.data)
    return found if model.config == wanted else replace(found, model=copied(model, wanted, model.state_dict()))


def build_learner(recipe: Recipe, start: Checkpoint | None = None) -> Learner:
    """Fresh models, or the one of `start` carried on; ELECTRA has two that share their embeddings."""
    objective, seed = recipe.data.objective, recipe.train.seed
    model = start.model if start else new_model(recipe.model, _heads(objective), seed=seed)
    if "next_sentence" not in model.heads and model.pooler is not None:
        model.pooler.requires_grad_(False)  # nothing reads it, and ranks would wait for its gradient
    if "rtd" in objective:
        generator = new_model(generator_config(recipe), {"masked_word": None}, seed=seed + 1)
        fill = recipe.train.fill_weight if FILL in objective else 0.0
        return Learner(ReplacedTokens(generator, model, fill), {"model": model, "generator": generator})
    return Learner(NextWords(model) if "causal" in objective else MaskedWords(model), {"model": model})


def generator_config(recipe: Recipe) -> BertConfig:
    """ELECTRA's generator: narrower by the recipe's share in all but depth, and on the same tables."""
    config, share = recipe.model, recipe.train.generator
    heads = max(1, round(config.heads * share))
    width = heads * config.head_width
    inner = max(1, round(config.inner * share))
    return replace(config, width=width, heads=heads, inner=inner, embedding_width=config.table_width)


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


def _heads(objective: tuple[str, ...]) -> dict[str, int | None]:
    if "rtd" in objective:
        return dict.fromkeys(("replaced_token", "masked_word") if FILL in objective else ("replaced_token",))
    pairs = "nsp" in objective or "sop" in objective
    return dict.fromkeys(("masked_word", "next_sentence") if pairs else ("masked_word",))
