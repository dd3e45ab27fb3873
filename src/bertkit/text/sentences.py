"""Paragraph → sentences, by rules about full stops that are fast enough for a whole corpus.

A stop ends a sentence unless the word before it is an abbreviation, an initial or a list number, or the next word
is in lower case. There is no model and no language setting: for pre-training, rare errors do no harm.
"""

import re

Span = tuple[int, int]

STOPS = ".!?…"
WIDE_STOPS = "。！？｡"  # these end a sentence without a space after them
CLOSERS = "\"'”’»›)]}」』）】》〉"
OPENERS = "\"'“‘«‹([{「『（【《〈"


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# A name follows these, or the sentence continues.
NEVER_LAST = _words(
    "Mr Mrs Ms Mx Dr Prof Rev Hon Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Adm Gov Sen Rep Pres Supt Messrs",
    "Mme Mlle Ste Mt Ft Fr e.g i.e eg ie cf viz vs v approx ca",
)
# Abbreviations if a number follows, else ordinary words: "No. 5" and "She said no."
NUMBERED = _words(
    "No Nos no nos p pp Vol Vols vol vols Fig Figs fig figs Eq eq Sec sec Ch ch Art art c",
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec",
)
# A sentence may end with these, as with "U.S." and initials: it does if a word of STARTERS follows.
SOMETIMES_LAST = _words("Inc Ltd Co Corp Bros LLC PLC etc Jr Sr Esq al St Ave Blvd Rd Dept Univ")
STARTERS = _words(
    "the a an he she it they we i you this that these those there in on at by for from with after before",
    "when while as if but and or so yet his her its their our my your however although though since during",
    "most many some all what who how why where both each another such then also according despite because",
)
WORD = re.compile(f"[{re.escape(OPENERS)}]*+([^\\W_]+)(\\.?)")
NUMBER = re.compile(r"[0-9]|[IVXLC]+\b")
MAX_ABBREVIATION = 24  # characters before a stop that are searched for an abbreviation


def _stops(stops: str, after: str) -> re.Pattern[str]:
    """A run of stops with the closing quotes and brackets after it.

    The lookbehind lets a match start only at the first stop of a run, and the quantifiers are possessive, so that a
    million dots take linear time. The character class comes first because `re` scans for a leading class fastest.
    """
    return re.compile(f"[{stops}](?<![{stops}].)[{stops}]*+[{re.escape(CLOSERS)}]*+{after}")


LATIN = _stops(STOPS, f"\\s++(?![{re.escape(OPENERS)}]*+[a-z])")
WIDE = _stops(STOPS + WIDE_STOPS, r"\s*+")
HAS_WIDE_STOP = re.compile(f"[{WIDE_STOPS}]")


def split_sentences(paragraph: str) -> list[Span]:
    """Characters [start, end) of each sentence; only white space is outside of them."""
    pattern = WIDE if not paragraph.isascii() and HAS_WIDE_STOP.search(paragraph) else LATIN
    spans, start = [], len(paragraph) - len(paragraph.lstrip())
    text_end = len(paragraph.rstrip())
    for stop in pattern.finditer(paragraph, start):
        if stop.end() < text_end and _ends_sentence(paragraph, start, stop):
            spans.append((start, stop.start() + len(stop[0].rstrip())))
            start = stop.end()
    if start < text_end:
        spans.append((start, text_end))
    return spans


def _ends_sentence(paragraph: str, start: int, stop: re.Match[str]) -> bool:
    """Whether the stop ends the sentence that starts at `start`."""
    mark = stop[0]
    if not mark.isascii() and HAS_WIDE_STOP.search(mark):
        return True
    if not mark[-1].isspace() or _continues(paragraph, stop.end()):
        return False
    if mark[0] != "." or mark[1] in STOPS:  # "!", "?", "…" and "..." end it whatever comes before
        return True
    word = _word_before(paragraph, start, stop.start())
    if word.isalpha() and len(word) > 6:  # an early exit for most stops
        return True
    if stop.start() - len(word) == start and (len(word) == 1 or word.isdigit()):
        return False  # "1. First", "A. Answer": a list number is not a sentence
    return _word_can_be_last(word, paragraph, stop.end())


def _continues(paragraph: str, start: int) -> bool:
    """Whether the text from `start` on is in lower case, or another stop, as in ". . ."."""
    word = WORD.match(paragraph, start, start + 8)
    return word[1][0].islower() if word else paragraph[start] in STOPS


def _word_before(paragraph: str, start: int, end: int) -> str:
    window = paragraph[max(start, end - MAX_ABBREVIATION) : end]
    if not window or window[-1].isspace():
        return ""
    return window.split()[-1].lstrip(OPENERS + "—–-/")


def _word_can_be_last(word: str, paragraph: str, next_start: int) -> bool:
    """Whether a sentence can end with `word` and a dot, if the text from `next_start` on follows."""
    word = word.capitalize() if word.isupper() and len(word) > 1 else word
    if word in NEVER_LAST:
        return False
    if word in NUMBERED:
        return not NUMBER.match(paragraph, next_start)
    initial = len(word) == 1 and word.isupper()
    dotted = "." in word and word.replace(".", "").isalpha()
    if initial or dotted or word in SOMETIMES_LAST:
        following = WORD.match(paragraph, next_start)
        # In "A. I. Smith" the "I" is not a pronoun, because a dot follows it.
        return following is not None and following[1].lower() in STARTERS and not following[2]
    return True
