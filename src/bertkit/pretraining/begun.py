"""What a run began with, kept in its settings: to go on with other weights or another text is refused."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.errors import RequestError
from bertkit.pretraining.recipe import BEGUN, Recipe
from bertkit.text.shards.reader import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer

FRESH = "fresh weights"


def begun_with(recipe: Recipe, shards: ShardSet, start: Checkpoint | None) -> dict[str, str]:
    """Fingerprints of the weights to carry on from, of the shards, and of held-out text if there is some."""
    found = {"start": fingerprint(start.model.state_dict()) if start else FRESH, "shards": shards.fingerprint}
    return found | ({"heldout": open_shards(recipe.heldout).fingerprint} if recipe.heldout else {})


def read_begun(settings: Path) -> dict[str, str]:
    """What a run's settings say that it began with; nothing for a run that has none, or of an earlier version."""
    if not settings.is_file():
        return {}
    return {name: str(text) for name, text in tomllib.loads(settings.read_text("utf-8")).get(BEGUN, {}).items()}


def refuse_other_beginning(settings: Path, recipe: Recipe, now: Mapping[str, str], *, trained: bool) -> None:
    """Refuse what would make another run of it; a run that has `trained` has its weights, so --from may be left out."""
    before, out = read_begun(settings), settings.parent
    for name, place in {"shards": recipe.shards, "heldout": recipe.heldout}.items():
        if name in before and before[name] != now[name]:
            raise RequestError(
                f"{place} no longer holds the text and the vocabulary that {out} was begun with; "
                "make these shards again, or begin another run with another --out"
            )
    start = now["start"]
    if "start" in before and before["start"] != start and not (trained and start == FRESH):
        now_from = FRESH if start == FRESH else "this model"
        was = FRESH if before["start"] == FRESH else "a model" if start == FRESH else "another model"
        raise RequestError(
            f"{out} was begun from {was}, not from {now_from}; "
            "go on with the same --from, or begin another run with another --out"
        )


def refuse_other_vocabulary(checkpoint: Path, tokenizer: Tokenizer | None, shards: ShardSet) -> None:
    """Ids of another vocabulary would mean other words to the weights of a checkpoint."""
    if tokenizer is not None and tokenizer.hash != shards.tokenizer.hash:
        raise RequestError(
            f"{checkpoint} was trained with another vocabulary than that of {shards.folder}; "
            "make the shards with the vocabulary in it, or begin another run with another --out"
        )
