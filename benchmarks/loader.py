"""The loader measured on one core: tokens per second, and whether every objective has the distribution it promises.

    python benchmarks/loader.py SHARDS --out LOADER.json --objectives OBJECTIVES.json

SHARDS is a folder made by `bertkit shards`, with --entities for the entity mode.
"""

import argparse
import json
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.files import whole_file
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.masking import Packed, choose_packed, n_gram_starts, word_starts
from bertkit.pretraining.examples.random import Purpose, draw
from bertkit.pretraining.examples.spans import Ranges
from bertkit.text.shards.reader import ShardSet, open_shards

ROUNDS, SECONDS = 5, 1.0
PAIR_BLOCKS = 2_000  # half a million pairs: one deviation of a label is 0.07 points
SPEEDS: list[dict[str, Any]] = [
    {"masking": "token"},
    {"masking": "whole-word"},
    {"masking": "n-gram"},
    {"masking": "entity"},
    {"objective": ("mlm", "nsp")},
    {"objective": ("mlm", "sop")},
    {"objective": ("mlm", "nsp"), "masking": "whole-word"},
    {"objective": ("rtd",)},
    {"objective": ("causal",)},
    {"masking": "token", "length": 512, "block": 64},
    {"objective": ("mlm", "nsp"), "masking": "whole-word", "length": 512, "block": 64},
]
MODES: list[dict[str, Any]] = [
    {"objective": objective, "masking": masking}
    for objective in (("mlm",), ("mlm", "nsp"), ("mlm", "sop"), ("rtd",))
    for masking in ("token", "whole-word", "n-gram", "entity")
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--objectives", type=Path, required=True)
    parser.add_argument("--corpus", default="", help="what the shards were made from, for the record")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="tokens counted for each distribution")
    options = parser.parse_args()
    shards = open_shards(options.shards)
    about = {
        "machine": {"cpu": cpu_name(), "python": platform.python_version(), "numpy": np.__version__},
        "corpus": {
            "name": options.corpus,
            "tokens": shards.tokens,
            "sentences": shards.sentences,
            "documents": shards.documents,
        },
    }
    speeds = [{**setting, **speed(shards, DataSettings(**setting))} for setting in SPEEDS]
    save(options.out, {"what": "millions of tokens per second of one core, best and median", **about, "runs": speeds})
    laws = [{**setting, **law(shards, DataSettings(**setting), options.tokens)} for setting in MODES]
    save(options.objectives, {"what": "distributions of the examples, in percent", **about, "runs": laws})


def save(path: Path, result: dict[str, Any]) -> None:
    with whole_file(path) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in result["runs"]:
        print(json.dumps(row))


def cpu_name() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return found[0].partition(": ")[2] if found else platform.processor()


def speed(shards: ShardSet, settings: DataSettings) -> dict[str, float]:
    """Processor time, not the clock's: the machine is shared, and one process makes the blocks."""
    began = time.process_time()
    source = ExampleSource(shards, settings)
    opened = time.process_time() - began
    source.block(0)
    rates, filled, number = [], [], 1
    for _ in range(ROUNDS):
        tokens, began = 0, time.process_time()
        while (spent := time.process_time() - began) < SECONDS:
            examples, number = source.block(number), number + 1
            tokens += len(examples.ids)
            filled.append(len(examples.ids) / (settings.block * settings.length))
        rates.append(tokens / spent / 1e6)
    return {
        "best": round(max(rates), 1),
        "median": round(float(np.median(rates)), 1),
        "seconds_to_open": round(opened, 2),
        "filled": round(float(np.mean(filled)), 3),
    }


@dataclass
class Counts:
    """What is counted over many blocks."""

    sums: dict[str, int] = field(default_factory=dict)

    def add(self, **counts: Any) -> None:
        """Count on."""
        for name, count in counts.items():
            self.sums[name] = self.sums.get(name, 0) + int(count)

    def percent(self, part: str, whole: str) -> float:
        """One count as a share of another."""
        return round(100 * self.sums[part] / self.sums[whole], 3)


def law(shards: ShardSet, settings: DataSettings, tokens: int) -> dict[str, Any]:
    """Rate, shares, whole units, labels and where B comes from, over at least `tokens` maskable tokens."""
    source, counts = ExampleSource(shards, settings), Counts()
    number = 0
    while counts.sums.get("maskable", 0) < tokens:
        examples, ranges = source.block(number), source.ranges(number)
        count_masks(examples, source, counts)
        count_units(examples, ranges, source, counts)
        number += 1
    for number in range(PAIR_BLOCKS if settings.pairs else 0):
        count_pairs(source.ranges(number), source, counts)
    found: dict[str, Any] = {
        "maskable_tokens": counts.sums["maskable"],
        "chosen": counts.percent("chosen", "maskable"),
        "masked": counts.percent("masked", "chosen"),
        "changed": counts.percent("changed", "chosen"),
        "kept": counts.percent("kept", "chosen"),
        "special_chosen": counts.sums["special"],
        "sequences_without_choice": counts.sums["without"],
        "words_split": counts.percent("split", "goes_on"),
    }
    if settings.masking == "n-gram":
        found["groups_of_1_2_3_chosen"] = [counts.percent(f"group_{n}", "groups") for n in (1, 2, 3)]
    if settings.pairs:
        found |= {"pairs": counts.sums["pairs"], "label_1": counts.percent("ones", "pairs")}
        found |= {name: counts.sums[name] for name in ("label_0_adjacent", "label_1_true", "label_wrong")}
    return found


def count_masks(examples: Examples, source: ExampleSource, counts: Counts) -> None:
    original, special = examples.ids.copy(), np.array(source.ids.special)
    original[examples.chosen] = examples.targets
    now = examples.ids[examples.chosen]
    kept, masked = now == examples.targets, now == source.ids.mask
    offsets = np.concatenate(([0], np.cumsum(examples.lengths)))
    counts.add(
        maskable=(~np.isin(original, special)).sum(),
        chosen=len(now),
        masked=masked.sum(),
        kept=kept.sum(),
        changed=(~masked & ~kept).sum(),
        special=np.isin(examples.targets, special).sum(),
        without=(np.diff(np.searchsorted(examples.chosen, offsets)) == 0).sum(),
    )


def count_units(examples: Examples, ranges: Ranges, source: ExampleSource, counts: Counts) -> None:
    """Words of which only a part was chosen; for n-grams also how many words a chosen group has."""
    original = examples.ids.copy()
    original[examples.chosen] = examples.targets
    maskable = ~np.isin(original, source.ids.special)
    special = np.isin(original, (source.ids.cls, source.ids.sep))
    starts = np.zeros(len(original), dtype=np.bool_)
    starts[~special] = source.shards.gather(ranges.starts.ravel(), ranges.lengths.ravel())[1] == 1
    chosen = np.zeros(len(original), dtype=np.bool_)
    chosen[examples.chosen] = True
    goes_on = np.flatnonzero(maskable[1:] & ~starts[1:] & maskable[:-1]) + 1
    counts.add(goes_on=len(goes_on), split=(chosen[goes_on] != chosen[goes_on - 1]).sum())
    if source.settings.masking == "n-gram":
        offsets = np.concatenate(([0], np.cumsum(examples.lengths)))
        count_groups(Packed(maskable, starts, offsets), counts)


def count_groups(packed: Packed, counts: Counts) -> None:
    """The words in each chosen group, of a choice made here in the same way: groups that touch look like one later."""
    numbers = np.arange(len(packed.offsets) - 1)
    keys = {purpose: draw(counts.sums["maskable"], purpose, numbers) for purpose in (Purpose.SPANS, Purpose.CHOICE)}
    groups, words = n_gram_starts(packed, keys[Purpose.SPANS]), word_starts(packed, keys[Purpose.SPANS])
    chosen = choose_packed(packed, groups, keys[Purpose.CHOICE], 0.15)
    sizes = np.bincount(np.cumsum(groups)[chosen[words[chosen]]])
    counts.add(groups=(sizes > 0).sum(), **{f"group_{n}": (sizes == n).sum() for n in (1, 2, 3)})


def count_pairs(ranges: Ranges, source: ExampleSource, counts: Counts) -> None:
    """Whether each label is true of the places that its texts come from."""
    documents = source.shards.sentence_starts[source.shards.document_starts]
    home = np.searchsorted(documents, ranges.starts, side="right") - 1
    stops, one = ranges.starts + ranges.lengths, ranges.labels == 1
    ahead, behind = stops[:, 0] == ranges.starts[:, 1], stops[:, 1] == ranges.starts[:, 0]
    true_one = behind if source.settings.pairs == "sop" else home[:, 0] != home[:, 1]
    crosses = (stops > documents[home + 1]).any(axis=1)
    counts.add(
        pairs=len(one),
        ones=one.sum(),
        label_0_adjacent=(ahead & ~one).sum(),
        label_1_true=(true_one & one).sum(),
        label_wrong=(crosses | ~np.where(one, true_one, ahead)).sum(),
    )


if __name__ == "__main__":
    main()
