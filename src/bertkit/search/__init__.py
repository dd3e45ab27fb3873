"""An index folder over documents: built in bounded memory, resumable, searched by several retrievers at once."""
