"""Device metrics of a run: utilization, padding, peak memory."""

from dataclasses import dataclass

from bertkit.pretraining.recipe import Recipe
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Progress
from bertkit.train.speed import flops_per_token, matmul_rate, memory_gib, utilization


@dataclass(frozen=True)
class Gauge:
    """Measures the device metrics of a run at any step."""

    ranks: Ranks
    flops: float  # useful operations of training on a token
    rate: float  # operations per second of a plain matmul
    slots: int  # positions computed in a step, padding included; 0 if there is no padding
    start: Progress  # at the last start of the run, when `rate` was measured

    @classmethod
    def of(cls, recipe: Recipe, ranks: Ranks, start: Progress) -> "Gauge":
        """Measure the device, which takes a fraction of a second, and count the recipe's operations."""
        slots = recipe.train.batch * recipe.data.length if ranks.device.type == "cuda" else 0
        return cls(ranks, recipe_flops(recipe), matmul_rate(ranks.device), slots, start)

    def read(self, progress: Progress) -> dict[str, float]:
        """Entries of metrics.jsonl: mean utilization (`share`) since the last start, `padding`, `memory_gib`.

        Memory is the peak of this process; a resumed run may have used more before.
        """
        tokens, seconds = progress.tokens - self.start.tokens, progress.seconds - self.start.seconds
        tokens_per_second = tokens / max(seconds, 1e-9) / self.ranks.size
        filled = progress.tokens / (self.slots * max(progress.step, 1)) if self.slots else 1.0
        return {
            "share": round(utilization(tokens_per_second, self.flops, self.rate), 4),
            "padding": round(max(0.0, 1 - filled), 4),
            "memory_gib": round(memory_gib(self.ranks.device), 2),
        }


def recipe_flops(recipe: Recipe) -> float:
    """Useful operations of training on one token, for texts of full length."""
    data, model = recipe.data, recipe.model
    flops = flops_per_token(model, data.length, sum(row.word_share(data.rate) for row in data.rows))
    for row in data.rows:
        flops += row.head_flops(model, data.rate)
        for other in row.companions(model, data.rate, recipe.train):
            flops += flops_per_token(other.config, data.length, other.word_share)
    return flops
