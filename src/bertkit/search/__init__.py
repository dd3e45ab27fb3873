"""An index folder over documents: built in bounded memory, resumable, searched by several kinds of retriever at once."""
