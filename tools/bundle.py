"""Make the bundled model from a run's model, and compare it with the full-precision model.

    python tools/bundle.py run/model --out src/bertkit/pretrained [--max-length 128]
    python tools/bundle.py sentences-run/model --out src/bertkit/pretrained --sentences

The second command adds the variant for sentence vectors, from a model folder or a file of `save_delta`. It is stored as
the difference from the first, so tune it from the bundle: bertkit finetune vectors --from bundled ... rank=32. If full
tensors do not fit, low-rank approximations of the changes are stored, if these give the same vectors.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit.checkpoint.bundled import SMALL_FILE
from bertkit.checkpoint.delta import MIN_COSINE, load_delta, vector_cosines
from bertkit.checkpoint.delta import TEXTS as SENTENCE_TEXTS
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_small
from bertkit.engine.batches import Passage, make_batch
from bertkit.errors import BertkitError, RequestError
from bertkit.files import whole_folder
from bertkit.model.pooling import EmbedSettings

MAX_BYTES = 16_000_000  # of weights, for all variants together
SENTENCES_FOLDER = "sentences"
TEXTS = (
    "The capital of France is [MASK].",
    "She opened the [MASK] and walked into the garden.",
    "Water boils at one hundred [MASK].",
    "The committee [MASK] to postpone the vote until Monday.",
    "He was so tired that he fell [MASK] on the train.",
    "The river flows through three [MASK] before it reaches the sea.",
    "In winter the days are short and the [MASK] are long.",
    "A doctor should listen to what her [MASK] say.",
    "It is a truth that nobody [MASK] to hear.",
    "The first railway was built in the nineteenth [MASK].",
)


@dataclass(frozen=True)
class Bundled:
    """Size, load time and accuracy of a stored model."""

    bytes: int  # of the weights file
    load_seconds: float  # best of three, with tokenizer
    cosine_mean: float  # between the last vectors of each token in both models
    cosine_least: float
    worst_logit: float | None  # largest difference at a [MASK], over the whole vocabulary; None: no masked-word head
    largest_logit: float | None  # of the full model at a [MASK], for comparison
    same_first: int | None  # number of [MASK] with the same best word
    blanks: int


def bundle(run: Path, out: Path, max_length: int | None = None) -> Bundled:
    """Store the model of `run` in `out`, and remove an earlier bundle and its variant.

    `max_length` is for a model whose later positions are hardly trained: longer texts are cut or read through windows.
    """
    full = load_checkpoint(run)
    if max_length is not None:
        if not 2 < max_length <= full.max_length:
            raise RequestError(f"--max-length {max_length} is not between 3 and the model's own {full.max_length}")
        full = replace(full, max_length=max_length)
    with tempfile.TemporaryDirectory() as workspace:
        draft = Path(workspace) / "bundle"
        save_small(full, draft)
        bundled = measure(full, draft)
        _refuse_large(bundled.bytes)
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / SENTENCES_FOLDER, ignore_errors=True)  # it is a difference from the model that is replaced
        for file in sorted(path for path in draft.rglob("*") if path.is_file()):
            target = out / file.relative_to(draft)
            target.parent.mkdir(exist_ok=True)
            shutil.move(file, target)
    return bundled


def bundle_sentences(run: Path, out: Path) -> Bundled:
    """Store the model of `run`, a folder or a file of changes, in `out/sentences` as the difference from `out`."""
    tuned = load_delta(load_checkpoint(out), run) if run.is_file() else load_checkpoint(run)
    full, room = with_base_heads(load_checkpoint(out), tuned), MAX_BYTES - (out / SMALL_FILE).stat().st_size
    draft = out / f"{SENTENCES_FOLDER}.new"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        save_small(full, draft, delta=True)
        if (draft / SMALL_FILE).stat().st_size > room:
            shutil.rmtree(draft)
            save_small(full, draft, delta=True, budget=room)
            _refuse_other_vectors(full, load_checkpoint(draft))
        bundled = measure(full, draft)
        _refuse_large(bundled.bytes + (out / SMALL_FILE).stat().st_size)
        shutil.rmtree(out / SENTENCES_FOLDER, ignore_errors=True)
        with whole_folder(out / SENTENCES_FOLDER) as target:
            shutil.copytree(draft, target, dirs_exist_ok=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return bundled


def with_base_heads(base: Checkpoint, tuned: Checkpoint) -> Checkpoint:
    """The tuned encoder with the heads of the base model, which tuning for vectors has dropped."""
    state, before = tuned.model.state_dict(), base.model.state_dict()
    for name, tensor in before.items():
        if name.startswith("encoder.") and (name not in state or state[name].shape != tensor.shape):
            raise RequestError(f"{name} is missing in the tuned model or of another shape; tune the bundled one itself")
    base.model.load_state_dict({name: state.get(name, tensor) for name, tensor in before.items()})
    embed = tuned.embed or EmbedSettings(pooling="mean", normalize=True)
    return replace(base, embed=embed, max_length=tuned.max_length)


def measure(full: Checkpoint, folder: Path) -> Bundled:
    """Size and load time of the stored model, and the differences of its outputs from the full model's."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        small = load_checkpoint(folder)
        seconds.append(time.perf_counter() - start)
    (full_vectors, full_logits), (small_vectors, small_logits) = outputs(full), outputs(small)
    cosines = F.cosine_similarity(full_vectors, small_vectors, dim=-1)
    logits = None if full_logits is None or small_logits is None else (full_logits, small_logits)
    return Bundled(
        bytes=(folder / SMALL_FILE).stat().st_size,
        load_seconds=round(min(seconds), 3),
        cosine_mean=float(cosines.mean()),
        cosine_least=float(cosines.min()),
        worst_logit=float((logits[0] - logits[1]).abs().max()) if logits else None,
        largest_logit=float(logits[0].abs().max()) if logits else None,
        same_first=int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum()) if logits else None,
        blanks=len(TEXTS),
    )


def outputs(checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor | None]:
    """T D: the last vectors of all tokens of TEXTS; and the logits of their [MASK], if the model has that head."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    if tokenizer is None:
        raise RequestError("the model's folder holds no tokenizer; a bundle needs one")
    encodings = [tokenizer.encode(text.replace("[MASK]", tokenizer.mask_token)) for text in TEXTS]
    batch = make_batch([Passage(encoding.ids, encoding.segments) for encoding in encodings], model.device)
    with torch.inference_mode():
        hidden_TD = model(batch)
        if "masked_word" not in model.heads:
            return hidden_TD, None
        return hidden_TD, model.read("masked_word", hidden_TD[batch.ids == tokenizer.mask_id], batch)


def _refuse_other_vectors(full: Checkpoint, stored: Checkpoint) -> None:
    cosine = float(vector_cosines(full, stored, SENTENCE_TEXTS).mean())
    if cosine < MIN_COSINE:
        raise RequestError(
            f"stored in what is left of {MAX_BYTES:,} bytes, vectors have a mean cosine of {cosine:.4f} with those of "
            f"the full model, under {MIN_COSINE}; tune with rank=32 or less"
        )


def _refuse_large(size: int) -> None:
    if size > MAX_BYTES:
        raise RequestError(f"{size:,} bytes of weights are over the {MAX_BYTES:,} that a bundle may have")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a model folder, or a run's folder with its model/")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the bundled model")
    parser.add_argument(
        "--sentences", action="store_true", help="add the variant for sentence vectors to the model in --out"
    )
    parser.add_argument(
        "--max-length", type=int, help="maximum number of tokens, if the model was trained on shorter texts only"
    )
    options = parser.parse_args(arguments)
    try:
        if options.sentences and options.max_length:
            raise RequestError("--max-length is for the model itself; a variant reads as far as it was tuned to")
        if options.sentences:
            bundled = bundle_sentences(options.run, options.out)
        else:
            bundled = bundle(options.run, options.out, options.max_length)
        print(json.dumps(asdict(bundled), indent=2))
    except BertkitError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
