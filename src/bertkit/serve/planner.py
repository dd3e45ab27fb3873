"""Plans for the requests that wait: the texts of many are tokenized at once, and what they need is queued at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar

from bertkit.engine.batches import Passage
from bertkit.errors import BertkitError
from bertkit.serve.plans.plan import Draft, Plan
from bertkit.serve.refusals import detached
from bertkit.text.tokenizer import Tokenizer

TOGETHER = 16_000  # characters: a few milliseconds, which the first of these requests waits for the last
LEAST = 100  # what a request counts for at least
AT_ONCE = 200_000  # characters: an encoding is some hundred bytes for each token
Asker = TypeVar("Asker")
Made = TypeVar("Made")
Make = Callable[[], Plan | Draft]
Told = list[tuple[Asker, Plan | Exception]]


class Planner(Generic[Asker]):
    """Makes plans on the one thread of `pool`, and tells what came of them: a plan, or what is wrong with a request.

    What comes while it is busy is taken together, up to a size, and then the thread is free for others. A text at a
    time, looking up tokens takes longer than a GPU takes for the vectors, and leaves all cores but one idle.
    """

    def __init__(self, pool: Executor, tell: Callable[[Told[Asker]], None]) -> None:
        self._pool = pool
        self._tell = tell
        self._waiting: deque[tuple[Asker, Make, int]] = deque()
        self._called = False  # whether the thread will look at what waits

    def submit(self, asker: Asker, make: Make, size: int = 0) -> None:
        """Have a plan made; `size` is about how many characters it reads."""
        self._waiting.append((asker, make, max(size, LEAST)))
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # the pool is closed
                self._called = False
                raise

    def _work(self) -> None:
        self._called = False  # first: who comes from here on may be too late for this time, and calls again
        try:
            for group in self._take():
                plans = complete([draft for _, draft in group])
                self._tell([(asker, plan) for (asker, _), plan in zip(group, plans, strict=True)])
        finally:
            if self._waiting:
                self._call()

    def _take(self) -> list[list[tuple[Asker, Draft]]]:
        """The drafts of the requests that are next, by tokenizer; what needs no tokens, or is wrong, is told."""
        size, drafts = 0, dict[int, list[tuple[Asker, Draft]]]()
        while self._waiting and size < TOGETHER:
            asker, make, own = self._waiting.popleft()
            size += own
            made = _attempt(make)
            if isinstance(made, Draft):
                drafts.setdefault(id(made.tokenizer), []).append((asker, made))
            else:
                self._tell([(asker, made)])
        return [*drafts.values()]


def complete(drafts: Sequence[Draft]) -> list[Plan | Exception]:
    """The plans of drafts with one tokenizer. Where a text is refused, each by itself: only the guilty one fails."""
    if len(drafts) == 1:  # a long text's tokens may be dropped as they come
        return [_attempt(drafts[0].complete, tokenize(drafts[0].tokenizer, drafts[0].texts))]
    found = _attempt(lambda: [*tokenize(drafts[0].tokenizer, [text for draft in drafts for text in draft.texts])])
    if isinstance(found, Exception):
        return [plan for draft in drafts for plan in complete([draft])]
    tokens = iter(found)
    parts = [list(islice(tokens, len(draft.texts))) for draft in drafts]
    return [_attempt(draft.complete, part) for draft, part in zip(drafts, parts, strict=True)]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Passage]:
    """The tokens of each text; not all texts at once, for encodings are large."""
    start = size = 0
    for stop, text in enumerate(texts, start=1):
        size += len(text)
        if size > AT_ONCE or stop == len(texts):
            yield from (Passage(*plain) for plain in tokenizer.encode_plain(texts[start:stop]))
            start, size = stop, 0


def _attempt(make: Callable[..., Made], *arguments: object) -> Made | Exception:
    try:
        return make(*arguments)
    except Exception as error:
        return detached(error)
    except BaseException as error:  # a library's panic is no Exception, and must not take others' requests along
        return BertkitError(f"planning failed: {error}")
