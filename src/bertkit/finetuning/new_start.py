"""A model to start from that is new: a byte-level vocabulary made of the training texts, and random weights."""

from collections.abc import Sequence
from pathlib import Path

from bertkit.checkpoint.bundled import tokenizer_folder
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.finetuning.settings import FineTuneSettings, ShapeSettings
from bertkit.model.model import new_model
from bertkit.settings import pick
from bertkit.tasks.row import TaskRow
from bertkit.text.tokenizer import Tokenizer

NEW = "new"  # what is given instead of a model's folder


def new_start(row: TaskRow, texts: Sequence[str], settings: FineTuneSettings) -> Checkpoint:
    """A model of the settings' shape; by default the Transformer of Vaswani 2017, saved as Marian models are."""
    if row.default_start != NEW:
        raise RequestError(f"'{row.name}' starts from a pre-trained model; name one with --from, or leave it out")
    shape = settings.shape
    if shape.vocab is None:
        tokenizer = Tokenizer.train_bytes(texts, shape.vocab_size)
    else:
        tokenizer = Tokenizer.load(tokenizer_folder(Path(shape.vocab)))
    length = settings.reading.max_length or shape.positions
    with_decoders = {name: each for name, each in FAMILIES.items() if each.kind == "encoder-decoder"}
    family = pick(with_decoders, shape.family, "family with a decoder")
    config = family_config(
        family.name,
        "tiny",
        **{name: getattr(shape, name) for name in ("width", "depth", "heads", "inner")},
        decoder_depth=shape.depth if shape.decoder_depth is None else shape.decoder_depth,
        vocab_size=tokenizer.size,
        pad_id=tokenizer.pad_id,
        max_length=length,
        # Where word embeddings are scaled by sqrt(width), they are then as large as positions.
        init_std=shape.width**-0.5 if family.settings.get("embedding_scale") else family.settings.get("init_std", 0.02),
        activation="relu",
    )
    model = new_model(config, {row.head: None}, seed=settings.learning.seed)
    return Checkpoint(model=model, tokenizer=tokenizer, max_length=length)


def is_default(shape: ShapeSettings) -> bool:
    """Whether no setting of the shape was given."""
    return shape == ShapeSettings()
