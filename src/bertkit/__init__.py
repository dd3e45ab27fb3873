"""bertkit: a BERT from raw text to a running service.

>>> import bertkit
>>> bert = bertkit.load("my-model")      # a Hugging Face or sentence-transformers folder
>>> bert.embed(["a text", "another"])    # float32 [2, width]

Importing this package imports neither torch nor numpy: they come with the first call that needs them.
"""

from typing import TYPE_CHECKING, Any

from bertkit._version import __version__
from bertkit.errors import BertkitError, BertkitWarning, RequestError

if TYPE_CHECKING:
    from bertkit.bert_client import BertClient
    from bertkit.client import AsyncClient, Client
    from bertkit.inside.attribution.attribution import why
    from bertkit.inside.look.look import look
    from bertkit.predict.bert import Bert, load
    from bertkit.text.tokenizer import Tokenizer

_LATE = {
    "AsyncClient": "bertkit.client",
    "BertClient": "bertkit.bert_client",
    "Client": "bertkit.client",
    "Bert": "bertkit.predict.bert",
    "load": "bertkit.predict.bert",
    "look": "bertkit.inside.look.look",
    "Tokenizer": "bertkit.text.tokenizer",
    "why": "bertkit.inside.attribution.attribution",
}

__all__ = [
    "AsyncClient",
    "Bert",
    "BertClient",
    "BertkitError",
    "BertkitWarning",
    "Client",
    "RequestError",
    "Tokenizer",
    "__version__",
    "load",
    "look",
    "why",
]


def __getattr__(name: str) -> Any:
    """Names that need torch are imported when first asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
