"""Make the model inside the package from a run's model, and hold it against the full-precision one.

    python tools/bundle.py run/model --out src/bertkit/pretrained [--max-length 128]
    python tools/bundle.py sentences-run/model --out src/bertkit/pretrained --sentences

The second adds the variant for sentence vectors, from a model folder or a file of `save_delta`. It is stored as what
differs from the first, so tune it from the bundle itself: bertkit finetune vectors --from bundled ... rank=32. Where
whole tensors do not fit, the strongest directions of their changes are stored, if the vectors stay what they are.
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

MOST_BYTES = 16_000_000  # of weights, all variants together
SENTENCES = "sentences"
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
    """What storing a model small has cost, and what it has won."""

    bytes: int  # of the file of weights
    load_seconds: float  # the best of three, tokenizer and all
    cosine_mean: float  # of each token's last vector with the full model's
    cosine_least: float
    worst_logit: float | None  # difference at a blank, over the whole vocabulary; None: no masked-word head
    largest_logit: float | None  # at a blank, of the full model: what the difference is to be compared with
    same_first: int | None  # blanks whose best word is the same
    blanks: int


def bundle(run: Path, out: Path, max_length: int | None = None) -> Bundled:
    """Put the model of `run` into `out`, where the files of another bundle, and its variant, are replaced.

    `max_length` is for a model that has hardly seen its later positions: longer texts are cut, or read by windows.
    """
    full = load_checkpoint(run)
    if max_length is not None:
        if not 2 < max_length <= full.max_length:
            raise RequestError(f"--max-length {max_length} is not between 3 and the model's own {full.max_length}")
        full = replace(full, max_length=max_length)
    with tempfile.TemporaryDirectory() as workspace:
        draft = Path(workspace) / "bundle"
        save_small(full, draft)
        made = measure(full, draft)
        _refuse_large(made.bytes)
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / SENTENCES, ignore_errors=True)  # it is stored as differences from the model that goes
        for file in sorted(path for path in draft.rglob("*") if path.is_file()):
            place = out / file.relative_to(draft)
            place.parent.mkdir(exist_ok=True)
            shutil.move(file, place)
    return made


def bundle_sentences(run: Path, out: Path) -> Bundled:
    """Put the model of `run`, a folder or a file of changes, into `out/sentences` as what differs from `out`."""
    tuned = load_delta(load_checkpoint(out), run) if run.is_file() else load_checkpoint(run)
    full, room = over(load_checkpoint(out), tuned), MOST_BYTES - (out / SMALL_FILE).stat().st_size
    draft = out / f"{SENTENCES}.new"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        save_small(full, draft, delta=True)
        if (draft / SMALL_FILE).stat().st_size > room:
            shutil.rmtree(draft)
            save_small(full, draft, delta=True, budget=room)
            _refuse_other_vectors(full, load_checkpoint(draft))
        made = measure(full, draft)
        _refuse_large(made.bytes + (out / SMALL_FILE).stat().st_size)
        shutil.rmtree(out / SENTENCES, ignore_errors=True)
        with whole_folder(out / SENTENCES) as place:
            shutil.copytree(draft, place, dirs_exist_ok=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return made


def over(base: Checkpoint, tuned: Checkpoint) -> Checkpoint:
    """The tuned encoder with the base's heads, which tuning for vectors has thrown away."""
    state, before = tuned.model.state_dict(), base.model.state_dict()
    for name, tensor in before.items():
        if name.startswith("encoder.") and (name not in state or state[name].shape != tensor.shape):
            raise RequestError(f"{name} is missing in the tuned model or of another shape; tune the bundled one itself")
    base.model.load_state_dict({name: state.get(name, tensor) for name, tensor in before.items()})
    embed = tuned.embed or EmbedSettings(pooling="mean", normalize=True)
    return replace(base, embed=embed, max_length=tuned.max_length)


def measure(full: Checkpoint, folder: Path) -> Bundled:
    """Size, load time, and how far the stored model's answers are from those of the full one."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        small = load_checkpoint(folder)
        seconds.append(time.perf_counter() - began)
    ours, theirs = answers(full), answers(small)
    cosines = F.cosine_similarity(ours[0], theirs[0], dim=-1)
    logits = None if ours[1] is None or theirs[1] is None else (ours[1], theirs[1])
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


def answers(checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor | None]:
    """T D: the last vectors of all tokens of TEXTS; and the logits of their blanks, if there is a head for them."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    if tokenizer is None:
        raise RequestError("the model's folder holds no tokenizer; a bundle needs one")
    encodings = [tokenizer.encode(text.replace("[MASK]", tokenizer.mask_token)) for text in TEXTS]
    batch = make_batch([Passage(each.ids, each.segments) for each in encodings], model.device)
    with torch.inference_mode():
        hidden_TD = model(batch)
        if "masked_word" not in model.heads:
            return hidden_TD, None
        return hidden_TD, model.read("masked_word", hidden_TD[batch.ids == tokenizer.mask_id], batch)


def _refuse_other_vectors(full: Checkpoint, stored: Checkpoint) -> None:
    cosine = float(vector_cosines(full, stored, SENTENCE_TEXTS).mean())
    if cosine < MIN_COSINE:
        raise RequestError(
            f"stored in what is left of {MOST_BYTES:,} bytes, vectors have a mean cosine of {cosine:.4f} with those of "
            f"the full model, under {MIN_COSINE}; tune with rank=32 or less"
        )


def _refuse_large(size: int) -> None:
    if size > MOST_BYTES:
        raise RequestError(f"{size:,} bytes of weights are over the {MOST_BYTES:,} that a bundle may have")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a model folder, or a run's folder with its model/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--sentences", action="store_true", help="the variant for sentence vectors of the model in --out"
    )
    parser.add_argument(
        "--max-length", type=int, help="the most tokens of a text, where the model has seen no longer ones"
    )
    options = parser.parse_args(arguments)
    try:
        if options.sentences and options.max_length:
            raise RequestError("--max-length is for the model itself; a variant reads as far as it was tuned to")
        if options.sentences:
            made = bundle_sentences(options.run, options.out)
        else:
            made = bundle(options.run, options.out, options.max_length)
        print(json.dumps(asdict(made), indent=2))
    except BertkitError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
