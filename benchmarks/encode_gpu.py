"""Texts to vectors on one GPU in bfloat16: ours beside transformers and sentence-transformers, BERT-base's shape.

    python benchmarks/encode_gpu.py --vocab FOLDER --texts CORPUS.txt.zst --out RESULT.json

8,192 texts of each mix of lengths (log-normal, median 24 and 180 tokens, 512 at most), cut from real sentences. Once
from token ids, so that only the model counts, and once from text. transformers gets its texts sorted by length, padded
by NumPy into pinned memory, 64 in a batch and with the batch size and the attention that were best for it;
sentence-transformers sorts by itself and gets the same attention. Rounds are interleaved in one process, the vectors
are compared with float32's, and the share is of the matrix products' rate measured just before.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config, override
from bertkit.engine.batches import Passage, truncate
from bertkit.engine.embed import embed_passages
from bertkit.files import whole_file
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert, load
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.tokenizer import Tokenizer

MEDIANS = {"short": 24, "passages": 180}
LONGEST = 512
BATCHES = (64, 128, 256, 512, 1024, 2048)  # what the peers are tried with
ATTENTIONS = ("sdpa", "flash_attention_2", "flash_attention_3")  # those that this machine can load
Encode = Callable[[], np.ndarray]


def main() -> None:
    options = read_options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(options, Path(name) / "model")
        mixes = {mix: make_texts(options, folder, middle) for mix, middle in MEDIANS.items()}
        report = {"device": describe(device), "torch": torch.__version__, "rounds": options.rounds, "mixes": {}}
        engines = Engines(folder, device)
        for mix, texts in mixes.items():
            report["mixes"][mix] = measure(engines, texts, device, options.rounds)
            print(json.dumps({mix: report["mixes"][mix]}, indent=2), flush=True)
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=Path, required=True, help="a tokenizer's folder")
    parser.add_argument("--texts", type=Path, required=True, help="documents apart by blank lines, or JSONL")
    parser.add_argument("--count", type=int, default=8192, help="texts of each mix")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", nargs="*", default=[], help="changes to BERT-base's shape, such as depth=2")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def make_model(options: argparse.Namespace, folder: Path) -> Path:
    """BERT-base's shape, random weights, and the tokenizer that was given."""
    tokenizer = Tokenizer.load(options.vocab)
    config = override(family_config("bert", "base", vocab_size=tokenizer.size), *options.shape)
    save_checkpoint(Checkpoint(model=new_model(config), tokenizer=tokenizer), folder)
    return folder


def make_texts(options: argparse.Namespace, folder: Path, middle: int) -> list[str]:
    """Pieces of the corpus, word by word, whose lengths in tokens are about log-normal."""
    random, tokenizer = np.random.default_rng(0), Tokenizer.load(folder)
    wanted = np.clip(random.lognormal(np.log(middle), 0.6, options.count), 3, LONGEST).astype(int)
    words: list[str] = []
    for document in read_documents([options.texts], report=CorpusReport()):
        words += " ".join(document.paragraphs).split()
        if len(words) >= int(wanted.sum()):
            break
    each = sum(tokenizer.count([" ".join(words[:5000])])) / 5000  # tokens a word
    texts, at = [], 0
    for length in wanted:
        count = max(1, round((length - 2) / each))
        texts.append(" ".join(words[at : at + count]))
        at = (at + count) % (len(words) - LONGEST)
    return texts


class Engines:
    """The three, each loaded once."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.device, self.folder, self.refused = device, folder, dict[str, str]()
        self.ours: Bert = load(folder).to(device, "bfloat16")
        self.exact: Bert = load(folder).to(device)
        self.theirs = {name: model for name in ATTENTIONS if (model := self._transformers(name)) is not None}

    def _transformers(self, attention: str) -> torch.nn.Module | None:
        """The peer with one implementation of attention; none where this machine has not what it needs."""
        from transformers import AutoModel

        try:
            model = AutoModel.from_pretrained(self.folder, dtype=torch.bfloat16, attn_implementation=attention)
            model = model.to(self.device).eval()
            with torch.inference_mode():
                model(input_ids=torch.ones(2, 16, dtype=torch.long, device=self.device))
            return model
        except Exception as error:  # whatever is missing, the others can be measured
            self.refused[attention] = str(error).strip().splitlines()[0][:200]
            return None

    def load_sentences(self, attention: str) -> None:
        """sentence-transformers with the attention that was best for transformers."""
        from sentence_transformers import SentenceTransformer

        how = {"dtype": torch.bfloat16, "attn_implementation": attention}
        self.sentences = SentenceTransformer(str(self.folder), device=str(self.device), model_kwargs=how)
        self.sentences.max_seq_length = LONGEST

    def passages(self, texts: Sequence[str]) -> list[Passage]:
        """Encoded, and cut to what the model takes."""
        return [truncate(Passage(*plain), LONGEST) for plain in self.ours.tokenizer.encode_plain(list(texts))]

    def bertkit(self, passages: Sequence[Passage]) -> np.ndarray:
        """From ids."""
        settings = self.ours.checkpoint.embed_settings(pooling="mean").resolved(self.ours.model.config.depth)
        return np.asarray(embed_passages(self.ours.model, passages, settings, LONGEST, "truncate"))

    def transformers(self, rows: Sequence[np.ndarray], batch: int, attention: str) -> np.ndarray:
        """From ids, sorted by length, padded to the longest of each batch, mean over tokens."""
        lengths = np.array([len(row) for row in rows])
        order, model, pooled = np.argsort(-lengths, kind="stable"), self.theirs[attention], []
        with torch.inference_mode():
            for at in range(0, len(order), batch):
                chosen = order[at : at + batch]
                ids, mask = self._padded([rows[i] for i in chosen], lengths[chosen])
                # Without padding there is nothing to mask, and attention takes its quickest kernel.
                hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
                if mask is None:
                    pooled.append(hidden.mean(1))
                    continue
                kept = mask[:, :, None].to(hidden.dtype)
                pooled.append((hidden * kept).sum(1) / kept.sum(1))
        vectors = torch.cat(pooled).float().cpu().numpy()
        found = np.empty_like(vectors)
        found[order] = vectors
        return found

    def _padded(self, rows: Sequence[np.ndarray], lengths: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Ids and mask on the device, by way of pinned memory."""
        on_cuda = self.device.type == "cuda"
        ids = torch.zeros(len(rows), int(lengths[0]), dtype=torch.long, pin_memory=on_cuda)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        ids.numpy()[real] = np.concatenate(rows)
        if real.all():
            return ids.to(self.device, non_blocking=True), None
        mask = torch.from_numpy(real.astype(np.int64))
        mask = mask.pin_memory() if on_cuda else mask
        return ids.to(self.device, non_blocking=True), mask.to(self.device, non_blocking=True)

    def sentence_transformers(self, texts: Sequence[str], batch: int) -> np.ndarray:
        """From text: it sorts, pads and tokenizes itself."""
        found: np.ndarray = self.sentences.encode(list(texts), batch_size=batch, show_progress_bar=False)
        return found


def measure(engines: Engines, texts: list[str], device: torch.device, rounds: int) -> dict[str, object]:
    passages = engines.passages(texts)
    lengths = np.array([len(passage.ids) for passage in passages])
    config = engines.ours.model.config
    weights = 4 * config.width**2 + 2 * config.width * config.inner
    flops = config.depth * (2 * weights * lengths.sum() + 4 * config.width * (lengths.astype(float) ** 2).sum())
    rows = [np.array(passage.ids) for passage in passages]
    grid = {
        (size, kind): lambda s=size, k=kind: engines.transformers(rows, s, k)
        for kind in engines.theirs
        for size in BATCHES
    }
    batch, attention = quickest(grid, device)
    engines.load_sentences(attention)
    theirs = quickest({size: lambda s=size: engines.sentence_transformers(texts, s) for size in BATCHES}, device)
    ways: dict[str, Encode] = {
        "bertkit, from ids": lambda: engines.bertkit(passages),
        "transformers sorted, from ids": lambda: engines.transformers(rows, batch, attention),
        "transformers sorted, 64 a batch, from ids": lambda: engines.transformers(rows, 64, attention),
        "bertkit, from text": lambda: engines.ours.embed(texts, pooling="mean"),
        "sentence-transformers, from text": lambda: engines.sentence_transformers(texts, theirs),
    }
    exact = engines.exact.embed(texts[:256], pooling="mean")
    found: dict[str, dict[str, object]] = {
        name: {"seconds": [], "least cosine with float32": likeness(way()[:256], exact)} for name, way in ways.items()
    }
    rates = []
    for _ in range(rounds):
        rates.append(matmul_rate(device))
        for name, way in ways.items():
            found[name]["seconds"].append(round(timed(way, device), 4))
    rate = median(rates)
    for result in found.values():
        seconds = median(result["seconds"])
        result |= {
            "median": seconds,
            "texts/s": round(len(texts) / seconds),
            "tokens/s": round(lengths.sum() / seconds),
        }
        result["share of the matmul rate"] = round(flops / seconds / rate, 3)
    ours = {kind: found[f"bertkit, from {kind}"]["median"] for kind in ("ids", "text")}
    return {
        "texts": len(texts),
        "tokens": int(lengths.sum()),
        "median tokens": float(np.median(lengths)),
        "tflop": round(flops / 1e12, 2),
        "matmul TFLOP/s": [round(each / 1e12) for each in rates],
        "batch of transformers": batch,
        "attention of both peers": attention,
        "attention that this machine cannot load": engines.refused,
        "batch of sentence-transformers": theirs,
        "engines": found,
        "transformers over ours": round(found["transformers sorted, from ids"]["median"] / ours["ids"], 2),
        "transformers with 64 a batch over ours": round(
            found["transformers sorted, 64 a batch, from ids"]["median"] / ours["ids"], 2
        ),
        "sentence-transformers over ours": round(found["sentence-transformers, from text"]["median"] / ours["text"], 2),
    }


def timed(way: Callable[[], object], device: torch.device) -> float:
    """Seconds, all work done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - began


def quickest(ways: dict[Any, Callable[[], object]], device: torch.device) -> Any:
    """The key of the quickest, all warmed up by one of them; what does not run is out."""
    seconds = {}
    for key, way in ways.items():
        try:
            if not seconds:
                way()
            seconds[key] = timed(way, device)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(f"{key} does not run: {str(error).splitlines()[0][:120]}", flush=True)
    return min(seconds, key=seconds.__getitem__)


def matmul_rate(device: torch.device, size: int = 8192) -> float:
    """FLOP/s of a large square product in bfloat16, now."""
    size = size if device.type == "cuda" else 512
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        one @ one
    seconds = timed(lambda: [one @ one for _ in range(20)], device)
    return 20 * 2 * size**3 / seconds


def likeness(found: np.ndarray, exact: np.ndarray) -> float:
    """The least cosine with float32's."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    return round(float(((found.astype(np.float64) * exact).sum(1) / norms).min()), 5)


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
