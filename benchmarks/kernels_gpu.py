"""CUDA's kernels against their plain twins, and packed against padded end to end.

    python benchmarks/kernels_gpu.py RESULT.json

The CPU's kernels are held together by tests; this one needs a GPU, so its proof is a dated file.
"""

import json
import random
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit.config import family_config
from bertkit.engine.batches import Passage, RowReader
from bertkit.engine.cuda_graph import CudaRecorder
from bertkit.engine.recorded import RecordedPasses
from bertkit.families.family import FAMILIES
from bertkit.model.attention import KERNELS, AttentionWindow, bias_gelu
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.pooling import pool
from bertkit.model.word_loss import IGNORE, sampled_words, word_losses
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.objectives.targets import Targets
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, take_step, train
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.replay import Replay
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule

HALF = ("fused", "varlen", "padded")
LENGTHS = (5, 1, 64, 64, 17, 512, 3)
MIXES = {
    "long": LENGTHS,
    "128": (5, 128, 64, 100, 1, 33),
    "64": (5, 1, 64, 64, 17, 3),
    "32": (9, 32, 17, 1),
    "16": (16, 1, 7),
}
WINDOWS = {
    "all": AttentionWindow(),
    "window 8": AttentionWindow(8),
    "causal": AttentionWindow(None, True),
    "causal window 8": AttentionWindow(8, True),
}


def gap(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error, ||got - expected|| / ||expected||."""
    return ((got.double() - expected).norm() / expected.norm()).item()


def kernel_gaps() -> dict[str, float]:
    """Each kernel in bfloat16, forward and gradient, against the formula in float64: every block's side, two widths."""
    gaps: dict[str, float] = {}
    for (mix, lengths), width in product(MIXES.items(), (64, 32)):
        ids = torch.zeros(sum(lengths), dtype=torch.long, device="cuda")
        own = mix_gaps(Batch(ids, ids, lengths), width)
        gaps |= {f"{mix} x {width}, {name}": value for name, value in own.items()}
    return gaps


def mix_gaps(batch: Batch, width: int) -> dict[str, float]:
    """The same for one mix of lengths and one width of head."""
    gaps = {}
    for name, window in WINDOWS.items():
        torch.manual_seed(1)
        tensors = [torch.randn(len(batch.ids), 12, width, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        results = {}
        for kernel, dtype in (("eager", torch.float64), *((name, torch.bfloat16) for name in HALF)):
            inputs = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors]
            out = KERNELS[kernel](torch.stack(inputs, dim=1), batch, window)
            (out.double().pow(2).sum() / 2).backward()
            results[kernel] = [out.detach(), *(tensor.grad for tensor in inputs)]
        for kernel in HALF:
            pairs = zip(results[kernel], results["eager"], strict=True)
            gaps[f"{kernel}, {name}"] = max(gap(got, expected) for got, expected in pairs)
    return gaps


def dropout_gaps() -> dict[str, float]:
    """The output is linear in the values: <grad, out> = <values' gradient, values>, if both ways drop the same."""
    torch.manual_seed(5)
    ids = torch.zeros(sum(LENGTHS), dtype=torch.long, device="cuda")
    found = {}
    for name, lengths in {"short": [n for n in LENGTHS if n <= 128], "long": LENGTHS}.items():
        batch = Batch(ids[: sum(lengths)], ids[: sum(lengths)], tuple(lengths))
        q, k, v = (torch.randn(sum(lengths), 12, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        v.requires_grad_()
        mixed = KERNELS["fused"](torch.stack((q, k, v), dim=1), batch, AttentionWindow(), 0.2)
        grad = torch.randn_like(mixed)
        mixed.backward(grad)
        there, back = (grad.double() * mixed.double()).sum(), (v.grad.double() * v.double()).sum()
        ones = (
            KERNELS["fused"](torch.stack((q, k, torch.ones_like(v)), dim=1), batch, AttentionWindow(), 0.2)
            .double()
            .mean()
        )
        size = (grad.double() * mixed.double()).norm()
        found[f"{name}, there and back"] = ((there - back).abs() / size).item()
        found[f"{name}, mean weight less 1"] = (ones - 1).item()
    return found


def gelu_gap() -> float:
    """gelu(x + bias) in bfloat16, and both gradients, against float64."""
    torch.manual_seed(3)
    x, bias, grad = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((999, 520), (520,), (999, 520))
    )
    ours, plain = ([t.to(kind, copy=True).requires_grad_() for t in (x, bias)] for kind in (x.dtype, torch.float64))
    activated, expected = bias_gelu(*ours), F.gelu(plain[0] + plain[1])
    activated.backward(grad)
    expected.backward(grad.double())
    pairs = [(activated.detach(), expected.detach()), *((a.grad, b.grad) for a, b in zip(ours, plain, strict=True))]
    return max(gap(got, wanted) for got, wanted in pairs)


def word_gaps() -> dict[str, float]:
    """The words' loss and gradient in bfloat16 against float64, and how far samples are from their probabilities."""
    torch.manual_seed(4)
    size, rows = 30_522, 64
    logits = (4 * torch.randn(rows, 30_528, device="cuda")).bfloat16()
    targets = torch.randint(0, size, (rows,), device="cuda")
    targets[::7] = IGNORE
    ours, plain = logits.clone().requires_grad_(), logits[:, :size].double().requires_grad_()
    losses, _, _ = word_losses(ours, targets, size)
    expected = F.cross_entropy(plain, targets, ignore_index=IGNORE, reduction="none")
    losses.sum().backward()
    expected.sum().backward()
    few = logits[:1, :64].expand(100_000, -1).contiguous()
    drawn = sampled_words(few, few[:, :50].float().logsumexp(-1), 50).bincount(minlength=64) / len(few)
    chances = F.pad(few[0, :50].double().softmax(0), (0, 14))
    return {
        "loss": gap(losses.detach(), expected.detach()),
        "gradient": gap(ours.grad[:, :size], plain.grad),
        "gradient behind the vocabulary": ours.grad[:, size:].abs().max().item(),
        "samples, in deviations": (((drawn - chances).abs() / (chances / 1e5).sqrt())[chances > 1e-3]).max().item(),
    }


def model_gaps() -> dict[str, dict[str, float]]:
    """Every family in float32 on the GPU against the CPU, and in bfloat16 through the fused kernel against float32."""
    found = {}
    for family in FAMILIES:
        config = family_config(family, "mini", vocab_size=1000, max_length=512, init_std=0.1, pad_id=0)
        config = replace(config, parts=replace(config.parts, window=32 if config.parts.window else None))
        model = new_model(config).eval()
        torch.manual_seed(2)
        batch = Batch.pack([torch.randint(5, 1000, (length,)).tolist() for length in LENGTHS])
        with torch.inference_mode():
            expected = model.double()(batch)
            on_gpu = model.float().cuda()(batch.to("cuda"))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                half = model(batch.to("cuda"))
        found[family] = {
            "float32": gap(on_gpu.cpu(), expected),
            "bfloat16 (fused kernel)": gap(half.cpu(), expected),
        }
    return found


@dataclass(frozen=True)
class Mean(RowReader):
    """What is read in `recorded_gaps`."""

    layers: tuple[int, ...]

    def rows(self, x_TD: torch.Tensor, batch: Batch) -> torch.Tensor:
        """N D."""
        return pool(x_TD, batch, "mean").float()


def recorded_gaps() -> dict[str, dict[str, float]]:
    """Replayed passes, two batches of each form, against float64 on the CPU: the worst row of each family."""
    found: dict[str, dict[str, float]] = {}
    for family in FAMILIES:
        config = family_config(family, "mini", vocab_size=1000, max_length=512, init_std=0.1, pad_id=0)
        model, read = new_model(config).eval(), Mean((config.depth,))
        draw = random.Random(6)
        mixes = [lengths for mix in MIXES.values() for lengths in (mix, mix[::-1])]
        batches = [[[draw.randrange(5, 1000) for _ in range(length)] for length in lengths] for lengths in mixes]
        with torch.inference_mode():
            exact = model.double().encoder
            expected = [read.rows(exact(batch), batch) for batch in map(Batch.pack, batches)]
        for dtype in (torch.float32, torch.bfloat16):
            replayed = RecordedPasses(model.to("cuda", dtype).encoder, CudaRecorder(), record_after=1)
            gaps = [
                gap(torch.from_numpy(replayed([Passage(ids, [0] * len(ids)) for ids in batch], read)), wanted)
                for batch, wanted in zip(batches, expected, strict=True)
            ]
            found.setdefault(family, {"forms": len(replayed)})[str(dtype).removeprefix("torch.")] = max(gaps)
    return found


def replayed_autocast() -> dict[str, object]:
    """Steps of masked-word training under autocast, replayed as a graph and not: what they compute in, and the gap."""
    losses: dict[str, list[float]] = {}
    dtypes: dict[str, list[str]] = {}
    recorded = Replay(torch.device("cuda"))
    for name, take in {"launched": take_step, "replayed": recorded}.items():
        torch.manual_seed(7)
        config = family_config("bert", "mini", vocab_size=1000, pad_id=0, dropout=0.0, attention_dropout=0.0)
        model = new_model(config, {"masked_word": None}, pooler=False, seed=7)
        module = ForPretraining(model, objective_rows(["mlm"])).cuda()
        seen = dtypes.setdefault(name, [])
        layer = module.model.encoder.layers[0].attention.out
        layer.register_forward_hook(lambda _, __, output, seen=seen: seen.append(str(output.dtype)))
        settings = LoopSettings(budget=Budget(steps=6), schedule=Schedule(peak=1e-3, warmup=0), autocast=True)
        loop = (build_optimizer(module, OptimizerSettings()), settings, Ranks(device=torch.device("cuda")), Progress())
        losses[name] = [report.losses["mlm"] for report in train(module, module.weights, masked, *loop, take)]
    pairs = zip(losses["replayed"], losses["launched"], strict=True)
    return {
        # A graph calls the module once, when it is recorded: the second of these.
        "computed in": {name: sorted(set(seen)) for name, seen in dtypes.items()},
        "calls of the module in 6 steps": {name: len(seen) for name, seen in dtypes.items()},
        "losses": losses,
        "worst relative difference of a loss": max(abs(got - wanted) / wanted for got, wanted in pairs),
    }


def masked(step: int) -> list[MicroBatch]:
    """A step's only part: 8 texts of 64 random words, every seventh of which is asked for."""
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(5, 1000, (8 * 64,), generator=draw).cuda()
    chosen = torch.arange(0, len(ids), 7, device="cuda")
    batch = Batch(ids, torch.zeros_like(ids), (64,) * 8).laid_out(64, 8)
    targets = Targets(chosen, ids[chosen], ids.new_empty(0))
    return [MicroBatch((batch, targets), {"mlm": len(chosen)}, len(ids), seed=step)]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "lengths": LENGTHS,
        "kernels, relative error against float64, worst of output and gradients": kernel_gaps(),
        "dropout 0.2": dropout_gaps(),
        "gelu, the same": gelu_gap(),
        "words, the same": word_gaps(),
        "families, relative error of the last layer against float64 on the CPU": model_gaps(),
        "recorded passes, relative error of pooled vectors against float64 on the CPU": recorded_gaps(),
        "training steps under autocast": replayed_autocast(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
