"""Export to ONNX: encoder, heads and pooling in one graph, compared with torch before the file is published."""

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
from torch import Tensor

from bertkit._version import __version__
from bertkit.checkpoint.save_load import Checkpoint, bertkit_settings, folder_config, state_length
from bertkit.config import BertConfig
from bertkit.engine.batches import Passage, make_batch, truncate
from bertkit.errors import BertkitError, RequestError
from bertkit.files import refuse_to_overwrite, whole_folder
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel, parameter_count
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import DEFAULT_POOLING
from bertkit.predict.onnx.graph import VECTORS, Graph, named_outputs
from bertkit.progress import ShowProgress, silent
from bertkit.text.tokenizer import Tokenizer

OPSET = 18  # the lowest that torch's exporter writes without converting down
TOLERANCE = 1e-4  # between onnxruntime's outputs and torch's; relative for values over 1
CHECK_TEXTS = 100  # one of the full length by itself, then batches of `BATCH_TEXTS`
BATCH_TEXTS = 9
BATCH_TOKENS, LONG_TOKENS = 96, 512  # most tokens of a text in a batch, and of the one by itself
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MAX_FILE_BYTES = 1_900_000_000  # protocol buffers end at 2 GB: weights of larger models go to a file of their own


@dataclass(frozen=True)
class Exported:
    """The written file, and how near its outputs are to torch's."""

    path: Path
    answers: tuple[str, ...]  # "vectors" or names of heads
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float  # the largest between any outputs on any text, measured as for TOLERANCE
    opset: int = OPSET
    texts: int = CHECK_TEXTS
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        return (
            f"{self.path}: ONNX opset {self.opset}, {', '.join(self.inputs)} -> {', '.join(self.outputs)}\n"
            f"checked on {self.texts} texts: differs from torch by {self.difference:.1e} (tolerance {self.tolerance})"
        )


def export_onnx(
    checkpoint: Checkpoint, path: Path | str, *, answers: Sequence[str] | None = None, show: ShowProgress = silent
) -> Exported:
    """Write model.onnx, the tokenizer, config.json and bertkit.json to a new folder; all of them or none.

    A path that ends in .onnx names the file in that folder. `answers`: "vectors" or heads of the model; by default all
    heads, or vectors for a sentence model and for one without heads.
    """
    _require_packages()
    if checkpoint.model.config.recurrent:
        raise RequestError("ONNX files are for models with attention, and this model's layers are recurrent")
    folder, name = onnx_file(Path(path))
    graph = Graph(checkpoint.model, _answers(checkpoint, answers), _embed_settings(checkpoint))
    if checkpoint.tokenizer is None:
        raise RequestError("the model has no tokenizer, and the file would be of no use without; name one: --tokenizer")
    with whole_folder(folder) as draft, torch.inference_mode():
        _write_graph(graph, draft / name)
        passages = _check_passages(checkpoint.tokenizer, checkpoint.model.config, checkpoint.max_length)
        difference = _largest_difference(checkpoint.model, graph, draft / name, passages, show)
        if not difference <= TOLERANCE:  # NaN too
            raise BertkitError(
                f"{folder / name} was not written: its answers differ from torch's by {difference:.1e}, "
                f"over the tolerance of {TOLERANCE}"
            )
        exported = Exported(folder / name, graph.answers, graph.inputs, graph.outputs, difference)
        _write_settings(checkpoint, exported, draft)
    return exported


def _require_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise RequestError(f"ONNX files need {' and '.join(missing)}; install: pip install 'bertkit[onnx]'")


def onnx_file(path: Path) -> tuple[Path, str]:
    """The folder and the name of the file; the folder must be new or empty, since other files go there too."""
    folder, name = (path.parent, path.name) if path.suffix == ".onnx" else (path, "model.onnx")
    if folder != path and folder.is_dir() and any(folder.iterdir()):
        raise RequestError(
            f"{folder}/ holds files already, and a tokenizer and settings go beside {name}; "
            f"name a new folder: {folder / path.stem / name}"
        )
    refuse_to_overwrite(folder)
    return folder, name


def _answers(checkpoint: Checkpoint, answers: Sequence[str] | None) -> tuple[str, ...]:
    """The checked names of answers, or the default."""
    heads = tuple(checkpoint.model.heads)
    if isinstance(answers, str):
        raise RequestError(f"answers={answers!r} is a text; give a list of names: [{answers!r}]")
    if "decoder" in (heads if answers is None else answers):
        raise RequestError(
            "this model has a decoder, which writes a token at a time and is not exported; "
            "export its encoder's vectors: answers=['vectors']"
        )
    if answers is None:
        return heads if heads and checkpoint.embed is None else (VECTORS,)
    for name in answers:
        if name not in (VECTORS, *heads):
            raise RequestError(f"this model has no '{name}' to export; choose from: {', '.join((VECTORS, *heads))}")
    if not answers or len(set(answers)) != len(answers):
        raise RequestError(f"answers={list(answers)} must name each answer once, and one at least")
    return tuple(answers)


def _embed_settings(checkpoint: Checkpoint) -> EmbedSettings:
    """The settings of `embed`; a folder without pooling gets the default, since the graph has a sentence embedding."""
    settings, depth = checkpoint.embed or EmbedSettings(), checkpoint.model.config.depth
    if not all(-depth - 1 <= layer <= depth for layer in settings.layers):
        raise RequestError(f"the folder asks for vectors of layers {settings.layers}, and the model has {depth}")
    return settings.changed(pooling=DEFAULT_POOLING) if settings.per_token else settings


def _write_graph(graph: Graph, path: Path) -> None:
    """Trace the graph with a dynamic batch size and length, and write it without paths of this machine."""
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
        assert program is not None  # only the older exporter returns None
        _remove_metadata(program.model)
        program.save(path, external_data=4 * parameter_count(graph) > MAX_FILE_BYTES)


def _remove_metadata(model: Any) -> None:
    """Remove what the exporter notes on each node: the file and line where it was traced."""
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
    """Silence the exporter's messages on missing optional packages and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _check_passages(tokenizer: Tokenizer, config: BertConfig, limit: int) -> list[Passage]:
    """Texts of random words of the vocabulary, from none to as many as fit; every second text is a pair."""
    random, words = np.random.default_rng(0), sorted(tokenizer.vocab)
    sizes = np.geomspace(1, min(limit, BATCH_TOKENS), CHECK_TEXTS - 1).astype(int) - 1
    passages = []
    for number, size in enumerate([limit, *sizes[random.permutation(CHECK_TEXTS - 1)]]):
        chosen = [words[index] for index in random.integers(len(words), size=min(size, LONG_TOKENS))]
        text, pair = " ".join(chosen[: size // 2]), " ".join(chosen[size // 2 :])
        encoding = tokenizer.encode(text, pair) if number % 2 else tokenizer.encode(" ".join(chosen))
        passage = truncate(encoding, min(limit, BATCH_TOKENS if number else LONG_TOKENS))
        known = config.segments > max(passage.segments)
        passages.append(passage if known else Passage(passage.ids, [0] * len(passage.ids)))
    return passages


def _largest_difference(
    model: BertModel, graph: Graph, path: Path, passages: Sequence[Passage], show: ShowProgress
) -> float:
    """Between the outputs of onnxruntime on padded batches and of torch on packed ones."""
    session = _session(path)
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        model = copy.deepcopy(model).float()
    largest = np.float64(0)
    with show("checking", len(passages)) as meter:
        for start in range(1 - BATCH_TEXTS, len(passages), BATCH_TEXTS):  # the first batch has one text
            batch = make_batch(passages[max(start, 0) : start + BATCH_TEXTS], model.device)
            outputs = session.run(list(graph.outputs), _feeds(graph, batch.to("cpu")))
            expected = [output for answer in graph.answers for output in _expected(model, graph, answer, batch)]
            for padded, reference in zip(outputs, expected, strict=True):
                output = _without_padding(torch.from_numpy(padded), reference, batch)
                largest = np.maximum(largest, _difference(output, reference.float().cpu()))
            meter.update(start + BATCH_TEXTS)
    return float(largest)


def _session(path: Path) -> Any:
    """An onnxruntime session with torch's number of threads, which do not spin while torch computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _feeds(graph: Graph, batch: Batch) -> dict[str, np.ndarray]:
    """The batch padded, as a user would do it; for a model of choices, nine texts are 3 questions with 3 choices."""
    cells = (batch.pad(batch.ids, fill=graph.model.config.pad_id), batch.mask.long(), batch.pad(batch.segments))
    side = int(len(batch.lengths) ** 0.5)
    shaped = [cell.view(side, -1, batch.longest) if graph.choosing else cell for cell in cells]
    return {name: cell.numpy() for name, cell in zip(graph.inputs, shaped, strict=False)}


def _expected(model: BertModel, graph: Graph, answer: str, batch: Batch) -> list[Tensor]:
    """Torch's outputs, packed, by the plain encoder: never a packed-weight, int8 or ONNX engine."""
    if answer == VECTORS:
        states = model.encoder.hidden_states(batch)
        x_TD, embed = torch.cat([states[layer] for layer in graph.embed.layers], dim=-1), graph.embed
        return [states[-1], embed.vectors(x_TD, batch)]
    return named_outputs(answer, model.logits(batch, answer))


def _without_padding(output: Tensor, expected: Tensor, batch: Batch) -> Tensor:
    """A padded output in the packed shape of the expected one."""
    per_token = len(expected) == len(batch.ids)  # a text has at least two tokens, so that no other output is as long
    return output[batch.mask.cpu()] if per_token else output.reshape(expected.shape)


def _difference(output: Tensor, expected: Tensor) -> float:
    if not bool(torch.isfinite(output).all()):
        return float("inf")
    return float(((output - expected).abs() / expected.abs().clamp(min=1)).max())


def _write_settings(checkpoint: Checkpoint, exported: Exported, folder: Path) -> None:
    """Write the tokenizer, config.json for other tools, and bertkit.json."""
    assert checkpoint.tokenizer is not None
    checkpoint.tokenizer.save(folder)
    state_length(folder / "tokenizer_config.json", checkpoint.max_length)
    settings, _ = folder_config(checkpoint.model, checkpoint.labels)
    bertkit_json = bertkit_settings(checkpoint)
    if VECTORS in exported.answers:
        bertkit_json["embed"] = _embed_settings(checkpoint).as_json()
    bertkit_json |= {"labels": list(checkpoint.labels), "pad_id": checkpoint.model.config.pad_id}
    bertkit_json["onnx"] = {**asdict(exported), "path": exported.path.name}
    for name, content in {"config.json": {**settings, **checkpoint.settings}, "bertkit.json": bertkit_json}.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
