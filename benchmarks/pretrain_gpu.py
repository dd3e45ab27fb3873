"""Pre-training speed on one GPU: ours from real shards, and transformers (compiled, SDPA, fused AdamW), in one run.

    python benchmarks/pretrain_gpu.py RESULT.json --shards DIR [--only NAME,NAME]

`DIR` is made by `bertkit shards`. Three ways: "ours" is `bertkit pretrain` itself, loader, clipping, log and all, on
packed texts as long as they are; "ours, full rows" computes one batch of full-length rows again and again, and so
does "transformers", which is the best case for it. Share = useful arithmetic (train/speed.py) over the rate of a large
bfloat16 matmul, measured right before.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertkit.config import BertConfig, family_config
from bertkit.model.model import new_model
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.rtd import generator_config
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import Recipe
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.text.shards.reader import open_shards
from bertkit.train.half import HalfPrecision
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.speed import flops_per_token, matmul_rate, mean_attended_length

RATE = 0.15
STEPS = 40


@dataclass(frozen=True)
class Shape:
    """A model and a batch, and whom to compare with."""

    depth: int
    width: int
    sequences: int
    length: int
    embedding: int | None = None
    objective: tuple[str, ...] = ("mlm", "nsp")
    full_rows: bool = True
    peer: bool = True

    @property
    def config(self) -> BertConfig:
        """The model's shape; no dropout, here and there."""
        sizes = {"depth": self.depth, "width": self.width, "heads": self.width // 64, "inner": 4 * self.width}
        narrow = {"embedding_width": self.embedding} if self.embedding else {}
        return family_config("bert", "base", **sizes, **narrow, dropout=0.0, attention_dropout=0.0)


SHAPES = {
    "L12 H768, 1024 x 128": Shape(12, 768, 1024, 128),
    "L12 H768, 256 x 512": Shape(12, 768, 256, 512),
    "L4 H512, 1024 x 128": Shape(4, 512, 1024, 128, full_rows=False),
    "L12 H256, 2048 x 128": Shape(12, 256, 2048, 128, 128, ("mlm",), peer=False),
    "ELECTRA-small, 2048 x 128": Shape(12, 256, 2048, 128, 128, ("rtd",), full_rows=False, peer=False),
}


def end_to_end(shape: Shape, shards: Path, peak: float) -> dict[str, float]:
    """`bertkit pretrain` on a folder of shards; the second half of its steps, by its own record."""
    recipe = Recipe(
        shards=shards,
        model=shape.config,
        data=DataSettings(length=shape.length, objective=shape.objective, block=shape.sequences),
        train=TrainSettings(
            steps=STEPS, batch=shape.sequences, log_every=STEPS // 2, evaluate_every=10**6, save_every=10**6
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        pretrain(recipe, Path(folder) / "run")
        lines = (Path(folder) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    half, whole = [line for line in map(json.loads, lines) if "tokens_per_second" in line][-2:]
    seconds, tokens = whole["seconds"] - half["seconds"], whole["tokens"] - half["tokens"]
    generator = generator_config(recipe.model, recipe.train.generator) if "rtd" in shape.objective else None
    source = ExampleSource(open_shards(shards), recipe.data)
    seen = float(mean_attended_length(np.concatenate([source.block(n).lengths for n in range(STEPS // 2, STEPS)])))
    flops = flops_per_token(shape.config, seen, RATE, generator=generator)
    full = tokens / (STEPS // 2) / (shape.sequences * shape.length)
    return {
        **speed(tokens / seconds, flops, peak),
        "full": round(full, 4),
        "seen": round(seen),
        "seconds_before": round(half["seconds"], 1),
    }


def speed(tokens_per_second: float, flops: float, peak: float) -> dict[str, float]:
    """What a row of the table says."""
    return {
        "tokens_per_second": round(tokens_per_second),
        "share_of_matmul": round(flops * tokens_per_second / peak, 3),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def full_rows(shape: Shape, seed: int = 0) -> Examples:
    """One batch of random words without any padding."""
    rng = np.random.default_rng(seed)
    total = shape.sequences * shape.length
    ids = rng.integers(1000, 30000, total)
    free = np.flatnonzero(~np.isin(np.arange(total) % shape.length, (0, shape.length - 1)))
    chosen = np.sort(rng.choice(free, int(RATE * total), replace=False))
    targets = ids[chosen].copy()
    ids[chosen] = 103
    labels = rng.integers(0, 2, shape.sequences) if "nsp" in shape.objective else None
    return Examples(ids, np.zeros(total, np.int64), np.full(shape.sequences, shape.length), chosen, targets, labels, 0)


def our_step(shape: Shape) -> Callable[[], object]:
    """Forward, backward, clipping and update of our model on one batch."""
    heads = ("masked_word", "next_sentence") if "nsp" in shape.objective else ("masked_word",)
    objective = ForPretraining(new_model(shape.config, dict.fromkeys(heads)).cuda(), objective_rows(shape.objective))
    inputs = to_inputs(full_rows(shape), torch.device("cuda"), fixed_length=shape.length)
    compiled = torch.compile(HalfPrecision(objective))
    optimizers = build_optimizer(objective, OptimizerSettings())

    def step() -> None:
        sums = compiled(*inputs)
        sum(w * sums[name][0] / sums[name][1] for name, w in objective.weights.items()).backward()
        optimizers.step(1e-4, torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0))

    return step


def their_step(shape: Shape) -> Callable[[], object]:
    """The same of transformers' BertForPreTraining."""
    import transformers

    config, examples = shape.config, full_rows(shape)
    theirs = transformers.BertConfig(
        hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
        intermediate_size=config.inner, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForPreTraining._from_config(theirs, attn_implementation="sdpa").cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.from_numpy(examples.ids).view(-1, shape.length).cuda()
    labels = torch.full((ids.numel(),), -100)
    labels[torch.from_numpy(examples.chosen)] = torch.from_numpy(examples.targets)
    labels, pairs = labels.view_as(ids).cuda(), torch.from_numpy(examples.pair_labels).cuda()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, labels=labels, next_sentence_label=pairs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def repeated(shape: Shape, step: Callable[[], object], peak: float) -> dict[str, float]:
    """Twenty steps in a row after five, timed as a whole."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS // 2):
        step()
    torch.cuda.synchronize()
    tokens = STEPS // 2 * shape.sequences * shape.length
    flops = flops_per_token(shape.config, shape.length, RATE)
    return speed(tokens / (time.perf_counter() - began), flops, peak)


def measure(name: str, ways: dict[str, Callable[[float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Each way of one shape, one after the other, with the matmul's rate right before."""
    rows = {}
    for way, run in ways.items():
        torch.compiler.reset()
        torch.cuda.empty_cache()
        peak = matmul_rate("cuda", seconds=1.0)
        torch.cuda.reset_peak_memory_stats()
        rows[way] = {**run(peak), "matmul_tflops": round(peak / 1e12, 1)}
        print(name, way, rows[way], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--only", default="", help="parts of names, with commas")
    options = parser.parse_args()
    result: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, shape in SHAPES.items():
        if not any(part in name for part in options.only.split(",")):
            continue
        ways: dict[str, Callable[[float], dict[str, float]]] = {}
        ways["ours"] = lambda peak, shape=shape: end_to_end(shape, options.shards, peak)
        if shape.full_rows:
            ways["ours, full rows"] = lambda peak, shape=shape: repeated(shape, our_step(shape), peak)
        if shape.peer:
            ways["transformers"] = lambda peak, shape=shape: repeated(shape, their_step(shape), peak)
        result[name] = rows = measure(name, ways)
        if shape.peer:
            rows["ratio"] = rows["ours"]["tokens_per_second"] / rows["transformers"]["tokens_per_second"]
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
