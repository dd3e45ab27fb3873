"""Classification by labels that come with a request, which no model was trained on (zero-shot).

It is the task `classify` with other labels, so whatever answers that task answers these: Python, files, the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.tasks.classify import Classified, Classify
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.label_set import LabelSet, has_words
from bertkit.tasks.shared.length import Seen, select_tokens, sequence_positions
from bertkit.tasks.shared.text_task import likeliest
from bertkit.tasks.task import HeadOutputs, Window
from bertkit.text.tokenizer import Encoding


@dataclass(frozen=True, kw_only=True)
class GivenLabels(Classify):
    """The head has an output for each label; `prefix` is put before every text, as some sentence models need."""

    given: LabelSet
    prefix: str = ""

    def preprocess(self, example: Example) -> Example:
        """The example; a pair, and a text without words, are refused."""
        assert isinstance(example, TextExample)
        if example.pair is not None:
            raise RequestError(f"{example.location}: labels go with single texts; leave the second text out")
        if not has_words(example.text):
            raise RequestError(f"{example.location}: the text has no words, so no label fits it; leave it out")
        return replace(example, text=self.prefix + example.text) if self.prefix else example

    def decide(self, logits: np.ndarray, seen: Seen, decision: Decision) -> Classified:
        """The most probable label; with multi_label the probabilities are independent."""
        if not self.given.multi_label:
            return super().decide(logits, seen, decision)
        probabilities = dict(zip(self.labels, decision.label_probabilities(logits).tolist(), strict=True))
        best = likeliest(probabilities)
        return Classified(best, probabilities[best], probabilities, seen)


@dataclass(frozen=True, kw_only=True)
class Entailed(GivenLabels):
    """By a model of natural language inference, which reads the statement of each label after the text."""

    entailment: int  # index of this output of the head
    scale: float  # of log-odds as logits

    @property
    def passes(self) -> int:
        """One for each label."""
        return len(self.given.names)

    def windows(self, example: Example, number: int) -> list[Window]:
        """A sequence for each label; of a long text the beginning."""
        assert isinstance(example, TextExample)
        self.target(example)  # refuses a label that is not among the given ones
        statements = self.given.statements
        encodings = self.tokenizer.encode_batch([example.text] * len(statements), statements)
        return [self._window(encoding, number) for encoding in encodings]

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Classified:
        """The log-odds of entailment are the logits of the labels."""
        logits_KO = np.stack(outputs).astype(np.float64)
        others_KO = np.delete(logits_KO, self.entailment, axis=1)
        odds_K = logits_KO[:, self.entailment] - logsumexp(others_KO, axis=1)
        return self.decide(self.scale * odds_K, max((window.detail for window in windows), key=_cut), decision)

    def _window(self, encoding: Encoding, number: int) -> Window:
        positions, part = sequence_positions(encoding, self.limit, self.length)[0], encoding.part
        tokens, kept = part.count(0), sum(part[position] == 0 for position in positions)
        return Window(*select_tokens(encoding, positions), number, None, Seen(tokens, tokens - kept))


def _cut(seen: Seen) -> int:
    return seen.cut
