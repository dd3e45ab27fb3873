"""The kinds of tokenizer, one file per row."""
