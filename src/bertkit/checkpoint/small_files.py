"""The files of a small model (`small`), without their weights."""

from pathlib import Path

from bertkit.errors import RequestError

SMALL = "model.small.safetensors"
SUMS = "model.small.sha256"
ABOVE = f"../{SMALL}"


def folder_above(folder: Path) -> Path | None:
    """The folder that holds the rest of this one's model, if this one holds only what differs."""
    return folder.parent if (folder / SUMS).is_file() and ABOVE in read_sums(folder / SUMS) else None


def read_sums(path: Path) -> dict[str, str]:
    """File name -> sha256, as a line of sha256sum has them."""
    try:
        pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}, the checksum of {SMALL}, cannot be read; copy the whole folder again") from error
    sums = {pair[-1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}
    if len(sums) != len(pairs) or list(sums) not in ([SMALL], [SMALL, ABOVE]):
        raise RequestError(f"{path} is not as bertkit writes it; copy the whole folder again")
    return sums
