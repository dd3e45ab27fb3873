"""Pre-training speed on one GPU: ours and transformers (compiled, SDPA, fused AdamW), same shapes, one run.

    python benchmarks/pretrain_gpu.py RESULT.json

Share = useful arithmetic (train/speed.py) over the measured rate of a large bfloat16 matmul.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bertkit.config import BertConfig, family_config
from bertkit.model.weights import new_model
from bertkit.pretrain.batches import Examples
from bertkit.pretrain.examples import to_inputs
from bertkit.pretrain.objectives import MaskedWords, ReplacedTokens
from bertkit.train.half import HalfPrecision
from bertkit.train.optimizer import OptimizerSettings, build_optimizer
from bertkit.train.speed import flops_per_token, matmul_rate

RATE = 0.15
SHAPES = {
    # name: (depth, width, sequences, length)
    "L12 H768, 512 x 128": (12, 768, 512, 128),
    "L12 H768, 128 x 512": (12, 768, 128, 512),
    "L4 H512, 1024 x 128": (4, 512, 1024, 128),
    "L12 H256, 1024 x 128": (12, 256, 1024, 128),
}


def shape_config(depth: int, width: int, **numbers: object) -> BertConfig:
    sizes = {"depth": depth, "width": width, "heads": width // 64, "inner": 4 * width}
    return family_config("bert", "base", **{**sizes, "dropout": 0.0, "attention_dropout": 0.0, **numbers})


def random_examples(sequences: int, length: int, lengths: np.ndarray | None = None, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    lengths = np.full(sequences, length) if lengths is None else lengths
    total = int(lengths.sum())
    ids = rng.integers(1000, 30000, total)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    wired = np.zeros(total, bool)
    wired[starts], wired[np.cumsum(lengths) - 1] = True, True
    free = np.flatnonzero(~wired)
    chosen = np.sort(rng.choice(free, int(RATE * total), replace=False))
    targets = ids[chosen].copy()
    ids[chosen] = 103
    labels = rng.integers(0, 2, sequences)
    return Examples(ids, np.zeros(total, np.int64), lengths, chosen, targets, labels, 0)


def timed(step: Callable[[], object], repeats: int) -> float:
    """Median seconds of one call, by events, after warming up."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(np.median(times))


def our_step(config: BertConfig, examples: Examples, length: int) -> Callable[[], object]:
    model = new_model(config, {"masked_word": None, "next_sentence": None}).cuda()
    return objective_step(MaskedWords(model), examples, length)


def generator_shape(config: BertConfig) -> BertConfig:
    return shape_config(config.depth, config.width // 4, heads=1, embedding_width=config.table_width)


def electra_step(config: BertConfig, examples: Examples, length: int) -> Callable[[], object]:
    discriminator = new_model(config, {"replaced_token": None}).cuda()
    generator = new_model(generator_shape(config), {"masked_word": None}, seed=1).cuda()
    return objective_step(ReplacedTokens(generator, discriminator), examples, length)


def objective_step(objective: torch.nn.Module, examples: Examples, length: int) -> Callable[[], object]:
    inputs = to_inputs(examples, torch.device("cuda"), fixed_length=length)
    compiled = torch.compile(HalfPrecision(objective))
    optimizers = build_optimizer(objective, OptimizerSettings())

    def step() -> None:
        sums = compiled(*inputs)
        loss = sum(w * sums[name][0] / sums[name][1] for name, w in objective.weights.items())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizers.step(1e-4)

    return step


def their_step(config: BertConfig, examples: Examples, length: int) -> Callable[[], object]:
    import transformers

    theirs = transformers.BertConfig(
        hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
        intermediate_size=config.inner, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForPreTraining._from_config(theirs, attn_implementation="sdpa").cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.from_numpy(examples.ids).view(-1, length).cuda()
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


def measure(name: str, step: Callable[[], object], tokens: int, flops: float, peak: float) -> dict[str, float]:
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    seconds = timed(step, 12)
    row = {
        "tokens_per_second": round(tokens / seconds),
        "share_of_matmul": round(flops * tokens / seconds / peak, 3),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "seconds_to_first": round(time.perf_counter() - began, 1),
    }
    print(name, row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--skip-transformers", action="store_true")
    parser.add_argument("--skip-varied", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    peak = matmul_rate("cuda")
    result: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "matmul_tflops": round(peak / 1e12, 1),
    }
    print(result)
    for name, (depth, width, sequences, length) in SHAPES.items():
        if options.only not in name:
            continue
        config = shape_config(depth, width)
        examples, flops = random_examples(sequences, length), flops_per_token(config, length, RATE)
        tokens, rows = sequences * length, {}
        rows["ours"] = measure(f"{name} ours", our_step(config, examples, length), tokens, flops, peak)
        torch.compiler.reset()
        if not options.skip_transformers:
            theirs = their_step(config, examples, length)
            rows["transformers compiled"] = measure(f"{name} transformers", theirs, tokens, flops, peak)
            torch.compiler.reset()
        result[name] = rows
        if options.skip_varied:
            continue
        varied = np.random.default_rng(1).integers(length // 4, length + 1, sequences)
        packed = random_examples(sequences, length, varied)
        rows["ours, lengths varied"] = measure(
            f"{name} varied", our_step(config, packed, length), int(varied.sum()), flops, peak
        )
        torch.compiler.reset()
        result[name] = rows
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.only in "ELECTRA":
        config = shape_config(12, 256, embedding_width=128)
        examples = random_examples(1024, 128)
        flops = flops_per_token(config, 128, RATE, generator=generator_shape(config))
        row = measure("ELECTRA small", electra_step(config, examples, 128), 1024 * 128, flops, peak)
        result["ELECTRA-small, 1024 x 128"] = row
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
