import sys
from pathlib import Path

for folder in ("parity", "model"):  # model/family_rows.py is for both
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
