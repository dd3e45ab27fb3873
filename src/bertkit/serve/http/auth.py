"""API keys: read from a file or the environment, kept as digests, compared in constant time, never logged."""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from bertkit.connection import KEY_VARIABLE
from bertkit.errors import RequestError

MIN_CHARACTERS = 8  # of a key


class Keys:
    """The keys of a server; without any, every request is admitted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(key.encode("utf-8", "surrogateescape")) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers carries a key: as a bearer token, as x-api-key, or as a password."""
        if not self._digests:
            return True
        sent = [_digest(key) for key in _sent_keys(headers)]
        # Every key is compared with every one sent, so that the time tells nothing about the keys.
        equal = [hmac.compare_digest(one, other) for one in sent for other in self._digests]
        return any(equal)


def read_keys(path: Path | None) -> Keys:
    """One key on each line of the file, and those of BERTKIT_API_KEY, separated by spaces."""
    keys = os.environ.get(KEY_VARIABLE, "").split()
    if path is not None:
        if not path.is_file():
            raise RequestError(
                f"there is no file of keys {path}; a key itself does not belong on the command line, "
                f"where everybody sees it: write it into a file, or into {KEY_VARIABLE}"
            )
        # Bytes that are not UTF-8 are kept, as in the environment.
        lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
        listed = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if not listed:
            raise RequestError(f"{path} holds no key; write one on each line")
        keys += listed
    for key in keys:
        if len(key) < MIN_CHARACTERS:
            raise RequestError(f"a key of {len(key)} characters is quickly guessed; use {MIN_CHARACTERS} or more")
    return Keys(keys)


def _sent_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Keys in the headers of a request, at most four."""
    keys = []
    for name, value in headers:
        if name in (b"x-api-key", b"api-key"):
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(rest.strip())
            elif scheme.lower() == b"basic":
                keys.append(_password(rest))
    return keys[:4]


def _password(encoded: bytes) -> bytes:
    """What a browser's dialog sends: user:password, of which the password is the key."""
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
