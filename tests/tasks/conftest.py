"""The contract's helpers: tiny data and models, and servers for them."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "finetuning"), str(TESTS / "serve")]
