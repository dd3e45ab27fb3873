"""Yardsticks for models that were not fine-tuned: minimal pairs, blanks with accepted words, similarity of texts."""
