"""Methods that `Bert` had in 0.2, for programs that call them; they go in 0.4."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import known_segments
from bertkit.model.pooling import EmbedSettings
from bertkit.predict.trace import trace_target
from bertkit.predict.vectors import text_blocks


def _width(checkpoint: Checkpoint, settings: EmbedSettings) -> int:
    return settings.width(checkpoint.model.config.width)


# Name -> what to use instead, and the method of a checkpoint.
MOVED: dict[str, tuple[str, Callable[[Checkpoint], Callable[..., Any]]]] = {
    "embed_blocks": ("bertkit.predict.vectors.text_blocks", lambda own: partial(text_blocks, own)),
    "embed_settings": ("bert.checkpoint.embed_settings", lambda own: own.embed_settings),
    "known_segments": (
        "bertkit.engine.batches.known_segments",
        lambda own: partial(known_segments, own.model.config),
    ),
    "trace_target": ("bert.trace", lambda own: partial(trace_target, own)),
    "width": ("settings.width", lambda own: partial(_width, own)),
}


def moved_method(checkpoint: Checkpoint, name: str) -> Callable[..., Any]:
    """The method, with a warning that says what to use instead."""
    instead, method = MOVED[name]
    message = f"Bert.{name} is for bertkit's own use, and goes in 0.4; use {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return method(checkpoint)
