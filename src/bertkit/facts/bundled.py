"""The model inside the package, loaded once: facts about a trained model are measured on it."""

from functools import cache

from bertkit.predict.bert import Bert, load


@cache
def bundled() -> Bert:
    """What `bertkit.load()` gives."""
    return load()
