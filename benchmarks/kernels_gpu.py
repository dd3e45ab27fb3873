"""The variable-length kernel on CUDA against its plain twin, and packed against padded end to end.

    python benchmarks/kernels_gpu.py RESULT.json

The CPU's kernels are held together by tests; this one needs a GPU, so its proof is a dated file.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from bertkit.config import FAMILIES, family_config
from bertkit.model.batch import Batch
from bertkit.model.kernels import KERNELS, Sight
from bertkit.model.weights import new_model

LENGTHS = (5, 1, 64, 64, 17, 512, 3)
SIGHTS = {"all": Sight(), "window 8": Sight(8), "causal": Sight(None, True), "causal window 8": Sight(8, True)}


def gap(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error, ||got - expected|| / ||expected||."""
    return ((got.double() - expected).norm() / expected.norm()).item()


def kernel_gaps() -> dict[str, float]:
    """Each kernel in bfloat16, forward and gradient, against the formula in float64."""
    gaps = {}
    ids = torch.zeros(sum(LENGTHS), dtype=torch.long, device="cuda")
    batch = Batch(ids, ids, LENGTHS)
    for name, sight in SIGHTS.items():
        torch.manual_seed(1)
        tensors = [torch.randn(len(ids), 12, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        results = {}
        for kernel, dtype in (("eager", torch.float64), ("varlen", torch.bfloat16), ("padded", torch.bfloat16)):
            inputs = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors]
            out = KERNELS[kernel](*inputs, batch, sight)
            (out.double().pow(2).sum() / 2).backward()
            results[kernel] = [out.detach(), *(tensor.grad for tensor in inputs)]
        for kernel in ("varlen", "padded"):
            pairs = zip(results[kernel], results["eager"], strict=True)
            gaps[f"{kernel}, {name}"] = max(gap(got, expected) for got, expected in pairs)
    return gaps


def model_gaps() -> dict[str, dict[str, float]]:
    """Every family in float32 on the GPU against the CPU, and in bfloat16 through varlen against float32."""
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
            "float32 (padded kernel)": gap(on_gpu.cpu(), expected),
            "bfloat16 (varlen kernel)": gap(half.cpu(), expected),
        }
    return found


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "lengths": LENGTHS,
        "kernels, relative error against float64, worst of output and gradients": kernel_gaps(),
        "families, relative error of the last layer against float64 on the CPU": model_gaps(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
