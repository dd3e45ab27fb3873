"""Plans for the requests that wait: the texts of many are tokenized at once, and what they need is queued at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar

from bertkit.engine.batches import Passage
from bertkit.serve.plan import Draft, Plan
from bertkit.text.tokenizer import Tokenizer

TOGETHER = 16_000  # characters: a few milliseconds, which the first of these requests waits for the last
AT_ONCE = 200_000  # characters: an encoding is some hundred bytes for each token; what is kept of it, eight
Asker = TypeVar("Asker")
Made = TypeVar("Made")
Told = list[tuple[Asker, Plan | Exception]]


class Planner(Generic[Asker]):
    """Makes plans on the one thread of `pool`, and tells what came of them: a plan, or what is wrong with a request.

    What comes while it is busy is taken together. A text at a time, looking up tokens takes longer than a GPU takes for
    the vectors, and leaves all cores but one idle.
    """

    def __init__(self, pool: Executor, tell: Callable[[Told[Asker]], None]) -> None:
        self._pool = pool
        self._tell = tell
        self._waiting: deque[tuple[Asker, Callable[[], Plan | Draft]]] = deque()
        self._called = False  # whether the thread will look at what waits

    def submit(self, asker: Asker, make: Callable[[], Plan | Draft]) -> None:
        """Have a plan made."""
        self._waiting.append((asker, make))
        if not self._called:
            self._called = True
            self._pool.submit(self._work)

    def _work(self) -> None:
        self._called = False  # first: who comes from here on may be too late for this time, and calls again
        while self._waiting:
            size, drafts = 0, dict[int, list[tuple[Asker, Draft]]]()
            while self._waiting and size < TOGETHER:
                asker, make = self._waiting.popleft()
                made = _attempt(make)
                if isinstance(made, Draft):
                    drafts.setdefault(id(made.tokenizer), []).append((asker, made))
                    size += sum(map(len, made.texts))
                else:
                    self._tell([(asker, made)])
            for own in drafts.values():
                plans = complete([draft for _, draft in own])
                self._tell([(asker, plan) for (asker, _), plan in zip(own, plans, strict=True)])


def complete(drafts: Sequence[Draft]) -> list[Plan | Exception]:
    """The plans of drafts with one tokenizer. Where a text is refused, each by itself: only the guilty one fails."""
    try:
        tokens = iter([*tokenize(drafts[0].tokenizer, [text for draft in drafts for text in draft.texts])])
    except Exception as error:
        return [error] if len(drafts) == 1 else [plan for draft in drafts for plan in complete([draft])]
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
        return error
