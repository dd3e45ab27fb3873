"""Models on disk: the Hugging Face layout in and out, sentence-transformers folders and Google's checkpoints in."""
