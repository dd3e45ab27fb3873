"""Tests with clients and libraries of others, unchanged: `make test-peers`. Models are small and made here."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
