"""Vocabulary training measured: time and memory of the whole job, pieces per word, and `tokenizers` beside it.

    python benchmarks/vocab.py SHARD... --heldout F --released vocab.txt --out RESULT.json

Every timed job runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bertkit.files import whole_file
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import basic_words

SIZE = 30522


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, nargs="+", help="the corpus, text files of any kind bertkit reads")
    parser.add_argument("--heldout", type=Path, required=True, help="text for pieces per word, not in the shards")
    parser.add_argument("--released", type=Path, required=True, help="vocab.txt of the released uncased BERT")
    parser.add_argument("--beside", type=Path, help="the shard for the comparison with tokenizers (default: the first)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the comparison")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = run_job("ours", options.shards, Path(folder) / "vocabulary")
        report = json.loads((Path(folder) / "vocabulary" / "report.json").read_text(encoding="utf-8"))
        # Before fertility(): Linux lets a child begin with the peak memory of its parent, which is still small.
        together = beside(options.beside or options.shards[0], options.rounds)
        ours = fertility(Path(folder) / "vocabulary" / "vocab.txt", options.heldout)
    released = fertility(options.released, options.heldout)
    result = {
        "what": f"uncased WordPiece vocabulary of {SIZE:,}",
        "machine": {"cpu": cpu_name(), "python": platform.python_version()},
        "shards": [shard.name for shard in options.shards],
        "whole_job": whole,
        "report": report,
        "fertility": {"text": options.heldout.name, "ours": ours, "released": released},
        "fertility_ratio": ours["pieces_per_word"] / released["pieces_per_word"],
        "beside_tokenizers": together,
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({name: result[name] for name in ("whole_job", "fertility", "beside_tokenizers")}, indent=2))


def run_job(kind: str, shards: list[Path], out: Path) -> dict[str, float]:
    """Seconds and peak memory of one training in a fresh process, from its start to its files."""
    command = [sys.executable, __file__, f"--job={kind}", str(out), *map(str, shards)]
    began = time.perf_counter()
    cpu, peak = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    wall = time.perf_counter() - began
    return {"seconds": round(wall, 2), "cpu_seconds": float(cpu), "peak_mib": round(int(peak) / 1024, 1)}


def job(kind: str, out: Path, shards: list[Path]) -> None:
    """The body of the fresh process: train, then print the CPU seconds and the peak memory in KiB."""
    {"ours": train_ours, "tokenizers": train_theirs}[kind](out, shards)
    print(round(time.process_time(), 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def train_ours(out: Path, shards: list[Path]) -> None:
    from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary

    make_vocabulary(shards, VocabularySettings(size=SIZE)).save(out)


def train_theirs(out: Path, shards: list[Path]) -> None:
    from tokenizers import BertWordPieceTokenizer

    paragraphs = (text for item in read_documents(shards, report=CorpusReport()) for text in item.paragraphs)
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(paragraphs, vocab_size=SIZE, show_progress=False)
    out.mkdir()
    tokenizer.save_model(str(out))


def beside(shard: Path, rounds: int) -> dict[str, object]:
    """Both trainers on one shard, in turns; medians, and theirs over ours."""
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "tokenizers": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for kind, measured in runs.items():
                measured.append(run_job(kind, [shard], Path(folder) / f"{kind}-{number}"))
    medians = {
        kind: {name: statistics.median(run[name] for run in measured) for name in measured[0]}
        for kind, measured in runs.items()
    }
    ratios = {name: round(medians["tokenizers"][name] / medians["ours"][name], 2) for name in medians["ours"]}
    return {"shard": shard.name, "runs": runs, "medians": medians, "tokenizers_over_ours": ratios}


def fertility(vocabulary: Path, text: Path) -> dict[str, float]:
    """Pieces per word, for words between white space and for words that are not punctuation alone."""
    tokenizer = Tokenizer.from_vocab(vocabulary, lowercase=True)
    documents = read_documents([text], report=CorpusReport())
    paragraphs = [paragraph for document in documents for paragraph in document.paragraphs]
    words = [word.text for paragraph in paragraphs for word in basic_words(paragraph, lowercase=True)]
    letters = [word for word in words if any(char.isalnum() for char in word)]
    unknown = tokenizer.encode_ids(["[UNK]"])[0][0]
    pieces = [piece for ids in tokenizer.encode_ids(paragraphs) for piece in ids]
    return {
        "pieces_per_word": sum(map(len, tokenizer.encode_ids(letters))) / len(letters),
        "pieces_per_white_space_word": len(pieces) / sum(len(paragraph.split()) for paragraph in paragraphs),
        "unknown": pieces.count(unknown),
        "pieces": len(pieces),
    }


def cpu_name() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(found)} x {found[0].partition(': ')[2]}" if found else platform.processor()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--job="):
        job(sys.argv[1].removeprefix("--job="), Path(sys.argv[2]), [Path(shard) for shard in sys.argv[3:]])
    else:
        main()
