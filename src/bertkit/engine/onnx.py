"""ONNX engine: one short text at a time through ONNX Runtime, by a graph that the layers themselves write.

Reading the weights takes most of the time of a short text, and ONNX Runtime's fused nodes read them nearly twice as
fast as torch's kernels. The slow twin is torch's own set of operations; `tests/engine/test_onnx_engine.py` compares
them. Needs the extra `onnx`. ONNX Runtime holds a copy of the weights.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.layer import ACTIVATIONS, PostNormLayer, is_plain
from bertkit.model.operations import Activation, Operations

OPSET, FUSED_OPSET = 17, 1
FUSED = "com.microsoft"  # the domain of ONNX Runtime's fused nodes
# Fused nodes for bias and activation.
ACTIVATION_NODES: dict[Activation, str] = {ACTIVATIONS["gelu"]: "BiasGelu", ACTIVATIONS["gelu_tanh"]: "FastGelu"}
MAX_GRAPH_BYTES = 1_900_000_000  # a graph is one protocol buffer, which cannot exceed 2 GB


class OnnxEncoder:
    """An encoder for one text of few tokens, not for pairs. It avoids torch's overhead, which is long for a query."""

    def __init__(self, encoder: Encoder, max_tokens: int, threads: int) -> None:
        import onnxruntime

        self.threads = threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors
        self.session: Any = onnxruntime.InferenceSession(encoder_graph(encoder), options, ["CPUExecutionProvider"])
        self.words_VE = encoder.embeddings.word.weight.detach().numpy()  # shared with the encoder
        self.positions_LE = _position_table(encoder, max_tokens).numpy()

    def takes(self, ids: Sequence[int], segments: Sequence[int]) -> bool:
        """Whether this is a text of few tokens, and not a pair."""
        return len(ids) <= len(self.positions_LE) and not any(segments)

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """T D: the last layer's output."""
        x_TE = self.words_VE.take(ids, axis=0) + self.positions_LE[: len(ids)]
        [output_1TD] = self.session.run(None, {"x": x_TE[None]})
        hidden_TD: np.ndarray = output_1TD[0]
        return hidden_TD


def _position_table(encoder: Encoder, max_tokens: int) -> Tensor:
    """L E: segment 0's vector plus the vector of each position; it is added to the word vectors."""
    length = min(max_tokens, encoder.config.max_length)
    zeros, embeddings = torch.zeros(length, dtype=torch.int64), encoder.embeddings
    first = Batch(zeros, zeros, (length,))
    with torch.inference_mode():
        added: Tensor = embeddings.segment(first) + embeddings.position(first)
        return added.expand(length, encoder.config.table_width).contiguous()


def refuse_unsupported(encoder: Encoder) -> None:
    """Refuse an encoder that ONNX Runtime's fused nodes do not compute, and missing packages."""
    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise RequestError(f"backend='onnx' needs {' and '.join(missing)}; install: pip install 'bertkit[onnx]'")
    normed = isinstance(encoder.embeddings.norm, nn.LayerNorm)
    if not normed or not all(_is_supported(layer) for layer in encoder.layers):
        raise RequestError("backend='onnx' is for layers as BERT's, and this model's are others; load it without")
    if 4 * sum(weight.numel() for weight in encoder.layers.parameters()) > MAX_GRAPH_BYTES:
        raise RequestError("backend='onnx' is for models whose layers take less than 2 GB; load this one without")


def _is_supported(layer: nn.Module) -> bool:
    if not isinstance(layer, PostNormLayer) or not is_plain(layer):
        return False
    attention, pattern = layer.attention, layer.attention.pattern
    simple = pattern.window.radius is None and pattern.rotation is None and attention.relative is None
    return simple and layer.feed_forward.activation in ACTIVATION_NODES


def encoder_graph(encoder: Encoder) -> bytes:
    """An ONNX model, 1 T E -> 1 T D: the encoder after the sum of its embeddings, seven nodes a layer.

    The encoder is run with operations that append nodes and compute nothing. The weights are stored in the model, those
    of shared layers once.
    """
    from onnx import TensorProto, helper

    nodes, token = OnnxNodes(), torch.zeros(1, dtype=torch.int64)
    ops, x_TE = cast(Operations, nodes), cast(Tensor, "x")  # instead of tensors, names of nodes' outputs
    embedded = encoder.embeddings.from_sum(x_TE, ops, encoder.dtype)
    last = nodes.read(cast(str, encoder.from_embeddings(embedded, Batch(token, token, (1,)), ops)))
    widths = {"x": encoder.config.table_width, last: encoder.config.width}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "tokens", n]) for name, n in widths.items()]
    graph = helper.make_graph(nodes.nodes, "encoder", ends[:1], ends[1:], list(nodes.stored.values()))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, FUSED_OPSET)]
    serialized: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return serialized


class Projection(NamedTuple):
    """A linear layer without a node yet: the node that reads its output may compute it, too."""

    linear: nn.Linear
    x: str


class OnnxNodes:
    """The layers' operations as nodes of an ONNX graph: a value is the name of a node's output, 1 T D.

    Only for layers that `refuse_unsupported` accepts: no dropout, no gates, no pre-norm.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: dict[str, Any] = {}  # tensors by name
        self._projections: dict[str, Projection] = {}
        self._written: dict[str, str] = {}  # projection -> output of its own nodes
        self._numbers: dict[nn.Module, int] = {}

    def embed(self, x: str, norm: nn.LayerNorm, dropout: nn.Module, dtype: torch.dtype) -> str:
        """LayerNormalization."""
        return self._add("LayerNormalization", [x, *self._weights(norm)], domain="", epsilon=norm.eps)

    def project(self, linear: nn.Linear, x: str) -> str:
        """A name; its nodes are written when something reads it."""
        name = f"projection {len(self._projections)}"
        self._projections[name] = Projection(linear, x)
        return name

    output = project

    def activate(self, linear: nn.Linear, activation: Activation, x: str) -> str:
        """MatMul, and one node for bias and activation."""
        product, bias = self._product(linear, x)
        return self._add(ACTIVATION_NODES[activation], [product, bias])

    def attend(self, qkv: str, batch: Batch, pattern: AttentionPattern, dropout: float) -> str:
        """One node for attention and the projection to queries, keys and values."""
        linear, x = self._projections[qkv]
        causal = int(pattern.window.causal)
        return self._add(
            "Attention", [self.read(x), *self._weights(linear)], num_heads=pattern.heads, unidirectional=causal
        )

    def add_norm(self, x: str, output: str, dropout: nn.Module, norm: nn.LayerNorm) -> str:
        """MatMul, and one node for bias, residual and norm."""
        product, bias = self._product(*self._projections[output])
        inputs = [product, self.read(x), *self._weights(norm), bias]
        return self._add("SkipLayerNormalization", inputs, epsilon=norm.eps)

    def norm(self, norm: nn.Module, x: str) -> str:
        """No node: a post-norm encoder has no final norm."""
        assert isinstance(norm, nn.Identity)
        return x

    def read(self, x: str) -> str:
        """The name of a tensor; if the value is a projection, its nodes are written now."""
        if x in self._projections and x not in self._written:
            self._written[x] = self._add("Add", [*self._product(*self._projections[x])], domain="")
        return self._written.get(x, x)

    def _product(self, linear: nn.Linear, x: str) -> tuple[str, str]:
        """The names of x @ weight and of the bias."""
        weight, bias = self._weights(linear)
        return self._add("MatMul", [self.read(x), weight], domain=""), bias

    def _add(self, kind: str, inputs: list[str], domain: str = FUSED, **settings: Any) -> str:
        from onnx import helper

        name = f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **settings))
        return name

    def _weights(self, module: nn.Module) -> list[str]:
        """The names of a module's weight and bias, stored with the graph; matrices as I O, torch's are O I."""
        from onnx import numpy_helper

        number = self._numbers.setdefault(module, len(self._numbers))
        named = {f"{number}.{name}": tensor.detach().numpy() for name, tensor in module.named_parameters()}
        for name, tensor in named.items():
            if name not in self.stored:
                self.stored[name] = numpy_helper.from_array(np.ascontiguousarray(tensor.T), name)
        return list(named)
