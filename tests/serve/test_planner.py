"""Plans made together equal plans made alone; what is wrong with one request is told to that one only."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from serving import wait_until

from bertkit.engine.batches import Passage
from bertkit.errors import RequestError
from bertkit.serve import service as planning
from bertkit.serve.service import PlanDraft, Planner, complete, tokenize
from bertkit.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]


@dataclass(eq=False)
class Counting:
    """A tokenizer that remembers what it was asked together."""

    real: Tokenizer = field(default_factory=lambda: Tokenizer.from_vocab(PIECES))
    asked: list = field(default_factory=list)

    def encode_plain(self, texts):
        self.asked.append(list(texts))
        return self.real.encode_plain(texts)


class Desk:
    """A planner whose thread can be held, and what it told."""

    def __init__(self):
        self.pool, self.told = ThreadPoolExecutor(1), []
        self.planner = Planner(self.pool, self.told.append)
        self.open = threading.Event()

    def hold(self):
        self.pool.submit(self.open.wait, 10)

    def finish(self):
        self.open.set()
        wait_until(lambda: not self.planner._waiting)  # a pool that is closed takes no further group
        self.pool.shutdown()
        return dict(pair for group in self.told for pair in group)


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.open.set()
    desk.pool.shutdown()


@pytest.fixture
def tokenizer():
    return Counting()


def draft(tokenizer, *texts):
    """One whose plan is its tokens."""
    return PlanDraft(tokenizer, texts, lambda passages: [list(passage.ids) for passage in passages])


def alone(tokenizer, *texts):
    return [tokenizer.real.encode_plain([text])[0][0] for text in texts]


def test_what_waits_is_tokenized_together_and_each_gets_its_own(desk, tokenizer):
    asked = {0: ("ab", "c"), 1: (), 2: ("abc",), 3: ("h a", "", "g")}
    desk.hold()
    for number, texts in asked.items():
        desk.planner.submit(number, lambda texts=texts: draft(tokenizer, *texts))
    assert desk.finish() == {number: alone(tokenizer, *texts) for number, texts in asked.items()}
    assert tokenizer.asked == [["ab", "c", "abc", "h a", "", "g"]]
    assert len(desk.told) == 1


def test_a_refused_text_fails_its_own_request_only(desk, tokenizer):
    desk.hold()
    for number, texts in enumerate([("a",), ("b", "c\ud800"), ("d",)]):
        desk.planner.submit(number, lambda texts=texts: draft(tokenizer, *texts))
    found = desk.finish()
    assert (found[0], found[2]) == (alone(tokenizer, "a"), alone(tokenizer, "d"))
    assert isinstance(found[1], RequestError)
    assert "texts[1] holds the lone surrogate U+D800" in str(found[1])


def test_what_raises_and_what_needs_no_tokens_is_told_before_tokens_are_looked_up(desk, tokenizer):
    def broken(_=None):
        raise ValueError("broken")

    desk.hold()
    desk.planner.submit("draft", lambda: draft(tokenizer, "a"))
    desk.planner.submit("raises", broken)
    desk.planner.submit("raises later", lambda: PlanDraft(tokenizer, ["b"], broken))
    desk.planner.submit("plan", lambda: "a plan")
    found = desk.finish()
    assert found["plan"] == "a plan"
    assert found["draft"] == alone(tokenizer, "a")
    assert str(found["raises"]) == str(found["raises later"]) == "broken"
    assert [[asker for asker, _ in group] for group in desk.told] == [["raises"], ["plan"], ["draft", "raises later"]]


def test_no_more_is_taken_together_than_the_first_can_wait_for(desk, tokenizer, monkeypatch):
    monkeypatch.setattr(planning, "MIN_CHARACTERS", 1)
    monkeypatch.setattr(planning, "GROUP_CHARACTERS", 5)
    desk.hold()
    for number in range(4):
        desk.planner.submit(number, lambda: draft(tokenizer, "abc"), 3)
    desk.finish()
    assert tokenizer.asked == [["abc", "abc"], ["abc", "abc"]]


def test_a_draft_does_not_wait_for_all_plans_that_came_after_it(desk, tokenizer, monkeypatch):
    monkeypatch.setattr(planning, "GROUP_CHARACTERS", 3 * planning.MIN_CHARACTERS)
    desk.hold()
    desk.planner.submit("draft", lambda: draft(tokenizer, "abc"))
    for number in range(10):
        desk.planner.submit(number, lambda: "a plan")
    desk.finish()
    assert [group[0][0] for group in desk.told][:4] == [0, 1, "draft", 2]


def test_other_work_of_the_thread_comes_between_two_groups(desk, tokenizer, monkeypatch):
    monkeypatch.setattr(planning, "GROUP_CHARACTERS", planning.MIN_CHARACTERS)
    desk.hold()
    for number in range(3):
        desk.planner.submit(number, lambda: draft(tokenizer, "abc"))
    desk.pool.submit(desk.told.append, [("other", "work")])
    desk.open.set()
    wait_until(lambda: len(desk.told) == 4)
    assert [group[0][0] for group in desk.told] == [0, "other", 1, 2]


def test_two_models_have_two_tokenizers(desk):
    first, second = Counting(), Counting(Tokenizer.from_vocab([*SPECIAL, *"cba"]))
    desk.hold()
    for number, tokenizer in enumerate([first, second, first]):
        desk.planner.submit(number, lambda tokenizer=tokenizer: draft(tokenizer, "a b"))
    found = desk.finish()
    assert found == {0: alone(first, "a b"), 1: alone(second, "a b"), 2: alone(first, "a b")}
    assert found[0] != found[1]
    assert (len(first.asked), len(second.asked)) == (1, 1)


def test_a_panic_of_a_library_is_told_to_its_own_request_only(desk, tokenizer):
    class Panic(BaseException):
        """As pyo3's."""

    def broken(_=None):
        raise Panic("index out of bounds")

    desk.hold()
    desk.planner.submit("fine", lambda: draft(tokenizer, "a"))
    desk.planner.submit("panics", lambda: PlanDraft(tokenizer, ["b"], broken))
    found = desk.finish()
    assert found["fine"] == alone(tokenizer, "a")
    assert str(found["panics"]) == "planning failed: index out of bounds"


def test_none_is_forgotten_whoever_asks_at_the_same_time(desk, tokenizer):
    def ask(start):
        for number in range(start, start + 500):
            desk.planner.submit(number, lambda number=number: draft(tokenizer, "abcdefgh"[number % 8]))

    threads = [threading.Thread(target=ask, args=(500 * place,)) for place in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    wait_until(lambda: sum(map(len, desk.told)) >= 2000)
    found = desk.finish()
    assert sum(map(len, desk.told)) == 2000
    assert found == {number: alone(tokenizer, "abcdefgh"[number % 8]) for number in range(2000)}


def test_after_the_end_everyone_is_told_so(desk, tokenizer):
    desk.pool.shutdown()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            desk.planner.submit(0, lambda: draft(tokenizer, "a"))


def test_long_lists_are_tokenized_in_parts_and_stay_in_order(tokenizer, monkeypatch):
    monkeypatch.setattr(planning, "TOKENIZE_CHARACTERS", 3)
    texts = ["ab", "cd", "e", "fgh", "a"]
    assert [*tokenize(tokenizer, texts)] == [Passage(*tokenizer.real.encode_plain([text])[0]) for text in texts]
    assert tokenizer.asked == [["ab", "cd"], ["e", "fgh"], ["a"]]
    assert complete([draft(tokenizer, *texts)]) == [alone(tokenizer, *texts)]
    assert [*tokenize(tokenizer, [])] == []
