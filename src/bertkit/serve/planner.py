"""Plans for waiting requests: the texts of many are tokenized in one call, and what they need is queued in one call."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from bertkit.engine.batches import Passage
from bertkit.errors import BertkitError
from bertkit.predict.length import LengthReport
from bertkit.serve.engine import Lane, Piece
from bertkit.serve.refusals import detached
from bertkit.text.tokenizer import Tokenizer

GROUP_CHARACTERS = 16_000  # planned together: a few milliseconds, which the first of these requests waits for the last
MIN_CHARACTERS = 100  # what a request counts for at least
TOKENIZE_CHARACTERS = 200_000  # in one call: an encoding is some hundred bytes for each token
Client = TypeVar("Client")
Result = TypeVar("Result")


@dataclass(slots=True)  # not frozen, as one is made for every request: that takes three times as long
class Plan:
    """What the encoder computes for a request, and how its rows become the answer."""

    lane: Lane
    pieces: Sequence[Piece]
    finish: Callable[[list[Any]], Any]
    tokens: int  # of the texts, as the reply states them
    lengths: LengthReport | None = None  # which texts were over the limit
    quick: bool = False  # whether finishing takes no time worth a thread
    made: int = 0  # characters and numbers that finishing makes, where they are more than the tokens


@dataclass(slots=True)
class Draft:
    """A plan without the tokens of its texts, which are tokenized together with those of other requests."""

    tokenizer: Tokenizer
    texts: Sequence[str]
    complete: Callable[[Iterable[Passage]], Plan]


Make = Callable[[], Plan | Draft]
Planned = list[tuple[Client, Plan | Exception]]


class Planner(Generic[Client]):
    """Makes plans on the one thread of `pool`, and delivers each, or what is wrong with its request.

    Requests that arrive while it is busy are planned together, up to a size; then the thread is free for other work. A
    text at a time, tokenizing takes longer than a GPU takes for the vectors, and leaves all cores but one idle.
    """

    def __init__(self, pool: Executor, deliver: Callable[[Planned[Client]], None]) -> None:
        self._pool = pool
        self._deliver = deliver
        self._waiting: deque[tuple[Client, Make, int]] = deque()
        self._scheduled = False  # whether the thread will look at what waits

    def submit(self, client: Client, make: Make, size: int = 0) -> None:
        """Have a plan made; `size` is about how many characters it reads."""
        self._waiting.append((client, make, max(size, MIN_CHARACTERS)))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # the pool is closed
                self._scheduled = False
                raise

    def _work(self) -> None:
        self._scheduled = False  # first: a request that comes from here on may be too late for this turn
        try:
            for group in self._take():
                plans = complete([draft for _, draft in group])
                self._deliver([(client, plan) for (client, _), plan in zip(group, plans, strict=True)])
        finally:
            if self._waiting:
                self._schedule()

    def _take(self) -> list[list[tuple[Client, Draft]]]:
        """The drafts of the next requests, by tokenizer; what needs no tokens, or is wrong, is delivered at once."""
        size, drafts = 0, dict[int, list[tuple[Client, Draft]]]()
        while self._waiting and size < GROUP_CHARACTERS:
            client, make, characters = self._waiting.popleft()
            size += characters
            made = _attempt(make)
            if isinstance(made, Draft):
                drafts.setdefault(id(made.tokenizer), []).append((client, made))
            else:
                self._deliver([(client, made)])
        return [*drafts.values()]


def complete(drafts: Sequence[Draft]) -> list[Plan | Exception]:
    """Plans of drafts with one tokenizer. Where a text is refused, each by itself: only the guilty request fails."""
    if len(drafts) == 1:  # a long text's tokens may be dropped as they come
        return [_attempt(drafts[0].complete, tokenize(drafts[0].tokenizer, drafts[0].texts))]
    tokens = _attempt(lambda: [*tokenize(drafts[0].tokenizer, [text for draft in drafts for text in draft.texts])])
    if isinstance(tokens, Exception):
        return [plan for draft in drafts for plan in complete([draft])]
    left = iter(tokens)
    parts = [list(islice(left, len(draft.texts))) for draft in drafts]
    return [_attempt(draft.complete, part) for draft, part in zip(drafts, parts, strict=True)]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Passage]:
    """The tokens of each text; not all texts in one call, for encodings are large."""
    start = size = 0
    for stop, text in enumerate(texts, start=1):
        size += len(text)
        if size > TOKENIZE_CHARACTERS or stop == len(texts):
            yield from (Passage(*plain) for plain in tokenizer.encode_plain(texts[start:stop]))
            start, size = stop, 0


def _attempt(make: Callable[..., Result], *arguments: object) -> Result | Exception:
    try:
        return make(*arguments)
    except Exception as error:
        return detached(error)
    except BaseException as error:  # a library's panic is no Exception, and must not take others' requests along
        return BertkitError(f"planning failed: {error}")
