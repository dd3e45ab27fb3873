"""Every engine computes every family as torch's operations do: a new family or engine is tested by its row here."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from bertkit.config import family_config, override
from bertkit.engine.batches import Forward, fastest
from bertkit.engine.cpu import CpuOperations
from bertkit.engine.cuda import CudaOperations, can_fuse
from bertkit.engine.onnx import OnnxEncoder, OnnxNodes, refuse_unsupported
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.encoder import AttentionRecorder
from bertkit.model.model import new_model
from bertkit.model.operations import TORCH, Operations
from bertkit.predict.onnx.graph import PADDED, Rectangle
from bertkit.predict.quantize import quantize

pytestmark = pytest.mark.usefixtures("_one_thread")
LENGTHS = (5, 5, 1, 17, 40)
PARTS = (
    "causal=true",
    "activation=relu",
    "position=rotary",
    "norm=pre",
    "feed_forward=gated",
    "bias=false",
    "window=8",
)
ROWS = [*FAMILIES, *(f"bert {part}" for part in PARTS)]


def model_of(row):
    family, *changes = row.split()
    return new_model(
        override(family_config(family, "tiny", vocab_size=60, max_length=64, init_std=0.1), *changes)
    ).eval()


def batch_of(lengths):
    generator = torch.Generator().manual_seed(0)
    return Batch.pack([torch.randint(60, (length,), generator=generator).tolist() for length in lengths])


def near(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def nearly_parallel(found, expected):
    assert F.cosine_similarity(found, expected).mean() > 0.99


def by_cpu(model, batch):
    forward = fastest(model.encoder)
    assert isinstance(forward.ops, CpuOperations)
    return forward(batch)


def by_int8(model, batch):
    quantize(model, "int8")
    return by_cpu(model, batch)


def by_cuda(model, batch):
    """Its kernels are run by Triton's interpreter."""
    return Forward(model.encoder, CudaOperations())(batch)


def by_onnx_runtime(model, batch):
    made = OnnxEncoder(model.encoder, 64, threads=1)
    return torch.cat([torch.from_numpy(made(part.tolist())) for part in batch.split(batch.ids)])


def by_rectangles(model, batch):
    """What exported graphs are traced from."""
    cells = Rectangle.of(batch.pad(batch.ids), batch.mask.long(), batch.pad(batch.segments))
    return model.encoder(cells, ops=PADDED)[batch.mask.flatten()]


def by_recorder(model, batch):
    """Traces follow one sequence; the values are torch's own."""
    return torch.cat(
        [model.encoder(Batch.pack([part.tolist()]), ops=AttentionRecorder()) for part in batch.split(batch.ids)]
    )


@dataclass(frozen=True)
class Engine:
    compute: Callable
    agrees: Callable = near
    takes: Callable[..., bool] = lambda encoder: True


def onnx_takes(encoder):
    try:
        refuse_unsupported(encoder)
    except RequestError:
        return False
    return True


def cuda_takes(encoder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertkit.engine.cuda.triton_supports_inference", lambda x: True)
        return can_fuse(encoder)


def has_attention(encoder):
    return not encoder.config.recurrent


ENGINES = {
    "cpu": Engine(by_cpu),
    "int8": Engine(by_int8, nearly_parallel, has_attention),
    "cuda": Engine(by_cuda, takes=cuda_takes),
    "onnx runtime": Engine(by_onnx_runtime, takes=onnx_takes),
    "rectangles": Engine(by_rectangles, takes=has_attention),
    "recorder": Engine(by_recorder),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_computes_what_torch_computes(name, row, monkeypatch):
    monkeypatch.setattr("bertkit.predict.quantize.MIN_MEAN_COSINE", 0.0)  # so small a model suffers from int8
    engine, model, batch = ENGINES[name], model_of(row), batch_of(LENGTHS)
    with torch.inference_mode():
        expected = model.encoder(batch)
        if engine.takes(model.encoder):
            engine.agrees(engine.compute(model, batch), expected)


ATTENDING = [row for row in ROWS if has_attention(model_of(row).encoder)]
RECURRENT = {name: set(ROWS) - set(ATTENDING) if name in ("cpu", "recorder") else () for name in ENGINES}
FUSED = ["bert", "roberta", "electra", "distilbert", "bert causal=true"]
NEVER_FUSED = ["modernbert", "bert activation=relu", "bert norm=pre", "bert bias=false", "bert feed_forward=gated"]
TAKEN = {"cuda": [*FUSED, "bert position=rotary", "bert window=8"], "onnx runtime": [*FUSED, "albert"]}
REFUSED = {
    "cuda": [*NEVER_FUSED, "albert"],  # whose GELU is another
    "onnx runtime": [*NEVER_FUSED, "bert position=rotary", "bert window=8"],
}


@pytest.mark.parametrize("name", ENGINES)
def test_engines_take_what_they_compute_and_refuse_the_rest(name):
    takes = ENGINES[name].takes
    with torch.inference_mode():
        assert all(takes(model_of(row).encoder) for row in TAKEN.get(name, [*ATTENDING, *RECURRENT[name]]))
        refused = [*REFUSED.get(name, []), *({*ROWS} - {*ATTENDING, *RECURRENT[name]})]
        assert not any(takes(model_of(row).encoder) for row in refused)


def test_engines_override_operations_and_add_none_that_layers_could_not_call():
    known = {name for name in vars(Operations) if not name.startswith("_")}
    for kind in (CpuOperations, CudaOperations, type(PADDED), AttentionRecorder, OnnxNodes):
        own = {name for name, each in vars(kind).items() if not name.startswith("_") and callable(each)} - {"read"}
        assert own, "an engine without an operation of its own"
        assert own <= known, kind.__name__


def test_layers_do_no_arithmetic_of_their_own():
    """Operations that count stand in for torch's: all that a layer computes goes through them."""
    called = []

    class Counting(Operations):
        def __getattribute__(self, name):
            operation = super().__getattribute__(name)
            return lambda *given: called.append(name) or operation(*given)

    with torch.inference_mode():
        model_of("bert").encoder(batch_of((4,)), ops=Counting())
        layer = ["project", "attend", "output", "add_norm", "activate", "output", "add_norm"]
        assert called == ["prepare", "embed", *layer, *layer, "norm", "finish"]
        called.clear()
        model_of("modernbert").encoder(batch_of((4,)), ops=Counting())
        layer = ["norm", "project", "attend", "output", "add", "norm", "gate", "project", "output", "add"]
        assert called == ["prepare", "embed", *layer, *layer, "norm", "finish"]


def test_gradients_and_hooks_keep_torchs_operations():
    model = model_of("bert")
    assert fastest(model.encoder).ops is TORCH, "gradients may be asked for"
    with torch.inference_mode():
        model.encoder.layers[0].attention.register_forward_hook(lambda *_: None)
        assert fastest(model.encoder).ops is TORCH
