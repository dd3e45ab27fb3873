"""Write sentences of the standard library's docstrings, labeled by the topic of their module, as two files.

    python tools/topics.py folder/

`train.tsv` and `dev.tsv` have the same number of sentences of each topic, and no sentence twice.
"""

import argparse
import random
import sysconfig
from collections import Counter
from itertools import islice
from pathlib import Path

from docstrings import modules, paragraphs

# Modules that every installation has.
TOPICS = {
    "network": (
        "http",
        "urllib",
        "ipaddress",
        "smtplib",
        "imaplib",
        "socketserver",
        "ssl",
        "ftplib",
        "poplib",
        "xmlrpc",
    ),
    "numbers": ("_pydecimal", "statistics", "fractions", "random", "numbers", "datetime", "_pydatetime", "calendar"),
    "files": ("tarfile", "zipfile", "shutil", "pathlib", "gzip", "bz2", "lzma", "tempfile", "_pyio", "glob", "os"),
}
PER_TOPIC, DEV_PER_TOPIC = 400, 80  # sentences
MIN_CHARACTERS, MAX_CHARACTERS = 20, 300  # of a sentence


def sentences() -> dict[str, list[str]]:
    """Sentences by topic, in a fixed random order, without those that occur in two topics."""
    library = Path(sysconfig.get_path("stdlib"))
    by_topic: dict[str, dict[str, None]] = {topic: {} for topic in TOPICS}
    for path in modules():
        name = path.relative_to(library).parts[0].removesuffix(".py")
        for topic in (topic for topic, names in TOPICS.items() if name in names):
            lines = paragraphs(path.read_text(encoding="utf-8"))
            by_topic[topic] |= dict.fromkeys(line for line in lines if MIN_CHARACTERS <= len(line) <= MAX_CHARACTERS)
    counts = Counter(line for lines in by_topic.values() for line in lines)
    unique = {topic: [line for line in lines if counts[line] == 1] for topic, lines in by_topic.items()}
    return {topic: random.Random(0).sample(lines, min(PER_TOPIC, len(lines))) for topic, lines in unique.items()}


def write_topics(folder: Path) -> tuple[Path, Path]:
    """Write the two files, and return their paths."""
    rows = sentences()
    parts = {"train": slice(DEV_PER_TOPIC, None), "dev": slice(0, DEV_PER_TOPIC)}
    for name, part in parts.items():
        lines = [f"{line}\t{topic}" for topic, sentences in rows.items() for line in sentences[part]]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\ttopic", *lines]) + "\n", encoding="utf-8")
    return folder / "train.tsv", folder / "dev.tsv"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write labeled sentences of the standard library.")
    parser.add_argument("folder", type=Path, help="the folder for train.tsv and dev.tsv")
    for path in write_topics(parser.parse_args().folder):
        first = next(islice(path.open(encoding="utf-8"), 1, None))
        print(f"{path}: {sum(1 for _ in path.open(encoding='utf-8')) - 1} sentences, the first: {first.strip()}")


if __name__ == "__main__":
    main()
