"""How results look in a notebook and on a terminal."""

from bertkit.client import AsyncClient, Client
from bertkit.tasks.answer import Answered, Candidate
from bertkit.tasks.classify import Classified
from bertkit.tasks.multilabel import Labeled
from bertkit.tasks.rate_words import RatedWords
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.tag import Tagged, TagSpan
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

SEEN = Seen(tokens=5)


def test_labels_are_ranked_in_a_table():
    shares = {"<bad>": 0.25, "good": 0.75}
    found = Classified("good", 0.75, shares, SEEN)._repr_html_()
    assert found.index("good") < found.index("&lt;bad&gt;")
    assert "<td>0.7500</td>" in found
    assert repr(Classified("good", 0.75, shares, SEEN)) == (
        "Classified(label='good', probability=0.75, probabilities={'<bad>': 0.25, 'good': 0.75})"
    )
    assert "<td>good</td><td>0.7500</td><td>yes</td>" in Labeled(("good",), shares, SEEN)._repr_html_()


def test_tags_are_a_table_of_words_and_a_short_line():
    span = TagSpan("PER", (0, 1), "Ada", 0.9, (0, 3))
    tagged = Tagged(("Ada", "ran"), ("B-PER", "O"), (0.9, 0.8), (span,), SEEN)
    assert "<td>Ada</td><td>B-PER</td><td>0.9000</td>" in tagged._repr_html_()
    assert repr(tagged) == f"Tagged(tags=('B-PER', 'O'), spans=({span!r},))"
    rated = RatedWords(("Ada", "ran"), (0.5, 2.0), None, SEEN)
    assert "<td>ran</td><td>2.0000</td>" in rated._repr_html_()


def test_an_answer_shows_its_candidates_in_a_notebook_only():
    answer = Answered("", "in May", 3, 9, 0.9, -2.0, (Candidate("in May", 3, 9, 1.0, 0.9),), SEEN)
    assert "<td>in May</td><td>0.9000</td><td>3:9</td>" in answer._repr_html_()
    assert "candidates" not in repr(answer)


def test_clients_and_tokenizers_say_what_they_are():
    assert repr(Client("http://localhost:8000/")) == "Client('http://localhost:8000')"
    assert repr(Client("http://localhost:8000", model="ner")) == "Client('http://localhost:8000', model='ner')"
    assert repr(AsyncClient("http://localhost:8000")) == "AsyncClient('http://localhost:8000')"
    assert repr(Tokenizer.from_vocab([*SPECIALS, "a"])) == f"Tokenizer({len(SPECIALS) + 1} entries, lowercase)"
