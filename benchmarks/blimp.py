"""BLiMP, for the family table; `bertkit evaluate MODEL blimp.jsonl` scores any model that can score a sentence."""

from pathlib import Path
from typing import Any

from finetune_tasks import find_file

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.evaluation.minimal_pairs import HOW, MinimalPairs, scored_how
from bertkit.predict.bert import Bert


def blimp(checkpoint: Checkpoint, data: Path, pairs: int | None = None) -> dict[str, Any] | None:
    """Percent right: the mean over the sets, and each set's; None for a model that cannot score a sentence."""
    try:
        how = HOW[scored_how(checkpoint.model)]
    except RequestError:
        return None
    yardstick, groups = MinimalPairs(), dict[str, list[Any]]()
    for row in yardstick.read(find_file(data, "blimp.jsonl"), Columns()):
        groups.setdefault(row[2], []).append(row)
    rows = [row for each in groups.values() for row in each[:pairs]]
    scores = yardstick.ask(Bert(checkpoint), rows)
    sets = {
        name: round(100 * yardstick.total([each for each in scores if each.group == name])["accuracy"], 1)
        for name in sorted(groups)
    }
    score = round(100 * yardstick.total(scores)["accuracy"], 2)
    return {"score": score, "by": how, "pairs": len(rows), **sets}
