"""The limits of a server."""

import math
from collections.abc import Container
from dataclasses import dataclass, replace

from bertkit.errors import RequestError
from bertkit.text.length import TooLong

# Bytes, characters or numbers: more take over a millisecond or two, and go to a thread beside the event loop.
OFF_LOOP_SIZE = 20_000
GPU_TOKENS = 32_768  # in one batch on a GPU: the fastest size for `embed` there


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The limits of one server, with the HTTP status of requests beyond them."""

    max_tokens: int = 4096  # in one batch
    max_queue: int = 512  # requests in progress; 429 beyond
    waiting_tokens: int = 1 << 20  # in the queue, of all requests; 413 for one request beyond, else 429
    max_body: int = 8 << 20  # bytes of one request; 413 beyond
    max_bodies: int = 256 << 20  # bytes of all requests in progress, with 64 per JSON value; 429 beyond
    max_values: int = 1_200_000  # JSON values of one request, a list counting as 16; 413 beyond
    max_texts: int = 2048  # in one request, as OpenAI has it; 413 beyond
    max_characters: int = 400_000  # of one text; 413 beyond
    max_numbers: int = 16_000_000  # in one reply; 413 beyond
    max_held: int = 128_000_000  # numbers kept for the windows of one request until they are pooled; 413 beyond
    max_words: int = 100_000  # candidates for all blanks of one request; 413 beyond
    seconds: float = 60.0  # until the reply; 504 beyond
    body_seconds: float = 20.0  # until the body is read; 408 beyond
    too_long: TooLong = "truncate"  # policy for texts over the model's length, unless the request has its own
    workers: int = 1  # batches computed at a time, a thread each

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_queue", "waiting_tokens", "max_body", "max_texts", "workers"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name.replace('_', '-')}={getattr(self, name)} must be at least 1")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise RequestError(f"timeout={self.seconds} must be a number of seconds over 0")


def fitted(settings: ServeSettings, device: str, cores: int, explicit: Container[str] = ()) -> ServeSettings:
    """The settings with the defaults for a device, except for the fields in `explicit`."""
    if device == "cpu":
        return settings if "workers" in explicit else replace(settings, workers=min(4, cores))
    return settings if "max_tokens" in explicit else replace(settings, max_tokens=GPU_TOKENS)
