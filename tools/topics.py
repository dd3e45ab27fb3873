"""Write sentences of the standard library's docstrings, labeled by what their module is about, as two files.

    python tools/topics.py folder/

`train.tsv` and `dev.tsv` have as many sentences of each topic, and no sentence twice.
"""

import argparse
import random
import sysconfig
from itertools import islice
from pathlib import Path

from docstrings import modules, paragraphs

# Modules that every installation carries, whatever else its maker left out.
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
EACH, DEV = 400, 80  # sentences of a topic, and how many of them are for measuring
SHORTEST, LONGEST = 20, 300  # characters


def sentences() -> dict[str, list[str]]:
    """Sentences by topic, in a random order that is always the same; one that two topics share belongs to neither."""
    library = Path(sysconfig.get_path("stdlib"))
    found: dict[str, dict[str, None]] = {topic: {} for topic in TOPICS}
    for path in modules():
        name = path.relative_to(library).parts[0].removesuffix(".py")
        for topic in (topic for topic, names in TOPICS.items() if name in names):
            lines = paragraphs(path.read_text(encoding="utf-8"))
            found[topic] |= dict.fromkeys(line for line in lines if SHORTEST <= len(line) <= LONGEST)
    shared = {line for topic in found for line in found[topic] if sum(line in own for own in found.values()) > 1}
    kept = {topic: [line for line in own if line not in shared] for topic, own in found.items()}
    return {topic: random.Random(0).sample(own, min(EACH, len(own))) for topic, own in kept.items()}


def write_topics(folder: Path) -> tuple[Path, Path]:
    """Make the two files."""
    rows = sentences()
    parts = {"train": slice(DEV, None), "dev": slice(0, DEV)}
    for name, part in parts.items():
        lines = [f"{line}\t{topic}" for topic, own in rows.items() for line in own[part]]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\ttopic", *lines]) + "\n", encoding="utf-8")
    return folder / "train.tsv", folder / "dev.tsv"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write labeled sentences of the standard library.")
    parser.add_argument("folder", type=Path, help="where train.tsv and dev.tsv go")
    for path in write_topics(parser.parse_args().folder):
        first = next(islice(path.open(encoding="utf-8"), 1, None))
        print(f"{path}: {sum(1 for _ in path.open(encoding='utf-8')) - 1} sentences, the first: {first.strip()}")


if __name__ == "__main__":
    main()
