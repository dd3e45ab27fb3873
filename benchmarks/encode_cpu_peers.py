"""Encoders as their users would best run them on a CPU: the other side of encode_cpu.py, one child process each.

Every engine takes texts and gives vectors (mean over tokens), tokenization inside. Peers that pad get their texts
sorted by length, and each is tried with several batch sizes and ways of threading (`TUNINGS`).
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

CORES = os.cpu_count() or 1
WAYS = [(1, CORES), (CORES, 1)]  # (batches at a time, threads for each)
BATCHES = [1, 2, 4, 8, 16, 32]
Encode = Callable[[Sequence[str], int], np.ndarray]  # texts, and how many go together where an engine asks for that


def bertkit_engine(folder: Path, tuning: dict[str, Any]) -> Encode:
    """Ours, as it comes; with `quantize` the int8 one."""
    import torch

    import bertkit

    torch.set_num_threads(CORES)
    bert = bertkit.load(folder, **tuning)
    return lambda texts, batch: bert.embed(texts[0])[None] if len(texts) == 1 else bert.embed(texts)


def reference(folder: Path, tuning: dict[str, Any]) -> Encode:
    """What transformers gives in float32, texts of one length together, so that nothing is padded. Not timed."""
    import torch
    from transformers import BertModel

    torch.set_num_threads(1)
    tokenizer = load_tokenizer(folder)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()

    def encode(texts: Sequence[str], batch: int) -> np.ndarray:
        rows = [each.ids for each in tokenizer.encode_batch(list(texts))]
        vectors = np.empty((len(rows), model.config.hidden_size), dtype=np.float32)
        for length in set(map(len, rows)):
            own = [number for number, row in enumerate(rows) if len(row) == length]
            with torch.inference_mode():
                vectors[own] = model(torch.tensor([rows[i] for i in own])).last_hidden_state.mean(1).numpy()
        return vectors

    return encode


def sentence_transformers(folder: Path, tuning: dict[str, Any]) -> Encode:
    """sentence-transformers, which sorts by length; alone with its defaults, or with a batch size that was tried."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 512
    return lambda texts, batch: model.encode(list(texts), batch_size=batch or 32)


def ctranslate2_engine(folder: Path, tuning: dict[str, Any]) -> Encode:
    """CTranslate2 in float32."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    converted = folder / "ctranslate2"
    if not converted.exists():
        TransformersConverter(str(folder)).convert(str(converted))
    at_a_time, threads = tuning["way"]
    encoder = ctranslate2.Encoder(
        str(converted), compute_type="float32", inter_threads=at_a_time, intra_threads=threads
    )

    def run(rows: list[list[int]]) -> np.ndarray:
        hidden = np.asarray(encoder.forward_batch(rows).last_hidden_state)
        return mean(hidden, padded(rows)[1])

    return sorted_batches(folder, run, tuning)


def onnxruntime_engine(folder: Path, tuning: dict[str, Any]) -> Encode:
    """ONNX Runtime over the graph that its transformers optimizer has fused."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = tuning["way"][1]
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = onnxruntime.InferenceSession(str(fused_onnx(folder)), options, providers=["CPUExecutionProvider"])

    def run(rows: list[list[int]]) -> np.ndarray:
        ids, mask = padded(rows)
        [hidden] = session.run(["hidden"], {"input_ids": ids, "attention_mask": mask})
        return mean(hidden, mask)

    return sorted_batches(folder, run, tuning)


def openvino_engine(folder: Path, tuning: dict[str, Any]) -> Encode:
    """OpenVINO over the plain ONNX graph: as many streams as batches at a time."""
    import openvino

    at_a_time, threads = tuning["way"]
    settings = {
        "NUM_STREAMS": str(at_a_time),
        "INFERENCE_NUM_THREADS": str(at_a_time * threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_HYPER_THREADING": "YES",
    }
    compiled = openvino.Core().compile_model(str(plain_onnx(folder)), "CPU", settings)
    alone, queue = compiled.create_infer_request(), openvino.AsyncInferQueue(compiled, at_a_time)

    def run(rows: list[list[int]]) -> np.ndarray:
        ids, mask = padded(rows)
        return mean(alone.infer({"input_ids": ids, "attention_mask": mask})["hidden"], mask)

    def run_all(batches: list[list[list[int]]]) -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        rectangles = [padded(rows) for rows in batches]

        def keep(request: Any, number: int) -> None:
            found[number] = mean(request.get_output_tensor(0).data, rectangles[number][1])

        queue.set_callback(keep)
        for number, (ids, mask) in enumerate(rectangles):
            queue.start_async({"input_ids": ids, "attention_mask": mask}, number)
        queue.wait_all()
        return [found[number] for number in range(len(batches))]

    return sorted_batches(folder, run, tuning, run_all)


ENGINES: dict[str, Callable[[Path, dict[str, Any]], Encode]] = {
    "bertkit": bertkit_engine,
    "bertkit with ONNX Runtime": bertkit_engine,
    "bertkit int8": bertkit_engine,
    "CTranslate2": ctranslate2_engine,
    "OpenVINO": openvino_engine,
    "ONNX Runtime fused": onnxruntime_engine,
    "sentence-transformers": sentence_transformers,
    "transformers": reference,
}
# Ways to load an engine; those with a `way` (batches at a time, threads for each) are tried with each batch size, too.
TUNINGS: dict[str, list[dict[str, Any]]] = {
    "bertkit": [{}],
    "bertkit with ONNX Runtime": [{"backend": "onnx"}],
    "bertkit int8": [{"quantize": "int8"}],
    "CTranslate2": [{"way": way} for way in WAYS],
    "OpenVINO": [{"way": way} for way in WAYS],
    "ONNX Runtime fused": [{"way": way} for way in WAYS],
    "sentence-transformers": [{"way": (1, CORES)}],
    "transformers": [{}],
}


def plain_onnx(folder: Path) -> Path:
    """The model as an ONNX graph, exported once from transformers with the attention that the optimizer knows."""
    path = folder / "plain.onnx"
    if path.exists():
        return path
    import torch
    from transformers import BertModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]

    ids = torch.randint(1000, 30000, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {name: {0: "texts", 1: "tokens"} for name in ("input_ids", "attention_mask", "hidden")}
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden"], "dynamic_axes": axes}
    torch.onnx.export(Hidden().eval(), (ids, mask), str(path), opset_version=17, dynamo=False, **names)
    return path


def fused_onnx(folder: Path) -> Path:
    """The same graph with attention, GELU and the norms fused by ONNX Runtime's own optimizer."""
    path = folder / "fused.onnx"
    if path.exists():
        return path
    import json

    from onnxruntime.transformers.optimizer import optimize_model

    config = json.loads((folder / "config.json").read_text())
    heads, width = config["num_attention_heads"], config["hidden_size"]
    fused = optimize_model(str(plain_onnx(folder)), model_type="bert", num_heads=heads, hidden_size=width, opt_level=0)
    kinds = [node.op_type for node in fused.model.graph.node]
    assert kinds.count("Attention") == config["num_hidden_layers"], "the optimizer did not fuse the attention"
    fused.save_model_to_file(str(path))
    return path


def load_tokenizer(folder: Path) -> Any:
    """The folder's own, without the padding that it may ask for."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    return tokenizer


def sorted_batches(
    folder: Path,
    run: Callable[[list[list[int]]], np.ndarray],
    tuning: dict[str, Any],
    run_all: Callable[[list[list[list[int]]]], list[np.ndarray]] | None = None,
) -> Encode:
    """Texts tokenized, sorted by length, cut in batches, some of them at a time; one text goes straight through."""
    tokenizer, pool = load_tokenizer(folder), ThreadPoolExecutor(tuning["way"][0])
    several = run_all or (lambda batches: list(pool.map(run, batches)))

    def encode(texts: Sequence[str], batch: int) -> np.ndarray:
        if len(texts) == 1:
            return run([tokenizer.encode(texts[0]).ids])
        rows = [each.ids for each in tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        batches = [[rows[i] for i in order[at : at + batch]] for at in range(0, len(rows), batch)]
        found = np.concatenate(several(batches))
        vectors = np.empty_like(found)
        vectors[order] = found
        return vectors

    return encode


def padded(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask as a rectangle."""
    longest = max(map(len, rows))
    ids, mask = np.zeros((2, len(rows), longest), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


def mean(hidden_NLD: np.ndarray, mask_NL: np.ndarray) -> np.ndarray:
    """N D: over the tokens that are there."""
    if mask_NL.all():
        return hidden_NLD.mean(1)
    return np.einsum("nld,nl->nd", hidden_NLD, mask_NL.astype(np.float32)) / mask_NL.sum(1, keepdims=True)


def serve(connection: Connection, name: str, folder: Path, tuning: dict[str, Any]) -> None:
    """A child's life: load, say so, then encode what is sent and answer with vectors, wall and CPU seconds."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    encode = ENGINES[name](folder, tuning)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        texts, batch, repeats = order
        walls, cpus = [], []
        for _ in range(repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            vectors = encode(texts, batch)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        connection.send((vectors, walls, cpus))
