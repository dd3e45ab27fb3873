"""An encoder as ONNX Runtime computes it, for one short text at a time.

What takes longest there is to read the weights, and its fused steps read them nearly twice as fast as torch's. The twin
of `QuickEncoder`'s own way; `tests/engine/test_onnx_encoder.py` holds them together. Packages: the extra `onnx`. The
weights are held once more.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.feed_forward import ACTIVATIONS
from bertkit.model.layer import PostNormLayer, is_plain
from bertkit.model.self_attention import NoRotation

OPSET, FUSED_OPSET = 17, 1
FUSED = "com.microsoft"  # the domain of ONNX Runtime's own steps
# Steps that add the bias and bend.
BENDS = {ACTIVATIONS["gelu"]: "BiasGelu", ACTIVATIONS["gelu_tanh"]: "FastGelu"}
MOST_BYTES = 1_900_000_000  # a graph is one protocol buffer, and that ends at 2 GB


class OnnxEncoder:
    """An encoder for one text of few tokens, and not for pairs. A query waits for it, so it does without torch."""

    def __init__(self, encoder: Encoder, most: int, threads: int) -> None:
        import onnxruntime

        self.threads = threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors
        self.session: Any = onnxruntime.InferenceSession(encoder_graph(encoder), options, ["CPUExecutionProvider"])
        self.words_VE = encoder.embeddings.word.weight.detach().numpy()  # the encoder's own numbers, no copy
        self.places_LE = _places(encoder, most).numpy()

    def takes(self, ids: Sequence[int], segments: Sequence[int]) -> bool:
        """Whether this is one such text."""
        return len(ids) <= len(self.places_LE) and not any(segments)

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """T D: the last layer's output."""
        x_TE = self.words_VE.take(ids, axis=0) + self.places_LE[: len(ids)]
        [found_1TD] = self.session.run(None, {"x": x_TE[None]})
        hidden: np.ndarray = found_1TD[0]
        return hidden


def _places(encoder: Encoder, most: int) -> Tensor:
    """L E: what is added to words of the first segment at the first places."""
    length = min(most, encoder.config.max_length)
    zeros, embeddings = torch.zeros(length, dtype=torch.int64), encoder.embeddings
    first = Batch(zeros, zeros, (length,))
    with torch.inference_mode():
        added: Tensor = embeddings.segment(first) + embeddings.position(first)
        return added.expand(length, encoder.config.table_width).contiguous()


def refuse_unable(encoder: Encoder) -> None:
    """Say what is missing, or what of this encoder ONNX Runtime's fused steps do not compute."""
    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise RequestError(f"backend='onnx' needs {' and '.join(missing)}; install: pip install 'bertkit[onnx]'")
    if not all(_known(layer) for layer in encoder.layers):
        raise RequestError("backend='onnx' is for layers as BERT's, and this model's are others; load it without")
    if 4 * sum(weight.numel() for weight in encoder.layers.parameters()) > MOST_BYTES:
        raise RequestError("backend='onnx' is for models whose layers take less than 2 GB; load this one without")


def _known(layer: nn.Module) -> bool:
    if not isinstance(layer, PostNormLayer) or not is_plain(layer):
        return False
    attention = layer.attention
    everywhere = attention.sight.radius is None and isinstance(attention.rotate, NoRotation)
    return everywhere and layer.feed_forward.bend in BENDS


def encoder_graph(encoder: Encoder) -> bytes:
    """An ONNX model, 1 T E in, 1 T D out: the embeddings' norm and widening, then seven steps a layer.

    The weights are inside; those of shared layers stand there once.
    """
    from onnx import TensorProto, helper

    numbers: dict[PostNormLayer, int] = {}
    embeddings = encoder.embeddings
    nodes: list[Any] = [
        helper.make_node(
            "LayerNormalization", ["x", "norm.weight", "norm.bias"], ["normed"], epsilon=embeddings.norm.eps
        )
    ]
    stored = _named("norm", embeddings.norm)
    if isinstance(embeddings.widen, nn.Linear):
        nodes.append(helper.make_node("MatMul", ["normed", "widen.weight"], ["wide"]))
        nodes.append(helper.make_node("Add", ["wide", "widen.bias"], ["widened"]))
        stored += _named("widen", embeddings.widen)
    at = nodes[-1].output[0]
    for step, layer in enumerate(encoder.stack):
        assert isinstance(layer, PostNormLayer)  # others were refused
        weights = f"{numbers.setdefault(layer, len(numbers))}."
        nodes += _layer(layer, at, f"step {step} ", weights)
        at = nodes[-1].output[0]
    stored += [tensor for layer, number in numbers.items() for tensor in _weights(layer, f"{number}.")]
    widths = {"x": encoder.config.table_width, at: encoder.config.width}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "tokens", n]) for name, n in widths.items()]
    graph = helper.make_graph(nodes, "encoder", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, FUSED_OPSET)]
    serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return serialized


def _layer(layer: PostNormLayer, x: str, to: str, own: str) -> list[Any]:
    """norm(x + attention(x)), norm(x + feed_forward(x)): steps from `x`, their results named from `to` on."""
    from onnx import helper

    def step(kind: str, inputs: list[str], result: str, domain: str = FUSED, **settings: Any) -> Any:
        return helper.make_node(kind, inputs, [to + result], domain=domain, **settings)

    def normed(kind: str, base: str, result: str, norm: nn.LayerNorm) -> list[Any]:
        inputs = [to + kind, base, own + result + ".weight", own + result + ".bias", own + kind + ".bias"]
        return [step("SkipLayerNormalization", inputs, result, epsilon=norm.eps)]

    heads, causal = layer.attention.heads, int(layer.attention.sight.causal)
    return [
        step("Attention", [x, own + "qkv.weight", own + "qkv.bias"], "mixed", num_heads=heads, unidirectional=causal),
        step("MatMul", [to + "mixed", own + "out.weight"], "out", domain=""),
        *normed("out", x, "attention_norm", layer.attention_norm),
        step("MatMul", [to + "attention_norm", own + "up.weight"], "up", domain=""),
        step(BENDS[layer.feed_forward.bend], [to + "up", own + "up.bias"], "bent"),
        step("MatMul", [to + "bent", own + "down.weight"], "down", domain=""),
        *normed("down", to + "attention_norm", "feed_forward_norm", layer.feed_forward_norm),
    ]


def _weights(layer: PostNormLayer, own: str) -> list[Any]:
    attention, feed_forward = layer.attention, layer.feed_forward
    modules = {"qkv": attention.qkv, "out": attention.out, "up": feed_forward.up, "down": feed_forward.down}
    norms = {"attention_norm": layer.attention_norm, "feed_forward_norm": layer.feed_forward_norm}
    return [tensor for name, module in (modules | norms).items() for tensor in _named(own + name, module)]


def _named(name: str, module: nn.Module) -> list[Any]:
    """A module's tensors for the graph; matrices as I O, torch's are O I."""
    from onnx import numpy_helper

    numbers = {f"{name}.{part}": tensor.detach().numpy() for part, tensor in module.named_parameters()}
    return [numpy_helper.from_array(np.ascontiguousarray(own.T), name) for name, own in numbers.items()]
