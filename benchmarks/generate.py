"""Tokens per second of generation: bertkit beside transformers' `generate`, GPT-2 small's shape, random weights.

    python benchmarks/generate.py --out RESULT.json [--batches 1,32] [--tokens 128] [--rounds 5] [--no-compile]

transformers as it comes (dynamic cache, eager), and at its best: static cache and a compiled forward pass. All generate
the same number of tokens from the same prompts by greedy search, in turns. On a CPU in float32, with the share of the
memory's bandwidth for one sequence (every weight is read for each token); on a GPU in bfloat16.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from bertkit.config import family_config
from bertkit.engine.writing.decoder import CachedDecoder
from bertkit.engine.writing.search import WriteSettings, next_tokens
from bertkit.model.model import new_model

PROMPT = 16


def bertkit_engine(device: str) -> Callable[[list[list[int]], int], int]:
    model = new_model(family_config("gpt2"), {"masked_word": None}).eval()
    model.to(device, torch.bfloat16 if device == "cuda" else None)

    def run(prompts: list[list[int]], tokens: int) -> int:
        settings = WriteSettings(tokens=tokens)
        with torch.inference_mode():
            steps = next_tokens(CachedDecoder(model, prompts, tokens), len(prompts), settings, ())
            return sum(len(step.ids) for step in steps)

    return run


def transformers_engine(device: str, *, compiled: bool) -> Callable[[list[list[int]], int], int]:
    config = transformers.GPT2Config(bos_token_id=None, eos_token_id=None, pad_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval().to(device, torch.bfloat16 if device == "cuda" else None)
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
    if compiled:
        options["cache_implementation"] = "static"  # on a GPU `generate` itself compiles then, with CUDA graphs
        if device == "cpu":
            model.forward = torch.compile(model.forward, fullgraph=True)

    def run(prompts: list[list[int]], tokens: int) -> int:
        ids = torch.tensor(prompts, device=device)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **options)
        return (out.shape[1] - ids.shape[1]) * len(prompts)

    return run


def timed(run: Callable[[list[list[int]], int], int], prompts: list[list[int]], tokens: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    made = run(prompts, tokens)
    if device == "cuda":
        torch.cuda.synchronize()
    assert made == tokens * len(prompts), (made, tokens)
    return made / (time.perf_counter() - began)


def bandwidth() -> float:
    """Bytes per second that the cores read: the fastest of three ways to read a large matrix once."""
    matrix, row = torch.ones(32768, 4096), torch.ones(1, 4096)
    onednn = torch.ops.mkldnn._linear_pointwise
    ways: list[Callable[[], object]] = [
        lambda: torch.nn.functional.linear(row, matrix),
        lambda: onednn(row, matrix, None, "none", [], ""),
        matrix.sum,
    ]
    best = 0.0
    for way in ways * 8:
        began = time.perf_counter()
        way()
        best = max(best, matrix.numel() * 4 / (time.perf_counter() - began))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    engines = {"bertkit": bertkit_engine(device), "transformers": transformers_engine(device, compiled=False)}
    if not options.no_compile:
        engines["transformers, static cache, compiled"] = transformers_engine(device, compiled=True)
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    content: dict[str, Any] = {
        "machine": machine, "torch": torch.__version__, "transformers": transformers.__version__,
        "dtype": "bfloat16" if device == "cuda" else "float32", "threads": torch.get_num_threads(),
        "tokens": options.tokens, "prompt": PROMPT, "tokens per second": {},
    }  # fmt: skip
    for count in map(int, options.batches.split(",")):
        prompts = torch.randint(5, 50000, (count, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
        for run in engines.values():
            for _ in range(2):
                timed(run, prompts, options.tokens, device)  # kernels and graphs are compiled
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(options.rounds):
            for name, run in engines.items():
                rates[name].append(timed(run, prompts, options.tokens, device))
        row: dict[str, Any] = {name: {"median": median(own), "all": own} for name, own in rates.items()}
        ours = row["bertkit"]["median"]
        row["ratio"] = {name: ours / row[name]["median"] for name in engines if name != "bertkit"}
        if device == "cpu" and count == 1:
            weights = sum(p.numel() for p in new_model(family_config("gpt2"), {"masked_word": None}).parameters()) * 4
            speed = bandwidth()
            row["bandwidth"] = {"bytes per second": speed, "bound": speed / weights, "share": ours * weights / speed}
        content["tokens per second"][f"batch {count}"] = row
        print(count, json.dumps({key: row[key] for key in ("ratio", "bandwidth") if key in row}), ours, flush=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
