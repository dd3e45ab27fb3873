"""A model as an ONNX file: encoder, head and pooling in one graph, checked against torch before it is written."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit._version import __version__
from bertkit.checkpoint.save_load import Checkpoint, bertkit_settings, folder_config, state_length
from bertkit.config import BertConfig
from bertkit.engine.batches import Passage, make_batch, truncate
from bertkit.errors import BertkitError, RequestError
from bertkit.files import refuse_to_overwrite, whole_folder
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel, parameter_count
from bertkit.model.pooling import EmbedSettings, pool
from bertkit.poolings import DEFAULT_POOLING
from bertkit.predict.onnx.graph import VECTORS, Graph, named_outputs
from bertkit.progress import ShowProgress, silent
from bertkit.text.tokenizer import Tokenizer

OPSET = 18  # the lowest that torch's exporter writes without converting down
TOLERANCE = 1e-4  # between onnxruntime's numbers and torch's, relative where a number is over 1
TEXTS = 100  # in the check: one of the full length alone, then rows of nine
ROWS = 9
SHORT, LONG = 96, 512  # the most tokens of a text in a row, and of the one that stands alone
NEEDED = ("onnx", "onnxscript", "onnxruntime")
ONE_FILE = 1_900_000_000  # bytes; a file over 2 GB cannot be one protocol buffer, so its weights lie beside it


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it is to torch."""

    path: Path
    answers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float  # the largest of all numbers of all outputs on all texts, as TOLERANCE counts it
    opset: int = OPSET
    texts: int = TEXTS
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        return (
            f"{self.path}: ONNX opset {self.opset}, {', '.join(self.inputs)} -> {', '.join(self.outputs)}\n"
            f"checked on {self.texts} texts: differs from torch by {self.difference:.1e} (tolerance {self.tolerance})"
        )


def export_onnx(
    checkpoint: Checkpoint, path: Path | str, *, answers: Sequence[str] | None = None, show: ShowProgress = silent
) -> Exported:
    """Write model.onnx, the tokenizer, config.json and bertkit.json to a new folder; whole or not at all.

    A path that ends in .onnx names the file in that folder. `answers`: "vectors" or heads of the model; without them
    all heads, or vectors where there are none or the folder is a sentence model's.
    """
    _require_packages()
    folder, name = onnx_place(Path(path))
    graph = Graph(checkpoint.model, _answers(checkpoint, answers), _embed_settings(checkpoint))
    if checkpoint.tokenizer is None:
        raise RequestError("the model has no tokenizer, and the file would be of no use without; name one: --tokenizer")
    with whole_folder(folder) as draft, torch.inference_mode():
        _write_graph(graph, draft / name)
        passages = _texts(checkpoint.tokenizer, checkpoint.model.config, checkpoint.max_length)
        difference = _difference(checkpoint.model, graph, draft / name, passages, show)
        if not difference <= TOLERANCE:  # NaN too
            raise BertkitError(
                f"{folder / name} was not written: its answers differ from torch's by {difference:.1e}, "
                f"over the tolerance of {TOLERANCE}"
            )
        done = Exported(folder / name, graph.answers, graph.inputs, graph.outputs, difference)
        _write_beside(checkpoint, done, draft)
    return done


def _require_packages() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise RequestError(f"ONNX files need {' and '.join(missing)}; install: pip install 'bertkit[onnx]'")


def onnx_place(path: Path) -> tuple[Path, str]:
    """The folder and the file's name; files go beside it, so the folder must be new or empty."""
    folder, name = (path.parent, path.name) if path.suffix == ".onnx" else (path, "model.onnx")
    if folder != path and folder.is_dir() and any(folder.iterdir()):
        raise RequestError(
            f"{folder}/ holds files already, and a tokenizer and settings go beside {name}; "
            f"name a new folder: {folder / path.stem / name}"
        )
    refuse_to_overwrite(folder)
    return folder, name


def _answers(checkpoint: Checkpoint, wanted: Sequence[str] | None) -> tuple[str, ...]:
    heads = tuple(checkpoint.model.heads)
    if isinstance(wanted, str):
        raise RequestError(f"answers={wanted!r} is a text; give a list of names: [{wanted!r}]")
    if wanted is None:
        return heads if heads and checkpoint.embed is None else (VECTORS,)
    for name in wanted:
        if name not in (VECTORS, *heads):
            raise RequestError(f"this model has no '{name}' to export; choose from: {', '.join((VECTORS, *heads))}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise RequestError(f"answers={list(wanted)} must name each answer once, and one at least")
    return tuple(wanted)


def _embed_settings(checkpoint: Checkpoint) -> EmbedSettings:
    """As `embed` would have them; without a pooling there is no sentence vector, so the default's stands for it."""
    settings, depth = checkpoint.embed or EmbedSettings(), checkpoint.model.config.depth
    if not all(-depth - 1 <= layer <= depth for layer in settings.layers):
        raise RequestError(f"the folder asks for vectors of layers {settings.layers}, and the model has {depth}")
    return settings.changed(pooling=DEFAULT_POOLING) if settings.per_token else settings


def _write_graph(graph: Graph, path: Path) -> None:
    """Trace the graph with any number of rows and any length, and write it without the traces of this machine."""
    dimensions = ("batch", "choices", "length") if graph.choosing else ("batch", "length")
    shape = (2, 3, 5) if graph.choosing else (2, 5)
    examples = tuple(torch.ones(shape, dtype=torch.int64) for _ in graph.inputs)
    limits = {"length": graph.model.config.max_length}
    axes = {n: torch.export.Dim(name, max=limits.get(name)) for n, name in enumerate(dimensions)}
    with _quiet():
        program = torch.onnx.export(
            graph.eval(),
            examples,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=[axes] * len(examples),
            verbose=False,
        )
        assert program is not None  # only the older exporter gives nothing back
        _forget_source(program.model)
        program.save(path, external_data=4 * parameter_count(graph) > ONE_FILE)


def _forget_source(model: Any) -> None:
    """The exporter writes down where in which file each step was traced; nobody else has those files."""
    model.producer_name, model.producer_version, model.doc_string = "bertkit", __version__, ""
    model.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = ""
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of packages that it misses and of its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _texts(tokenizer: Tokenizer, config: BertConfig, limit: int) -> list[Passage]:
    """Random words of the vocabulary, from none to as many as fit; every second text is a pair."""
    random, words = np.random.default_rng(0), sorted(tokenizer.vocab)
    sizes = [limit, *np.geomspace(1, min(limit, SHORT), TEXTS - 1).astype(int)[random.permutation(TEXTS - 1)] - 1]
    passages = []
    for number, size in enumerate(sizes):
        chosen = [words[index] for index in random.integers(len(words), size=min(size, LONG))]
        text, pair = " ".join(chosen[: size // 2]), " ".join(chosen[size // 2 :])
        encoding = tokenizer.encode(text, pair) if number % 2 else tokenizer.encode(" ".join(chosen))
        passage = truncate(encoding, min(limit, SHORT if number else LONG))
        known = config.segments > max(passage.segments)
        passages.append(passage if known else Passage(passage.ids, [0] * len(passage.ids)))
    return passages


def _difference(model: BertModel, graph: Graph, path: Path, passages: Sequence[Passage], show: ShowProgress) -> float:
    """The largest difference between onnxruntime, in padded rows, and torch, packed."""
    session = _session(path)
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        model = copy.deepcopy(model).float()
    largest = np.float64(0)
    with show("checking", len(passages)) as meter:
        for start in range(1 - ROWS, len(passages), ROWS):
            rows = passages[max(start, 0) : start + ROWS]
            batch = make_batch(rows, model.device)
            found = session.run(list(graph.outputs), _feeds(graph, batch.to("cpu")))
            expected = [output for answer in graph.answers for output in _expected(model, graph, answer, batch)]
            for one, two in zip(found, expected, strict=True):
                largest = np.maximum(largest, _apart(_counted(torch.from_numpy(one), two, batch), two.float().cpu()))
            meter.update(start + ROWS)
    return float(largest)


def _session(path: Path) -> Any:
    """With torch's number of threads, and none that spins while torch has its turn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _feeds(graph: Graph, batch: Batch) -> dict[str, np.ndarray]:
    """The batch in rows, as a user would pad it; nine rows are three questions with three choices."""
    cells = (batch.pad(batch.ids, fill=graph.model.config.pad_id), batch.mask.long(), batch.pad(batch.segments))
    side = int(len(batch.lengths) ** 0.5)
    shaped = [each.view(side, -1, batch.longest) if graph.choosing else each for each in cells]
    return {name: each.numpy() for name, each in zip(graph.inputs, shaped, strict=False)}


def _expected(model: BertModel, graph: Graph, answer: str, batch: Batch) -> list[Tensor]:
    """What torch says, packed; by the plain encoder, whatever quicker or quantized one answers elsewhere."""
    if answer == VECTORS:
        states = model.encoder.hidden_states(batch)
        vectors = pool(torch.cat([states[layer] for layer in graph.embed.layers], dim=-1), batch, graph.embed.pooling)
        return [states[-1], F.normalize(vectors, dim=-1) if graph.embed.normalize else vectors]
    return named_outputs(answer, model.logits(batch, answer))


def _counted(found: Tensor, expected: Tensor, batch: Batch) -> Tensor:
    """The part of an output that is no padding, packed as torch's."""
    per_token = len(expected) == len(batch.ids)  # a text has two tokens at least, so no other output is so long
    return found[batch.mask.cpu()] if per_token else found.reshape(expected.shape)


def _apart(found: Tensor, expected: Tensor) -> float:
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


def _write_beside(checkpoint: Checkpoint, done: Exported, folder: Path) -> None:
    """What a user of the file needs: the tokenizer, config.json for others' tools, and the rest in bertkit.json."""
    assert checkpoint.tokenizer is not None
    checkpoint.tokenizer.save(folder)
    state_length(folder / "tokenizer_config.json", checkpoint.max_length)
    settings, _ = folder_config(checkpoint.model, checkpoint.labels)
    own = bertkit_settings(checkpoint)
    if VECTORS in done.answers:
        own["embed"] = asdict(_embed_settings(checkpoint))
    own |= {"labels": list(checkpoint.labels), "pad_id": checkpoint.model.config.pad_id}
    own["onnx"] = {**asdict(done), "path": done.path.name}
    for name, content in {"config.json": {**settings, **checkpoint.settings}, "bertkit.json": own}.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
