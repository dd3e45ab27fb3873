"""Training examples as arrays: the output of the loader and the input of the objectives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.packing import Limits
from bertkit.pretraining.examples.random import Ints

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Examples:
    """N sequences with T tokens in total, concatenated, [CLS] and [SEP] included."""

    ids: Ids  # T, corrupted
    segments: Ids  # T: 0 up to the first [SEP], 1 after it
    lengths: Ints  # N
    chosen: Ints  # M masked positions in `ids`, in order; none if the objective masks nothing
    targets: Ids  # M: the original ids there
    pair_labels: Ints | None  # N: 0 for the order of the text, else 1 (nsp: from another document; sop: swapped)
    epoch: int  # of the first example
    limits: Limits | None = None  # upper bounds for all blocks of the source
