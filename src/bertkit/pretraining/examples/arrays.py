"""Examples as arrays: what the loader makes and objectives read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.packing import Limits
from bertkit.pretraining.examples.random import Ints

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Examples:
    """N sequences, their T tokens end to end with [CLS] and [SEP] in place."""

    ids: Ids  # T, corrupted
    segments: Ids  # T: 0 up to the first [SEP], 1 behind it
    lengths: Ints  # N
    chosen: Ints  # M masked positions in `ids`, in order; none where the objective hides nothing
    targets: Ids  # M: the original ids there
    pair_labels: Ints | None  # N: 0 in the text's order, 1 not (nsp: from another document; sop: swapped)
    epoch: int  # of the first example
    limits: Limits | None = None  # what no other block of the source exceeds either
