"""bertkit: a BERT from raw text to a running service.

>>> import bertkit
>>> bert = bertkit.load("my-model")      # a Hugging Face or sentence-transformers folder
>>> bert.embed(["a text", "another"])    # float32 [2, width]

Importing this package imports neither torch nor numpy: they come with the first call that needs them.
"""

from typing import TYPE_CHECKING

from bertkit._version import __version__
from bertkit.errors import BertkitError, BertkitWarning, RequestError

if TYPE_CHECKING:
    from bertkit.api import Report, TrainingResult, evaluate, finetune, finetune_chain, pretrain
    from bertkit.bert_client import BertClient
    from bertkit.client import AsyncClient, Client
    from bertkit.evaluation.measure import Comparison, EvaluationResult
    from bertkit.inside.attribution.attribution import why
    from bertkit.inside.look.look import Look, look
    from bertkit.predict.bert import Bert, load
    from bertkit.predict.fill import Filled
    from bertkit.predict.fill_words import FilledTogether
    from bertkit.predict.mteb_encoder import MtebEncoder
    from bertkit.predict.questions import JudgedWord
    from bertkit.predict.retrieval import SparseVector
    from bertkit.predict.search import Found
    from bertkit.report.why import Why
    from bertkit.search.index import Hit, Index, build_index
    from bertkit.sklearn import BertClassifier, BertRegressor, BertTagger, BertVectorizer, Classifier
    from bertkit.tasks.answer import Answered
    from bertkit.tasks.choose import Chosen
    from bertkit.tasks.classify import Classified
    from bertkit.tasks.multilabel import Labeled
    from bertkit.tasks.rank import Ranked
    from bertkit.tasks.rate_words import RatedWords
    from bertkit.tasks.regress import Rated
    from bertkit.tasks.tag import Tagged
    from bertkit.tasks.write import Written
    from bertkit.text.tokenizer import Tokenizer

# Module -> the public names that are imported from it when they are first used.
_LATE_NAMES = {
    "bertkit.api": (
        "Report",
        "TrainingResult",
        "evaluate",
        "finetune",
        "finetune_chain",
        "pretrain",
    ),
    "bertkit.bert_client": ("BertClient",),
    "bertkit.client": ("AsyncClient", "Client"),
    "bertkit.evaluation.measure": ("Comparison", "EvaluationResult"),
    "bertkit.inside.attribution.attribution": ("why",),
    "bertkit.report.why": ("Why",),
    "bertkit.inside.look.look": ("Look", "look"),
    "bertkit.predict.bert": ("Bert", "load"),
    "bertkit.predict.fill": ("Filled",),
    "bertkit.predict.fill_words": ("FilledTogether",),
    "bertkit.predict.mteb_encoder": ("MtebEncoder",),
    "bertkit.predict.questions": ("JudgedWord",),
    "bertkit.predict.retrieval": ("SparseVector",),
    "bertkit.predict.search": ("Found",),
    "bertkit.search.index": ("Hit", "Index", "build_index"),
    "bertkit.sklearn": ("BertClassifier", "BertRegressor", "BertTagger", "BertVectorizer", "Classifier"),
    "bertkit.tasks.answer": ("Answered",),
    "bertkit.tasks.choose": ("Chosen",),
    "bertkit.tasks.classify": ("Classified",),
    "bertkit.tasks.multilabel": ("Labeled",),
    "bertkit.tasks.rank": ("Ranked",),
    "bertkit.tasks.rate_words": ("RatedWords",),
    "bertkit.tasks.regress": ("Rated",),
    "bertkit.tasks.tag": ("Tagged",),
    "bertkit.tasks.write": ("Written",),
    "bertkit.text.tokenizer": ("Tokenizer",),
}
_MODULES = {name: module for module, names in _LATE_NAMES.items() for name in names}

__all__ = [
    "Answered",
    "AsyncClient",
    "Bert",
    "BertClassifier",
    "BertClient",
    "BertRegressor",
    "BertTagger",
    "BertVectorizer",
    "BertkitError",
    "BertkitWarning",
    "Chosen",
    "Classified",
    "Classifier",
    "Client",
    "Comparison",
    "EvaluationResult",
    "Filled",
    "FilledTogether",
    "Found",
    "Hit",
    "Index",
    "JudgedWord",
    "Labeled",
    "Look",
    "MtebEncoder",
    "Ranked",
    "Rated",
    "RatedWords",
    "Report",
    "RequestError",
    "SparseVector",
    "Tagged",
    "Tokenizer",
    "TrainingResult",
    "Why",
    "Written",
    "__version__",
    "build_index",
    "evaluate",
    "finetune",
    "finetune_chain",
    "load",
    "look",
    "pretrain",
    "why",
]


if not TYPE_CHECKING:  # type checkers know the names above, and would take any other for granted

    def __getattr__(name: str) -> object:
        """Names that need torch are imported when they are first used."""
        if name not in _MODULES:
            raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
