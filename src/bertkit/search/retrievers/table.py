"""RETRIEVERS: the kinds of retriever by name. A new one is a line here and a file beside it."""

from collections.abc import Mapping
from types import MappingProxyType

from bertkit.search.retrievers.retriever import RetrieverRow

# In the order of lists for users, and of fusion. The first is always there: it needs no model.
ROWS: tuple[RetrieverRow, ...] = (
    RetrieverRow("bm25", "words in common, rare ones counting more", "bm25:Bm25"),
    RetrieverRow("dense", "one vector for each document", "dense:Dense", model="a model for embeddings"),
    RetrieverRow("sparse", "weights of word pieces (SPLADE)", "sparse:Sparse", model="a model for sparse vectors"),
    RetrieverRow("late", "a vector for each token (ColBERT)", "late:Late", model="a model for token vectors"),
)
RETRIEVERS: Mapping[str, RetrieverRow] = MappingProxyType({row.name: row for row in ROWS})
